//! Calls from web pages: CORS, gRPC-Web, and accepted host names against DNS rebinding.

use std::{convert::Infallible, fmt, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::{CONTENT_TYPE, HOST, ORIGIN},
    request::Parts,
    uri::Authority,
};
use tonic::{Status, body::Body};
use tonic_web::GrpcWebLayer;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;

use super::{Edge, Front, answer::AnswerBody};
use crate::{
    model::Reason,
    rpc::{
        routes::{plain_text, speaks_grpc},
        status,
    },
};

/// Headers that a page may send.
const SENT: [&str; 12] = [
    "content-type",
    "x-grpc-web",
    "x-user-agent",
    "grpc-timeout",
    "connect-protocol-version",
    "connect-timeout-ms",
    "accept",
    "authorization",
    "x-request-id",
    "traceparent",
    "tracestate",
    "baggage",
];
/// Response headers that a page may read.
const READ: [&str; 8] = [
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    "grpc-retry-pushback-ms",
    "endpoint-load-metrics-bin",
    "connect-content-encoding",
    "retry-after",
    "x-request-id",
];
/// Time that a browser may cache the permission.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The web pages that may call, by origin.
#[derive(Clone)]
pub struct Browsers {
    cors: CorsLayer,
    origins: Arc<[HeaderValue]>,
}

impl Browsers {
    /// Pages of these origins, such as `https://app.example`; `None` if the list is empty.
    pub fn of(origins: &[String]) -> Option<Self> {
        let origins: Vec<_> = origins.iter().filter_map(|origin| HeaderValue::try_from(origin).ok()).collect();
        if origins.is_empty() {
            return None;
        }
        let cors = CorsLayer::new()
            .allow_origin(origins.clone())
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(SENT.map(HeaderName::from_static))
            .expose_headers(READ.map(HeaderName::from_static))
            .max_age(MAX_AGE);
        Some(Self { cors, origins: origins.into() })
    }

    /// Whether a request comes from a web page: a gRPC-Web call or its preflight.
    pub(super) fn apply_to<B>(&self, request: &Request<B>) -> bool {
        let content_type = request.headers().get(CONTENT_TYPE);
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc-web"))
            || request.method() == Method::OPTIONS
    }

    /// The refusal of a request from a page of another origin. Browsers refuse them too, unless the page's own host
    /// name resolves to this address. The answer to a preflight request denies the permission.
    pub(super) fn refuse<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let mut said = request.headers().get_all(ORIGIN).into_iter();
        let is_foreign = said.any(|origin| !self.origins.contains(origin)) && request.method() != Method::OPTIONS;
        is_foreign.then(|| {
            let message = "pages of this origin may not call; ask the operator to add it to server.grpc_web_origins";
            status::saying(Reason::Misdirected, message).into_http()
        })
    }

    /// The answer to a call, with the permission for its page to read it.
    pub(super) async fn answer<B, F>(
        &self,
        call: impl FnMut(Request<B>) -> F,
        request: Request<B>,
    ) -> Result<Response<Body>, Infallible>
    where
        F: Future<Output = Result<Response<Body>, Infallible>>,
    {
        self.cors.layer(service_fn(call)).oneshot(request).await
    }

    /// Translates a gRPC-Web call to gRPC.
    pub(super) fn translate<B>(&self, front: Front, mut request: Request<B>) -> Translated
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send + fmt::Display> + Send + 'static,
    {
        // gRPC-Web has its status in the body, so the call may use any version of HTTP.
        *request.version_mut() = Version::HTTP_2;
        let memory = Arc::clone(&front.0.memory);
        let grpc = service_fn(move |request: Request<Body>| front.answer(request));
        let answer = self.cors.layer(GrpcWebLayer::new().layer(grpc)).oneshot(request);
        Box::pin(answer.map(|answer| answer.map(|answer| AnswerBody::new(answer, None, Some(memory)))))
    }
}

/// The answer to a web page. Boxed, so that other calls need no space for it.
pub(super) type Translated = BoxFuture<'static, Result<Response<AnswerBody>, Infallible>>;

/// Accepted host names of a listener. `localhost` and IP addresses are always accepted, because no web page has them as
/// its host name.
///
/// A web page can make its own host name resolve to any address that its browser can reach (DNS rebinding). The browser
/// then treats it as a page of that listener. But its requests have the page's own host name.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    /// Accepts these names.
    pub fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| bare(name).to_ascii_lowercase()).collect())
    }

    fn has(&self, host: &[u8]) -> bool {
        let Ok(host) = str::from_utf8(host) else { return false };
        let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
        let host = bare(host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(host, _)| host));
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        address.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|name| host.eq_ignore_ascii_case(name))
    }

    /// The refusal of a request with another host name. A request without a host name does not come from a browser.
    pub(super) fn refuse<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        if named(request.uri(), request.headers()).all(|host| host.is_empty() || self.has(host)) {
            return None;
        }
        Some(if speaks_grpc(request.headers()) {
            status::saying(Reason::Misdirected, MISDIRECTED).into_http()
        } else {
            plain_text(StatusCode::MISDIRECTED_REQUEST, MISDIRECTED)
        })
    }
}

