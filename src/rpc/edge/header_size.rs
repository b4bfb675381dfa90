//! Limits the headers of a call.

use http::{Request, Response};
use tonic::body::Body;

use super::{Arrived, Check};
use crate::rpc::status;

/// Largest headers, in bytes as HTTP/2 counts them.
#[derive(Clone, Copy)]
pub struct HeaderSize(pub(super) usize);

impl<B> Check<Arrived<B>> for HeaderSize {
    fn refuse(&self, call: &mut Arrived<B>) -> Option<Response<Body>> {
        (header_list(&call.request) > self.0).then(|| status::headers_too_large(self.0).into_http())
    }
}

/// Size of the headers as HTTP/2 counts it: name, value and 32 bytes for each.
fn header_list<B>(request: &Request<B>) -> usize {
    let field = |name: usize, value: usize| name + value + 32;
    let authority = request.uri().authority().map_or(0, |authority| authority.as_str().len());
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| field(name.as_str().len(), value.len()));
    field(":path".len(), path) + field(":authority".len(), authority) + fields.sum::<usize>()
}
