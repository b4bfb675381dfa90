//! Refuses calls by their headers, and calls without valid credentials. `src/auth/authenticator.rs` checks the
//! credentials, and `src/auth/caller.rs` applies the rules.

use std::sync::Arc;

use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{ALLOW, AUTHORIZATION, CONTENT_TYPE},
};
use tonic::{Status, body::Body};

use super::{Connection, Edge};
use crate::{
    auth::{Authenticator, Caller},
    rpc::{
        context::{Arrival, REQUEST_ID, request_id},
        routes::{plain_text, speaks_grpc},
        status,
    },
};

/// Load balancers and probes have no credentials, so health needs none. It tells nothing that a refusal would not.
const HEALTH: &str = "/grpc.health.v1.Health/";

impl Connection {
    /// The answer to a call that fails a check. A call that passes gets its caller.
    pub(super) fn refuse<B>(&self, request: &Request<B>, arrival: &mut Arrival) -> Option<Response<Body>> {
        let Edge { catalog, browsers, hosts, max_header_list, worker_pool, .. } = &*self.edge;
        // No web page can reach a Unix socket. On the callers' listener, browsers can send only calls by JSON.
        let hosts = hosts.as_ref().filter(|_| self.peer.is_of_network() && worker_pool.is_none());
        let refusal = hosts.and_then(|hosts| hosts.refuse(request));
        let refusal = refusal.or_else(|| browsers.as_ref()?.refuse(request));
        if refusal.is_some() {
            return refusal;
        }
        if header_list(request) > *max_header_list {
            return Some(status::headers_too_large(*max_header_list).into_http());
        }
        let path = request.uri().path();
        // Browsers and scrapers that ask for an unknown page expect 404, also where calls need credentials.
        if !speaks_grpc(request.headers()) && !catalog.has(path) {
            return Some(catalog.refuse(path, request.headers()));
        }
        if let Some(refusal) = not_grpc(request, self.json.is_some()).filter(|_| catalog.has_rpc(path)) {
            return Some(refusal);
        }
        if !self.is_guarded || catalog.is_page(path) || path.starts_with(HEALTH) {
            return None;
        }
        let authenticator = self.edge.authenticator.as_ref()?;
        match self.authenticate(authenticator, request, arrival) {
            Ok(caller) => {
                arrival.caller = Some(caller);
                None
            }
            Err(status) => {
                if let Some((worker_pool, rpc)) = self.called_pool(arrival.rpc) {
                    worker_pool.0.calls.refuse(rpc, status.code());
                }
                Some(status.into_http())
            }
        }
    }

    /// The caller. An authenticated one may call a method that this listener does not have, and gets a list of those
    /// that it has.
    ///
    /// # Errors
    /// UNAUTHENTICATED and PERMISSION_DENIED.
    fn authenticate<B>(
        &self,
        authenticator: &Authenticator,
        request: &Request<B>,
        arrival: &Arrival,
    ) -> Result<Arc<Caller>, Status> {
        let tokens = request.headers().get_all(AUTHORIZATION).into_iter().map(HeaderValue::as_bytes);
        let caller = authenticator.authenticate(self.certificate.as_ref(), tokens).and_then(|caller| {
            let allowed = match arrival.rpc {
                Some(rpc) => caller.may_call(rpc),
                None => Err(caller.denied("a method that no rule can name")),
            };
            match allowed {
                Err(denial) if self.edge.catalog.has_rpc(request.uri().path()) => Err(denial),
                // The route of an unknown method answers it.
                Ok(()) | Err(_) => Ok(caller),
            }
        });
        caller.map_err(|mut denial| {
            denial.name_credentials(self.peer.certificate_request, authenticator.accepts_tokens());
            authenticator.note(&denial);
            let request_id = request_id(request.headers().get(REQUEST_ID));
            status::denied(&denial, &request_id, Some(&self.peer.origin))
        })
    }
}

/// Size of the header list as HTTP/2 counts it: name, value and 32 bytes for each header. `:method` and `:scheme`,
/// which are short, are left out.
fn header_list<B>(request: &Request<B>) -> usize {
    let field = |name: usize, value: usize| name + value + 32;
    let authority = request.uri().authority().map_or(0, |authority| authority.as_str().len());
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| field(name.as_str().len(), value.len()));
    field(":path".len(), path) + field(":authority".len(), authority) + fields.sum::<usize>()
}

/// Media types of gRPC calls. Protobuf, the only format of messages, may be unsaid.
const MEDIA_TYPES: [&[u8]; 2] = [b"application/grpc", b"application/grpc+proto"];

/// The refusal of a request that is not a gRPC call. Without a preflight, a web page may send such requests to any
/// server that its browser can reach. They must have no effect.
fn not_grpc<B>(request: &Request<B>, has_json: bool) -> Option<Response<Body>> {
    let json = if has_json { "; a call by JSON is a POST of application/json" } else { "" };
    let refusal = |status| plain_text(status, &format!("a gRPC call is a POST of application/grpc by HTTP/2{json}"));
    if request.method() != Method::POST {
        let mut refusal = refusal(StatusCode::METHOD_NOT_ALLOWED);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(refusal);
    }
    let is_call = request.headers().get(CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes()));
    // HTTP/1.1 cannot carry the status of a call: the job would run, and the caller would not get the result.
    (!is_call || request.version() < Version::HTTP_2).then(|| refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

/// Whether a content type is that of gRPC with Protobuf, and not of gRPC-Web. Parameters may follow.
fn is_grpc(value: &[u8]) -> bool {
    let media_type = value.split(|byte| b"; ".contains(byte)).next().unwrap_or_default();
    MEDIA_TYPES.iter().any(|known| media_type.eq_ignore_ascii_case(known))
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
            not_grpc(&request, false).map(|refusal| refusal.status().as_u16())
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
