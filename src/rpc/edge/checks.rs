//! Checks the headers of a call: each check passes the call on, or answers it.

use std::{convert::Infallible, future::ready, sync::Arc};

use futures_util::future::{BoxFuture, Either};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{ALLOW, CONTENT_TYPE},
};
use hyper::service::Service;
use tonic::body::Body;

use super::{answer::AnswerBody, route::Arrived};
use crate::rpc::{routes::Catalog, status};

/// A check of each call.
pub trait Check<R> {
    /// The answer to a call that fails the check; `None` if it passes. It has no load report, which only accepted
    /// callers may see. Load balancers then keep the previous weight (gRFC A58).
    fn refuse(&self, call: &mut R) -> Option<Response<Body>>;
}

/// Passes on calls that pass a check.
#[derive(Clone)]
pub struct Checked<C, S> {
    pub(super) check: C,
    pub(super) inner: S,
}

/// An answer that is ready. Boxed, so that other calls need no space for it.
pub(super) type Made = BoxFuture<'static, Result<Response<AnswerBody>, Infallible>>;

/// An optional check.
impl<R, C: Check<R>> Check<R> for Option<C> {
    fn refuse(&self, call: &mut R) -> Option<Response<Body>> {
        self.as_ref()?.refuse(call)
    }
}

impl<R, C, S> Service<R> for Checked<C, S>
where
    C: Check<R>,
    S: Service<R, Response = Response<AnswerBody>, Error = Infallible>,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Either<Made, S::Future>;

    fn call(&self, mut call: R) -> Self::Future {
        match self.check.refuse(&mut call) {
            Some(refusal) => Either::Left(Box::pin(ready(Ok(AnswerBody::new(refusal, None, None))))),
            None => Either::Right(self.inner.call(call)),
        }
    }
}

/// Limits the header list, in bytes as HTTP/2 counts them.
#[derive(Clone, Copy)]
pub struct HeaderSize(pub(super) usize);

impl<B> Check<Arrived<B>> for HeaderSize {
    fn refuse(&self, call: &mut Arrived<B>) -> Option<Response<Body>> {
        (header_list(&call.request) > self.0).then(|| status::headers_too_large(self.0).into_http())
    }
}

/// Size of the header list as HTTP/2 counts it: name, value and 32 bytes for each header.
fn header_list<B>(request: &Request<B>) -> usize {
    let field = |name: usize, value: usize| name + value + 32;
    let authority = request.uri().authority().map_or(0, |authority| authority.as_str().len());
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| field(name.as_str().len(), value.len()));
    field(":path".len(), path) + field(":authority".len(), authority) + fields.sum::<usize>()
}

const MEDIA_TYPE: &[u8] = b"application/grpc";

/// Accepts only gRPC calls to the path of a method. Without a preflight, a web page may send other requests to any
/// server that its browser can reach. Such requests must have no effect.
#[derive(Clone)]
pub struct GrpcOnly(pub(super) Arc<Catalog>);

impl<B> Check<Arrived<B>> for GrpcOnly {
    fn refuse(&self, call: &mut Arrived<B>) -> Option<Response<Body>> {
        let refusal = objection(&call.request)?;
        (call.method.is_some() || self.0.has_rpc(call.request.uri().path())).then_some(refusal)
    }
}

/// The refusal of a request that is not a gRPC call.
fn objection<B>(request: &Request<B>) -> Option<Response<Body>> {
    if request.method() != Method::POST {
        let mut refusal = refusal(StatusCode::METHOD_NOT_ALLOWED);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(refusal);
    }
    let is_call = request.headers().get(CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes()));
    // HTTP/1.1 cannot carry the status of a call: the job would run, and the caller would not get the result.
    (!is_call || request.version() < Version::HTTP_2).then(|| refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::new("a gRPC call is a POST of application/grpc by HTTP/2\n".to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Whether a media type is that of gRPC, and not of gRPC-Web.
fn is_grpc(value: &[u8]) -> bool {
    value.split_at_checked(MEDIA_TYPE.len()).is_some_and(|(name, rest)| {
        name.eq_ignore_ascii_case(MEDIA_TYPE) && matches!(rest, [] | [b'+' | b';' | b' ', ..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_posts_of_grpc_are_calls() {
        let status_by = |version: Version, method: Method, media_type: Option<&str>| {
            let mut request = Request::new(());
            *request.method_mut() = method;
            *request.version_mut() = version;
            if let Some(media_type) = media_type {
                request.headers_mut().insert(CONTENT_TYPE, media_type.parse().unwrap());
            }
            objection(&request).map(|refusal| refusal.status().as_u16())
        };
        let status = |method, media_type| status_by(Version::HTTP_2, method, media_type);
        for valid in ["application/grpc", "application/grpc+proto", "Application/gRPC;charset=utf-8"] {
            assert_eq!(status(Method::POST, Some(valid)), None, "{valid}");
        }
        for unsound in [Some("text/plain"), Some("application/grpc-web"), Some("application/grpcx"), Some("a"), None] {
            assert_eq!(status(Method::POST, unsound), Some(415), "{unsound:?}");
        }
        assert_eq!(status(Method::GET, Some("application/grpc")), Some(405));
        assert_eq!(status_by(Version::HTTP_11, Method::POST, Some("application/grpc")), Some(415));
    }
}
