//! The services and pages of a listener, and the answer to unknown paths.

use http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE};
use tonic::{Status, body::Body};

use super::{reflection::DESCRIPTORS, status};
use crate::model::Reason;

/// The services of one listener with their methods, and the pages beside them.
#[derive(Debug)]
pub(super) struct Catalog {
    services: Vec<Service>,
    pages: Vec<&'static str>,
}

#[derive(Debug)]
struct Service {
    name: String,
    methods: Vec<String>,
}

impl Catalog {
    /// The services of these names, from their descriptors.
    pub(super) fn new(names: &[&str], pages: Vec<&'static str>) -> Self {
        let service = |name: &&str| {
            let service = DESCRIPTORS.get_service_by_name(name).expect("every service has a descriptor");
            let methods = service.methods().map(|method| method.name().to_owned()).collect();
            Service { name: (*name).to_owned(), methods }
        };
        Self { services: names.iter().map(service).collect(), pages }
    }

    /// Whether a path exists.
    pub(super) fn has(&self, path: &str) -> bool {
        self.has_rpc(path) || self.is_page(path)
    }

    /// Whether a path is a method.
    pub(super) fn has_rpc(&self, path: &str) -> bool {
        let method = path.strip_prefix('/').and_then(|path| path.rsplit_once('/'));
        method.is_some_and(|(service, method)| {
            let service = self.services.iter().find(|served| served.name == service);
            service.is_some_and(|service| service.methods.iter().any(|served| served == method))
        })
    }

    /// Whether a path is a page.
    pub(super) fn is_page(&self, path: &str) -> bool {
        self.pages.contains(&path)
    }

    /// The answer to an unknown path.
    pub(super) fn refuse(&self, path: &str, headers: &HeaderMap) -> Response<Body> {
        let is_grpc = |value: &http::HeaderValue| value.as_bytes().starts_with(b"application/grpc");
        if headers.get(CONTENT_TYPE).is_some_and(is_grpc) {
            return self.unimplemented(path).into_http();
        }
        let pages = if self.pages.is_empty() { "none".into() } else { self.pages.join(" ") };
        let text = format!("unknown path; pages: {pages}; gRPC services: {}\n", self.service_names());
        let mut response = Response::new(Body::new(text));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    }

    fn unimplemented(&self, path: &str) -> Status {
        let path = path.strip_prefix('/').unwrap_or(path);
        let service = path.rsplit_once('/').map_or(path, |(service, _)| service);
        let Some(Service { name, methods }) = self.services.iter().find(|served| served.name == service) else {
            let listener = if self.pages.is_empty() { "here" } else { "on the operators' listener" };
            let message = format!("no such service {listener}; there are {}", self.service_names());
            return status::unimplemented(Reason::UnknownService, message);
        };
        let message = format!("no such method; {name} has {}", methods.join(", "));
        status::unimplemented(Reason::UnknownMethod, message)
    }

    fn service_names(&self) -> String {
        self.services.iter().map(|service| service.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}
