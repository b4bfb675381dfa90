//! Refuses calls by their headers, and calls without valid credentials. `src/auth/authenticator.rs` checks the
//! credentials, and `src/auth/caller.rs` applies the rules.

use std::{convert::Infallible, future::ready, sync::Arc};

use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{ALLOW, AUTHORIZATION, CONTENT_TYPE},
};
use hyper::service::Service as HttpService;
use tonic::{Status, body::Body};

use super::{Answer, Browsers, Hosts};
use crate::{
    auth::{Authenticator, Caller, Certificate, Denial, Rpc, Service},
    proto::{admin_service_server, job_service_server, worker_pool_service_server, worker_service_server},
    rpc::{
        CallerServices,
        context::{Arrival, REQUEST_ID, request_id},
        routes::{Catalog, speaks_grpc},
        status,
    },
};

/// Answers calls that fail a check, and passes on the others with their caller.
#[derive(Clone)]
pub struct Checks<S> {
    pub(super) hosts: Option<Hosts>,
    pub(super) browsers: Option<Browsers>,
    /// Largest header list, in bytes as HTTP/2 counts them.
    pub(super) max_header_list: usize,
    pub(super) catalog: Arc<Catalog>,
    /// `None` if these calls need no credentials.
    pub(super) authenticator: Option<Arc<Authenticator>>,
    pub(super) certificate: Option<Arc<Certificate>>,
    /// Counts denied calls; `None` on the operators' listener.
    pub(super) worker_pool: Option<Arc<CallerServices>>,
    pub(super) inner: S,
}

/// Marks the answer to a call that failed a check. It has no load report, which only accepted callers may see. Load
/// balancers then keep the previous weight (gRFC A58).
#[derive(Clone, Copy)]
pub(super) struct Refused;

impl<B, S> HttpService<Request<B>> for Checks<S>
where
    S: HttpService<Request<B>, Response = Response<Body>, Error = Infallible, Future = Answer>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, mut request: Request<B>) -> Answer {
        match self.refuse(&mut request) {
            Some(mut refusal) => {
                refusal.extensions_mut().insert(Refused);
                Box::pin(ready(Ok(refusal)))
            }
            None => self.inner.call(request),
        }
    }
}

impl<S> Checks<S> {
    fn refuse<B>(&self, request: &mut Request<B>) -> Option<Response<Body>> {
        let refusal = self.hosts.as_ref().and_then(|hosts| hosts.refuse(request));
        let refusal = refusal.or_else(|| self.browsers.as_ref()?.refuse(request));
        if refusal.is_some() {
            return refusal;
        }
        if header_list(request) > self.max_header_list {
            return Some(status::headers_too_large(self.max_header_list).into_http());
        }
        let method = request.extensions().get().and_then(|arrival: &Arrival| arrival.method);
        let path = request.uri().path();
        // Browsers and scrapers that ask for an unknown page expect 404, also where calls need credentials.
        if !self.catalog.has(path) && !speaks_grpc(request.headers()) {
            return Some(self.catalog.refuse(path, request.headers()));
        }
        if let Some(refusal) = not_grpc(request).filter(|_| method.is_some() || self.catalog.has_rpc(path)) {
            return Some(refusal);
        }
        let authenticator = self.authenticator.as_ref().filter(|_| !self.catalog.is_page(path))?;
        match self.authenticate(authenticator, request) {
            Ok(caller) => {
                if let Some(arrival) = request.extensions_mut().get_mut::<Arrival>() {
                    arrival.caller = caller;
                }
                None
            }
            Err(status) => {
                if let Some((worker_pool, method)) = self.worker_pool.as_ref().zip(method) {
                    worker_pool.0.calls.refuse(method, status.code());
                }
                Some(status.into_http())
            }
        }
    }

