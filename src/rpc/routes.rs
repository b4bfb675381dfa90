//! Builds the services of both listeners, and answers calls to unknown paths. `src/rpc.rs` explains how to add an RPC.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use prost_reflect::ServiceDescriptor;
use tonic::{Status, body::Body, codec::CompressionEncoding, service::Routes};
use tonic_reflection::pb::v1::server_reflection_server::ServerReflectionServer;
use tower::ServiceExt;

use super::{
    AccessControl, Admin, Browsers, CallerServices, Edge, Health, Load, ServiceState,
    job_service::CREATE_JOB,
    load::Orca,
    reflection::{DESCRIPTORS, Reflection},
    status,
};
use crate::{
    model::Reason,
    proto::{
        MAX_ENVELOPE,
        admin_service_server::{self, AdminServiceServer},
        health::health_server::{self, HealthServer},
        job_service_server::{self, JobServiceServer},
        worker_pool_service_server::{self, WorkerPoolServiceServer},
        worker_service_server::{self, WorkerServiceServer},
        xds::service::orca::v3::open_rca_service_server::{self, OpenRcaServiceServer},
    },
};

const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Largest header list of operators' calls, which have only the headers of their client.
const MAX_OPS_HEADER_LIST: usize = 16 << 10;

/// Largest message of operators' calls: the codec's default, although these messages are small.
const MAX_OPS_MESSAGE: usize = 4 << 20;

/// The services for callers: worker pool, detached jobs, health, reports of `load` and reflection, for web pages of
/// `browsers` too. `max_header_list` limits the headers of a call, in bytes as HTTP/2 counts them.
#[must_use]
pub fn public_services(
    worker_pool: CallerServices,
    health: Health,
    load: Load,
    browsers: Option<Browsers>,
    max_header_list: usize,
) -> Edge {
    let ServiceState { largest_message: max_message, ref access, ref phase, .. } = *worker_pool.0;
    let authenticator = access.authenticator.clone();
    // Before a message is decompressed, nothing else tells its size.
    let jobs = |max_message| {
        JobServiceServer::new(worker_pool.clone())
            .max_decoding_message_size(max_message)
            // A job and its output have bounds of their own.
            .max_encoding_message_size(usize::MAX)
            .accept_compressed(CompressionEncoding::Gzip)
    };
    // The service reads its messages itself, within the same bound.
    let workers = WorkerServiceServer::new(worker_pool.clone())
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(CompressionEncoding::Gzip);
    let names = [
        worker_pool_service_server::SERVICE_NAME,
        worker_service_server::SERVICE_NAME,
        job_service_server::SERVICE_NAME,
        open_rca_service_server::SERVICE_NAME,
    ];
    let routes = Routes::new(HealthServer::new(health))
        .add_service(OpenRcaServiceServer::new(Orca::new(load, phase.clone(), access.clone())))
        .add_service(workers)
        .add_service(jobs(MAX_ENVELOPE.min(max_message)))
        .into_axum_router()
        .route_service(
            CREATE_JOB,
            jobs(max_message).map_request(|call: Request<axum::body::Body>| call.map(Body::new)),
        );
    let (routes, names) = with_reflection(routes.into(), &names);
    Edge {
        worker_pool: Some(worker_pool),
        others: routes.prepare(),
        catalog: Arc::new(Catalog::new(&names, Vec::new())),
        browsers,
        authenticator,
        hosts: None,
        max_header_list,
        max_message,
    }
}

/// The RPCs of callers that operators may call, too. They only read.
const READS: [(&str, &[&str]); 2] = [
    (worker_pool_service_server::SERVICE_NAME, &["Stats", "WatchStats"]),
    (job_service_server::SERVICE_NAME, &["GetJob", "ListJobs"]),
];

/// The services for operators: administration, what `reads` of the callers' services, health and reflection, and HTTP
/// pages.
#[must_use]
pub fn ops_services(admin: Admin, reads: CallerServices, health: Health, pages: Pages, access: &AccessControl) -> Edge {
    let Pages { router, paths } = pages;
    let routes = Routes::new(HealthServer::new(health))
        .add_service(AdminServiceServer::new(admin))
        .add_service(WorkerPoolServiceServer::new(reads.clone()))
        .add_service(JobServiceServer::new(reads));
    let [(worker_pool, _), (jobs, _)] = READS;
    let (routes, names) = with_reflection(routes, &[admin_service_server::SERVICE_NAME, worker_pool, jobs]);
    Edge {
        worker_pool: None,
        others: Routes::from(routes.into_axum_router().merge(router)).prepare(),
        catalog: Arc::new(Catalog { partial: &READS, ..Catalog::new(&names, paths) }),
        browsers: None,
        authenticator: access.authenticator.clone().filter(|authenticator| authenticator.guards_ops()),
        hosts: None,
        max_header_list: MAX_OPS_HEADER_LIST,
        max_message: MAX_OPS_MESSAGE,
    }
}

