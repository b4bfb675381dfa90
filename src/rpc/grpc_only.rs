//! Rejects requests that are not gRPC calls. A web page may send any other request to any server that its browser can
//! reach, without a preflight. Such a request must not have an effect.

use std::sync::Arc;

use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{ALLOW, CONTENT_TYPE},
};
use tonic::body::Body;

use super::{
    catalog::Catalog,
    edge::{Arrived, Check},
};

const MEDIA_TYPE: &[u8] = b"application/grpc";

/// Accepts only gRPC calls at the path of a method.
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
    // HTTP/1.1 cannot carry the status of a call: its job would run, and the caller would not learn the result.
    (!is_call || request.version() < Version::HTTP_2).then(|| refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::new("a gRPC call is a POST of application/grpc by HTTP/2\n".to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Whether a media type is gRPC's, and not gRPC-Web's.
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
