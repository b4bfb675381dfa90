//! Builds the services of both listeners from their parts.

use std::sync::Arc;

use http::{Request, Uri};
use tonic::{codec::CompressionEncoding, service::Routes};
use tonic_reflection::pb::v1::server_reflection_server::ServerReflectionServer;
use tower::ServiceExt;

use super::{
    Admin, Browsers, Calls, Edge, Guard, Health, Load, Orca, WorkerPool,
    catalog::Catalog,
    edge::{Hot, MakeWorkerPool, Sizes},
    reflection::Reflection,
};
use crate::proto::{
    MAX_ENVELOPE,
    admin_service_server::{self, AdminServiceServer},
    health::health_server::{self, HealthServer},
    job_service_server::{self, JobServiceServer},
    worker_pool_service_server::{self, WorkerPoolServiceServer},
    worker_service_server::{self, WorkerServiceServer},
    xds::service::orca::v3::open_rca_service_server::{self, OpenRcaServiceServer},
};

const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Largest headers of operators' calls, which carry only their client's own.
const MAX_OPS_HEADER_LIST: usize = 16 << 10;

/// Largest message of operators' calls: the codec's default, though none needs more than a few bytes.
const MAX_OPS_MESSAGE: usize = 4 << 20;

/// Size limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload of one job, in bytes.
    pub max_payload: usize,
    /// Largest headers of one call, in bytes as HTTP/2 counts them.
    pub max_header_list: usize,
}

/// The services for callers.
pub struct PublicServices {
    /// The worker pool.
    pub worker_pool: WorkerPool,
    /// Health.
    pub health: Health,
    /// Load reports out of band.
    pub orca: Orca,
    /// The same load, if answers carry it.
    pub load_in_answers: Option<Load>,
    /// Records the durations of calls.
    pub calls: Calls,
    /// Web pages that may call.
    pub browsers: Option<Browsers>,
    /// Size limits.
    pub limits: Limits,
    /// Authorization of calls.
    pub guard: Guard,
}

/// The services for callers: worker pool, health, load reports and reflection.
#[must_use]
pub fn public_services(services: PublicServices) -> Edge {
    let PublicServices { worker_pool, health, orca, load_in_answers, calls, browsers, limits, guard } = services;
    let largest = limits.max_payload.saturating_add(MAX_ENVELOPE);
    let jobs = JobServiceServer::new(worker_pool.clone())
        .max_decoding_message_size(largest)
        // A job and its output, each within bounds of its own.
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd);
    // It reads its messages itself, within the same bound.
    let workers = WorkerServiceServer::new(worker_pool.clone())
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd);
    let make: MakeWorkerPool = Arc::new(move || {
        WorkerPoolServiceServer::new(worker_pool.clone())
            .max_decoding_message_size(largest)
            // Output is bounded where it is produced.
            .max_encoding_message_size(usize::MAX)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd)
    });
    let names = [
        worker_pool_service_server::SERVICE_NAME,
        worker_service_server::SERVICE_NAME,
        job_service_server::SERVICE_NAME,
        open_rca_service_server::SERVICE_NAME,
    ];
    let routes = Routes::new(HealthServer::new(health))
        .add_service(OpenRcaServiceServer::new(orca))
        .add_service(workers)
        .add_service(jobs);
    let (routes, names) = with_reflection(routes, &names);
    let catalog = Catalog::new(&names, Vec::new());
    let sizes = Sizes { header_list: limits.max_header_list, message: largest };
    let hot = Hot::new(make, calls, load_in_answers);
    let edge = Edge::new(Some(hot), routes.prepare(), catalog, sizes);
    edge.with_browsers(browsers).guarded_by(guard.entrance())
}

/// The services for operators: administration, health and reflection, and HTTP pages.
#[must_use]
pub fn ops_services(admin: Admin, health: Health, pages: Pages, guard: &Guard) -> Edge {
    let Pages { router, paths } = pages;
    let routes = Routes::new(HealthServer::new(health)).add_service(AdminServiceServer::new(admin));
    let (routes, names) = with_reflection(routes, &[admin_service_server::SERVICE_NAME]);
    let routes = Routes::from(routes.into_axum_router().merge(router));
    let catalog = Catalog::new(&names, paths);
    let sizes = Sizes { header_list: MAX_OPS_HEADER_LIST, message: MAX_OPS_MESSAGE };
    let edge = Edge::new(None, routes.prepare(), catalog, sizes);
    edge.guarded_by(guard.ops_entrance())
}

/// HTTP pages beside gRPC.
#[derive(Debug, Default)]
pub struct Pages {
    /// Their handlers.
    pub router: axum::Router,
    /// Their paths.
    pub paths: Vec<&'static str>,
}

/// Adds reflection, in both versions, of health, of itself and of the services of these names.
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
