//! Records the instant of arrival.

use std::sync::Arc;

use http::Request;
use hyper::service::Service;
use tokio::time::Instant;

use crate::{
    auth::{Caller, Rpc},
    rpc::calls,
};

/// A call, with what the layers found out about it.
pub struct Arrived<B> {
    pub(in crate::rpc) request: Request<B>,
    /// When its head arrived.
    pub(super) at: Instant,
    /// Its method, if it belongs to the worker pool.
    pub(in crate::rpc) method: Option<Rpc>,
    /// The authenticated caller.
    pub(super) caller: Option<Arc<Caller>>,
}

/// Records when a call arrived, and whether it is for the worker pool.
#[derive(Clone)]
pub struct Arrivals<S> {
    pub(super) has_pool: bool,
    pub(super) inner: S,
}

impl<B, S: Service<Arrived<B>>> Service<Request<B>> for Arrivals<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: Request<B>) -> S::Future {
        let method = if self.has_pool { calls::of_worker_pool(request.uri().path()) } else { None };
        self.inner.call(Arrived { request, at: Instant::now(), method, caller: None })
    }
}
