//! Accepted host names of a listener, against DNS rebinding. A web page can make its own name resolve to any address
//! that its browser can reach, and then counts as a page of that listener. But its requests carry its own name as their
//! host.

use std::{net::IpAddr, sync::Arc};

use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_TYPE, HOST},
    uri::Authority,
};
use tonic::body::Body;

use super::{edge::Check, status};

/// The accepted names, besides `localhost` and addresses, which no page can have as its name.
#[derive(Debug, Clone)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    /// Accepts these names.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| bare(name).to_ascii_lowercase()).collect())
    }

    /// The refusal of a request with another host name. A request without a host does not come from a browser.
    fn objection<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let asked = request.uri().authority().map(Authority::as_str).map(str::as_bytes);
        let mut said = request.headers().get_all(HOST).into_iter().map(HeaderValue::as_bytes).chain(asked);
        if said.all(|host| host.is_empty() || self.has(host)) {
            return None;
        }
        let is_call =
            request.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
        if is_call {
            return Some(status::misdirected(MISDIRECTED).into_http());
        }
        let mut response = Response::new(Body::new(format!("{MISDIRECTED}\n")));
        *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        Some(response)
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
}

impl<B> Check<Request<B>> for Hosts {
    fn refuse(&self, request: &mut Request<B>) -> Option<Response<Body>> {
        self.objection(request)
    }
}

const MISDIRECTED: &str = "this listener does not answer under that name; use its address or localhost, or add the \
                           name to server.ops_hosts";

/// A name without its final dot.
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
        Hosts::new(&names).objection(&request).map(|refusal| refusal.status().as_u16())
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