/// The host names of a request.
fn named<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
    let asked = uri.authority().map(Authority::as_str).map(str::as_bytes);
    headers.get_all(HOST).into_iter().map(HeaderValue::as_bytes).chain(asked)
}

impl Edge {
    /// Refuses a call by HTTP and JSON from a page of another site. Its browser may have credentials, such as a
    /// certificate. It sends a POST of JSON only with a permission, or if the page has made its own name resolve to
    /// this address (DNS rebinding), and names the origin. It sends any GET, and names the origin only over TLS.
    ///
    /// # Errors
    /// PERMISSION_DENIED.
    pub(super) fn refuse_page(&self, head: &Parts, only_reads: bool) -> Result<(), Status> {
        let (headers, is_get) = (&head.headers, head.method == Method::GET);
        let mut origins = headers.get_all(ORIGIN).into_iter().peekable();
        let site = headers.get("sec-fetch-site").filter(|_| origins.peek().is_none());
        let is_foreign = site.is_some_and(|site| site != "same-origin" && site != "none");
        if is_foreign || !origins.all(|origin| self.has_page(origin, head)) {
            return Err(status::saying(Reason::Misdirected, "pages of this origin may not call here"));
        }
        if !only_reads && !self.pages_act && headers.contains_key(ORIGIN) {
            return Err(status::saying(
                Reason::Misdirected,
                "pages only read here; the operator may set ops.page = act",
            ));
        }
        let hosts = self.hosts.as_ref().filter(|_| is_get && self.worker_pool.is_some());
        if hosts.is_some_and(|hosts| !named(&head.uri, headers).all(|host| hosts.has(host))) {
            let message = "under this name, a web page may be calling; call by POST, or use the address or localhost";
            return Err(status::saying(Reason::Misdirected, message));
        }
        Ok(())
    }

    /// Whether pages of this origin may call: those that the operator allows, and the operators' own.
    fn has_page(&self, origin: &HeaderValue, head: &Parts) -> bool {
        if self.worker_pool.is_some() {
            return self.browsers.as_ref().is_some_and(|browsers| browsers.origins.contains(origin));
        }
        let hosts = self.hosts.clone().unwrap_or_default();
        let host = origin.as_bytes().splitn(3, |byte| *byte == b'/').nth(2).unwrap_or_default();
        hosts.has(host) && named(&head.uri, &head.headers).all(|named| named.eq_ignore_ascii_case(host))
    }
}

const MISDIRECTED: &str = "this listener does not answer under that name; use its address or localhost, or add the \
                           name to server.ops_hosts";

/// A host name without its final dot.
fn bare(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(names: &[&str], hosts: &[&str], uri: &str) -> Option<u16> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut request = Request::builder().uri(uri).body(()).unwrap();
        for host in hosts {
            request.headers_mut().append(HOST, host.parse().unwrap());
        }
        Hosts::new(&names).refuse(&request).map(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn addresses_localhost_and_names_of_the_listener_are_let_in() {
        let valid = ["127.0.0.1", "127.0.0.1:7071", "[::1]:7071", "10.1.2.3:1", "localhost", "LocalHost.:7071", ""];
        for host in valid.into_iter().chain(["ops.example:7071", "OPS.example."]) {
            assert_eq!(refused(&["Ops.Example."], &[host], "/metrics"), None, "{host}");
        }
        assert_eq!(refused(&[], &[], "/metrics"), None, "HTTP/1.0 knows no host");
        assert_eq!(refused(&[], &["localhost:1"], "http://127.0.0.1:1/metrics"), None);
    }

    #[test]
    fn other_names_are_refused_wherever_they_are_said() {
        let evil =
            ["evil.example", "evil.example:7071", "localhost.evil.example", "127.0.0.1.evil.example", "ops", "a b"];
        for host in evil.into_iter().chain(["localhost@evil.example", "[::1].evil.example", "\u{7f}"]) {
            let Ok(value) = HeaderValue::from_str(host) else { continue };
            assert_eq!(refused(&["ops.example"], &[value.to_str().unwrap()], "/metrics"), Some(421), "{host}");
        }
        assert_eq!(refused(&[], &["localhost"], "http://evil.example/metrics"), Some(421));
        assert_eq!(refused(&[], &["localhost", "evil.example"], "/metrics"), Some(421));
    }
}
