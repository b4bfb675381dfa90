//! Denies callers without valid credentials.

use std::sync::Arc;

use http::Response;
use tonic::body::Body;

use super::{Arrived, Check};
use crate::rpc::{answer_body::Meters, catalog::Catalog, guard::Entrance};

/// Authentication of a connection, if it is on.
#[derive(Clone)]
pub struct Credentials {
    pub(super) entrance: Entrance,
    pub(super) catalog: Arc<Catalog>,
    pub(super) meters: Option<Arc<Meters>>,
}

impl<B> Check<Arrived<B>> for Credentials {
    fn refuse(&self, call: &mut Arrived<B>) -> Option<Response<Body>> {
        if self.catalog.is_page(call.request.uri().path()) {
            return None;
        }
        match self.entrance.authenticate(&call.request, &self.catalog) {
            Ok(caller) => {
                call.caller = caller;
                None
            }
            Err(status) => {
                if let Some((meters, method)) = self.meters.as_ref().zip(call.method) {
                    meters.calls.refuse(method, status.code());
                }
                Some(status.into_http())
            }
        }
    }
}
