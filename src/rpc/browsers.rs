//! CORS and gRPC-Web: calls from web pages.

use std::{convert::Infallible, error::Error, fmt, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, Version, header};
use tonic::body::Body;
use tonic_web::GrpcWebLayer;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;

use super::{answer_body::AnswerBody, edge::Check, status};

/// Headers that a page may send.
const SENT: [&str; 9] = [
    "content-type",
    "x-grpc-web",
    "x-user-agent",
    "grpc-timeout",
    "authorization",
    "x-request-id",
    "traceparent",
    "tracestate",
    "baggage",
];
/// Response headers that a page may read.
const READ: [&str; 6] = [
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    "grpc-retry-pushback-ms",
    "endpoint-load-metrics-bin",
    "x-request-id",
];
/// Time for which a browser may cache the permission.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The web pages that may call.
#[derive(Clone)]
pub struct Browsers {
    cors: CorsLayer,
    origins: Arc<[HeaderValue]>,
}

type Failure = Box<dyn Error + Send + Sync>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Browsers {
    /// Pages of these origins, such as `https://app.example`; `None` if the list is empty.
    #[must_use]
    pub fn of(origins: &[String]) -> Option<Self> {
        let origins: Vec<_> = origins.iter().filter_map(|origin| HeaderValue::try_from(origin).ok()).collect();
        if origins.is_empty() {
            return None;
        }
        let cors = CorsLayer::new()
            .allow_origin(origins.clone())
            .allow_methods([Method::POST])
            .allow_headers(SENT.map(HeaderName::from_static))
            .expose_headers(READ.map(HeaderName::from_static))
            .max_age(MAX_AGE);
        Some(Self { cors, origins: origins.into() })
    }

    /// The refusal of a request from a page of another origin. Browsers refuse it, too, except where the page's own
    /// name resolves to this address. A preflight request learns that it is not allowed.
    fn objection<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let mut said = request.headers().get_all(header::ORIGIN).into_iter();
        let is_foreign = said.any(|origin| !self.origins.contains(origin)) && request.method() != Method::OPTIONS;
        is_foreign.then(|| {
            let message = "pages of this origin may not call; ask the operator to add it to server.grpc_web_origins";
            status::misdirected(message).into_http()
        })
    }

    /// Whether a request comes from a page: gRPC-Web, or its preflight.
    pub(super) fn apply_to<B>(&self, request: &Request<B>) -> bool {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc-web"))
            || request.method() == Method::OPTIONS
    }

    /// Lets `front` answer a request from a page.
    pub(super) fn answer<B, S>(&self, front: S, mut request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Failure> + Send + fmt::Display,
        S: hyper::service::Service<Request<Body>, Response = Response<AnswerBody>, Error = Infallible> + Send + 'static,
        S::Future: Send + 'static,
    {
        // gRPC-Web has its status in the body, so that the call may have come by any version of HTTP.
        *request.version_mut() = Version::HTTP_2;
        let front = service_fn(move |request| front.call(request));
        Box::pin(self.cors.layer(GrpcWebLayer::new().layer(front)).oneshot(request))
    }
}

impl<B> Check<Request<B>> for Browsers {
    fn refuse(&self, request: &mut Request<B>) -> Option<Response<Body>> {
        self.objection(request)
    }
}