/// HTTP pages in addition to gRPC.
#[derive(Debug, Default)]
pub struct Pages {
    /// Their handlers.
    pub router: axum::Router,
    /// Their paths.
    pub paths: Vec<&'static str>,
}

/// Adds both versions of reflection, for the health service, reflection itself, and the services with these names.
fn with_reflection<'a>(routes: Routes, names: &[&'a str]) -> (Routes, Vec<&'a str>) {
    let ours = [health_server::SERVICE_NAME, REFLECTION, REFLECTION_ALPHA];
    let names: Vec<_> = names.iter().copied().chain(ours).collect();
    let service = ServerReflectionServer::new(Reflection::new(&names));
    let path = |version: &str| format!("/{version}/ServerReflectionInfo");
    // The versions differ only in their names.
    let uri = Uri::try_from(path(REFLECTION)).expect("a path is a URI");
    let alpha = service.clone().map_request(move |mut request: Request<axum::body::Body>| {
        *request.uri_mut() = uri.clone();
        request
    });
    let router = routes.add_service(service).into_axum_router().route_service(&path(REFLECTION_ALPHA), alpha);
    (Routes::from(router), names)
}

/// The services of one listener with their methods, and its HTTP pages.
#[derive(Debug)]
pub(super) struct Catalog {
    services: Vec<ServiceDescriptor>,
    /// Services with some of their methods only.
    partial: &'static [(&'static str, &'static [&'static str])],
    pages: Vec<&'static str>,
}

impl Catalog {
    /// The services with these names, from their descriptors.
    pub(super) fn new(names: &[&str], pages: Vec<&'static str>) -> Self {
        let service = |name: &&str| DESCRIPTORS.get_service_by_name(name).expect("every service has a descriptor");
        Self { services: names.iter().map(service).collect(), partial: &[], pages }
    }

    /// Whether a path exists.
    pub(super) fn has(&self, path: &str) -> bool {
        self.has_rpc(path) || self.is_page(path)
    }

    /// Whether a path is a method.
    pub(super) fn has_rpc(&self, path: &str) -> bool {
        let method = path.strip_prefix('/').and_then(|path| path.rsplit_once('/'));
        method.is_some_and(|(service, name)| {
            self.service(service).is_some_and(|service| self.methods(service).iter().any(|method| method == name))
        })
    }

    /// Whether a path is a page.
    pub(super) fn is_page(&self, path: &str) -> bool {
        self.pages.contains(&path)
    }

    /// The answer to an unknown path.
    pub(super) fn refuse(&self, path: &str, headers: &HeaderMap) -> Response<Body> {
        if speaks_grpc(headers) {
            return self.unimplemented(path).into_http();
        }
        let pages = if self.pages.is_empty() { "none".into() } else { self.pages.join(" ") };
        let text = format!("unknown path; pages: {pages}; gRPC calls are a POST of application/grpc by HTTP/2\n");
        let mut response = Response::new(Body::new(text));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    }

    fn unimplemented(&self, path: &str) -> Status {
        let path = path.strip_prefix('/').unwrap_or(path);
        let service = path.rsplit_once('/').map_or(path, |(service, _)| service);
        let Some(service) = self.service(service) else {
            let listener = if self.pages.is_empty() { "here" } else { "on the operators' listener" };
            let message = format!("no such service {listener}; there are {}", self.service_names());
            return status::saying(Reason::UnknownService, message);
        };
        let methods = self.methods(service).join(", ");
        if service.methods().any(|method| path.rsplit('/').next() == Some(method.name())) {
            let message = format!("{path} is for callers; the operators' listener has {methods} of that service");
            return status::saying(Reason::UnknownService, message);
        }
        let message = format!("no such method; {} has {methods}", service.full_name());
        status::saying(Reason::UnknownMethod, message)
    }

    fn methods(&self, service: &ServiceDescriptor) -> Vec<String> {
        let part = self.partial.iter().find(|(name, _)| *name == service.full_name()).map(|(_, methods)| *methods);
        let methods = service.methods().map(|method| method.name().to_owned());
        methods.filter(|method| part.is_none_or(|part| part.contains(&method.as_str()))).collect()
    }

    fn service(&self, name: &str) -> Option<&ServiceDescriptor> {
        self.services.iter().find(|service| service.full_name() == name)
    }

    fn service_names(&self) -> String {
        self.services.iter().map(|service| service.full_name()).collect::<Vec<_>>().join(", ")
    }
}

/// Whether a request is a gRPC or gRPC-Web call.
pub(super) fn speaks_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