    /// The caller, for calls that need one. An authenticated caller may call an unknown method, and gets a list of the
    /// known ones.
    ///
    /// # Errors
    /// UNAUTHENTICATED and PERMISSION_DENIED.
    fn authenticate<B>(
        &self,
        authenticator: &Authenticator,
        request: &Request<B>,
    ) -> Result<Option<Arc<Caller>>, Status> {
        let path = request.uri().path();
        let target = target(path);
        if let Target::Open = target {
            return Ok(None);
        }
        let tokens = request.headers().get_all(AUTHORIZATION).into_iter().map(HeaderValue::as_bytes);
        let caller = authenticator.authenticate(self.certificate.as_deref(), tokens).and_then(|caller| {
            let allowed = match target {
                Target::Guarded(rpc) => caller.may_call(rpc),
                Target::Open | Target::Unknown => Err(caller.denied("a method that no rule can name")),
            };
            match allowed {
                Err(denial) if self.catalog.has_rpc(path) => Err(denial),
                Ok(()) | Err(_) => Ok(caller),
            }
        });
        caller.map(Some).map_err(|mut denial| {
            let peer = request.extensions().get().map(|arrival: &Arrival| &arrival.peer);
            if let (Denial::NoCredentials { certificate, .. }, Some(peer)) = (&mut denial, peer) {
                *certificate = peer.certificate_request;
            }
            authenticator.note(&denial);
            let request_id = request_id(request.headers().get(REQUEST_ID));
            status::denied(&denial, &request_id, peer.map(|peer| &peer.origin))
        })
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
/// The only format of messages, which may be unsaid.
const PROTOBUF: &[u8] = b"+proto";

/// The refusal of a request that is not a gRPC call. Without a preflight, a web page may send such requests to any
/// server that its browser can reach. They must have no effect.
fn not_grpc<B>(request: &Request<B>) -> Option<Response<Body>> {
    let refusal = |status| {
        let mut response = Response::new(Body::new("a gRPC call is a POST of application/grpc by HTTP/2\n".to_owned()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    };
    if request.method() != Method::POST {
        let mut refusal = refusal(StatusCode::METHOD_NOT_ALLOWED);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(refusal);
    }
    let is_call = request.headers().get(CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes()));
    // HTTP/1.1 cannot carry the status of a call: the job would run, and the caller would not get the result.
    (!is_call || request.version() < Version::HTTP_2).then(|| refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

/// Whether a media type is that of gRPC with Protobuf, and not of gRPC-Web.
fn is_grpc(value: &[u8]) -> bool {
    value.split_at_checked(MEDIA_TYPE.len()).is_some_and(|(name, rest)| {
        let is_protobuf = rest.split_at_checked(PROTOBUF.len()).filter(|(said, _)| said.eq_ignore_ascii_case(PROTOBUF));
        let rest = is_protobuf.map_or(rest, |(_, rest)| rest);
        name.eq_ignore_ascii_case(MEDIA_TYPE) && matches!(rest, [] | [b';' | b' ', ..])
    })
}

/// What a path refers to.
enum Target {
    /// Health: load balancers and probes have no credentials. They learn no more from health than from a refusal.
    Open,
    Guarded(Rpc),
    /// A path that no rule can name.
    Unknown,
}

fn target(path: &str) -> Target {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Target::Unknown;
    };
    let rpc = match service {
        "grpc.health.v1.Health" => return Target::Open,
        worker_pool_service_server::SERVICE_NAME => Rpc::of(Service::WorkerPool, method),
        job_service_server::SERVICE_NAME => Rpc::of(Service::Job, method),
        worker_service_server::SERVICE_NAME => Rpc::of(Service::Worker, method),
        admin_service_server::SERVICE_NAME => Rpc::of(Service::Admin, method),
        "grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection" => Some(Rpc::Reflection),
        "xds.service.orca.v3.OpenRcaService" => Some(Rpc::LoadReports),
        _ => None,
    };
    rpc.map_or(Target::Unknown, Target::Guarded)
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
            not_grpc(&request).map(|refusal| refusal.status().as_u16())
        };
        let status = |method, media_type| status_by(Version::HTTP_2, method, media_type);
        for valid in [
            "application/grpc",
            "application/grpc+proto",
            "Application/gRPC;charset=utf-8",
            "application/grpc+PROTO; a=b",
        ] {
            assert_eq!(status(Method::POST, Some(valid)), None, "{valid}");
        }
        for unsound in [
            "text/plain",
            "application/grpc-web",
            "application/grpcx",
            "a",
            "application/grpc+json",
            "application/grpc+proto2",
            "application/grpc+",
        ] {
            assert_eq!(status(Method::POST, Some(unsound)), Some(415), "{unsound}");
        }
        assert_eq!(status(Method::POST, None), Some(415));
        assert_eq!(status(Method::GET, Some("application/grpc")), Some(405));
        assert_eq!(status_by(Version::HTTP_11, Method::POST, Some("application/grpc")), Some(415));
    }
}
