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
    worker_pool_service_server::{self, WorkerPoolServiceServer},
    xds::service::orca::v3::open_rca_service_server::{self, OpenRcaServiceServer},
};

const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Operators' calls bring the headers of their client and no others.
const OPS_HEADER_LIST: usize = 16 << 10;

/// No call of an operator is of more than a few bytes; this is the codec's own limit.
const OPS_MESSAGE: usize = 4 << 20;

/// Sizes of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most payload bytes of one job.
    pub max_payload: usize,
    /// Most bytes of the headers of one call, as HTTP/2 counts them.
    pub max_header_list: usize,
}

/// The services that callers reach.
pub struct PublicServices {
    /// Jobs.
    pub worker_pool: WorkerPool,
    /// Health.
    pub health: Health,
    /// The load, out of band.
    pub orca: Orca,
    /// The same load, where the answers tell it too.
    pub load_in_answers: Option<Load>,
    /// Takes what calls took.
    pub calls: Calls,
    /// The pages that may call by gRPC-Web.
    pub browsers: Option<Browsers>,
    /// Sizes of messages.
    pub limits: Limits,
    /// Who is let in.
    pub guard: Guard,
}

/// What callers reach: the worker pool, health, load reports and reflection.
#[must_use]
pub fn public_services(services: PublicServices) -> Edge {
    let PublicServices { worker_pool, health, orca, load_in_answers, calls, browsers, limits, guard } = services;
    let make: MakeWorkerPool = Arc::new(move || {
        WorkerPoolServiceServer::new(worker_pool.clone())
            .max_decoding_message_size(limits.max_payload.saturating_add(MAX_ENVELOPE))
            // What a kind may put out is bounded where it is made.
            .max_encoding_message_size(usize::MAX)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd)
    });
    let names = [worker_pool_service_server::SERVICE_NAME, open_rca_service_server::SERVICE_NAME];
    let routes = Routes::new(HealthServer::new(health)).add_service(OpenRcaServiceServer::new(orca));
    let (routes, names) = with_reflection(routes, &names);
    let catalog = Catalog::new(&names, Vec::new());
    let sizes = Sizes { header_list: limits.max_header_list, message: limits.max_payload.saturating_add(MAX_ENVELOPE) };
    let hot = Hot::new(make, calls, load_in_answers);
    let edge = Edge::new(Some(hot), routes.prepare(), catalog, sizes);
    edge.with_browsers(browsers).guarded_by(guard.entrance())
}

/// What operators reach: steering, health and reflection, and pages for tools that speak HTTP.
#[must_use]
pub fn ops_services(admin: Admin, health: Health, pages: Pages, guard: &Guard) -> Edge {
    let Pages { router, paths } = pages;
    let routes = Routes::new(HealthServer::new(health)).add_service(AdminServiceServer::new(admin));
    let (routes, names) = with_reflection(routes, &[admin_service_server::SERVICE_NAME]);
    let routes = Routes::from(routes.into_axum_router().merge(router));
    let catalog = Catalog::new(&names, paths);
    let sizes = Sizes { header_list: OPS_HEADER_LIST, message: OPS_MESSAGE };
    let edge = Edge::new(None, routes.prepare(), catalog, sizes);
    edge.guarded_by(guard.ops_entrance())
}

/// Pages that are served beside gRPC.
#[derive(Debug, Default)]
pub struct Pages {
    /// Their handlers.
    pub router: axum::Router,
    /// Their paths.
    pub paths: Vec<&'static str>,
}

/// Adds reflection, in both of its versions, of health, of itself and of the services of these names.
fn with_reflection<'a>(routes: Routes, names: &[&'a str]) -> (Routes, Vec<&'a str>) {
    let ours = [health_server::SERVICE_NAME, REFLECTION, REFLECTION_ALPHA];
    let names: Vec<_> = names.iter().copied().chain(ours).collect();
    let service = ServerReflectionServer::new(Reflection::new(&names));
    let path = |version: &str| format!("/{version}/ServerReflectionInfo");
    // The versions differ in their names alone.
    let uri = Uri::try_from(path(REFLECTION)).expect("a path is a URI");
    let alpha = service.clone().map_request(move |mut request: Request<axum::body::Body>| {
        *request.uri_mut() = uri.clone();
        request
    });
    let router = routes.add_service(service).into_axum_router().route_service(&path(REFLECTION_ALPHA), alpha);
    (Routes::from(router), names)
}
