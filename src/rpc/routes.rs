//! Builds the services of both listeners, and answers calls to unknown paths. `src/rpc.rs` explains how to add an RPC.

use std::{
    convert::Infallible,
    sync::{Arc, LazyLock},
};

use axum::{Router, routing::get};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use prost_reflect::{MethodDescriptor, ServiceDescriptor};
use rustc_hash::FxHashSet;
use tonic::{Status, body::Body, codec::CompressionEncoding, service::Routes};
use tonic_reflection::pb::v1::server_reflection_server::ServerReflectionServer;
use tower::{Service, ServiceExt};

use super::{
    AccessControl, Admin, Browsers, CallerServices, Edge, Health, Load, ServiceState, Work,
    edge::Bare,
    load::Orca,
    openapi,
    reflection::{DESCRIPTORS, Reflection},
    status,
};
use crate::{
    auth::Rpc,
    model::Reason,
    proto::{
        MAX_ENVELOPE,
        admin_service_server::{self, AdminServiceServer},
        externalscaler::external_scaler_server::{self, ExternalScalerServer},
        health::health_server::{self, HealthServer},
        job_service_server::{self, JobServiceServer},
        worker_pool_service_server::{self, WorkerPoolServiceServer},
        worker_service_server::{self, WorkerServiceServer},
        xds::service::orca::v3::open_rca_service_server::{self, OpenRcaServiceServer},
    },
};

/// Path of the document about calls by JSON.
const OPENAPI: &str = "/openapi.json";
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Largest header list of operators' calls, which have only the headers of their client.
const MAX_OPS_HEADER_LIST: usize = 16 << 10;

/// Largest message of operators' calls: the codec's default, although these messages are small.
const MAX_OPS_MESSAGE: usize = 4 << 20;

/// The services for callers: worker pool, detached jobs, health, reports of `load` and reflection, for web pages of
/// `browsers` too. `max_header_list` limits the headers of a call, in bytes as HTTP/2 counts them.
pub fn public_services(
    worker_pool: CallerServices,
    health: Health,
    load: Load,
    browsers: Option<Browsers>,
    json: Option<Work>,
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
            &format!("/{}", Rpc::CreateJob.path()),
            jobs(max_message).map_request(|call: Request<axum::body::Body>| call.map(Body::new)),
        );
    let (routes, names) = with_reflection(routes.into(), &names);
    let pages = if json.is_some() { vec![OPENAPI] } else { Vec::new() };
    let catalog = Catalog::new(&names, |_| true, pages);
    let router = routes.into_axum_router();
    let router = if json.is_some() { router.merge(openapi_page(&catalog)) } else { router };
    Edge {
        worker_pool: Some(worker_pool),
        others: Routes::from(router).prepare(),
        catalog,
        browsers,
        json,
        authenticator,
        hosts: None,
        pages_act: true,
        max_header_list,
        max_message,
    }
}

/// The RPCs that operators may call besides those of `AdminService`: those that read, and acts on detached jobs.
const SHARED: [Rpc; 16] = [
    Rpc::Stats,
    Rpc::WatchStats,
    Rpc::GetJob,
    Rpc::ListDetached,
    Rpc::GroupJobs,
    Rpc::CancelDetached,
    Rpc::CancelJobs,
    Rpc::GetGroup,
    Rpc::RetryJob,
    Rpc::RetryJobs,
    Rpc::DeleteJob,
    Rpc::PurgeJobs,
    Rpc::IsActive,
    Rpc::StreamIsActive,
    Rpc::GetMetricSpec,
    Rpc::GetMetrics,
];

/// The RPCs of waterwheel on the operators' listener.
pub(super) fn of_operators() -> impl Iterator<Item = Rpc> {
    let all = Rpc::NAMES.into_iter().map(|(_, rpc)| rpc);
    all.filter(|rpc| SHARED.contains(rpc) || rpc.service() == admin_service_server::SERVICE_NAME)
}

/// The services for operators: administration, what `shared` of the callers' services, health and reflection, and HTTP
/// pages.
pub fn ops_services(
    admin: Admin,
    shared: CallerServices,
    health: Health,
    pages: Pages,
    json: Work,
    access: &AccessControl,
) -> Edge {
    let Pages { router, mut paths, may_act } = pages;
    let routes = Routes::new(HealthServer::new(health))
        .add_service(AdminServiceServer::new(admin))
        .add_service(WorkerPoolServiceServer::new(shared.clone()))
        .add_service(JobServiceServer::new(shared.clone()))
        .add_service(ExternalScalerServer::new(shared));
    let callers = [worker_pool_service_server::SERVICE_NAME, job_service_server::SERVICE_NAME];
    let [worker_pool, jobs] = callers;
    let (routes, names) = with_reflection(
        routes,
        &[admin_service_server::SERVICE_NAME, worker_pool, jobs, external_scaler_server::SERVICE_NAME],
    );
    let is_served =
        |path: &str| Rpc::at(path).is_none_or(|rpc| SHARED.contains(&rpc) || !callers.contains(&rpc.service()));
    paths.push(OPENAPI);
    let catalog = Catalog { is_of_operators: true, ..Catalog::new(&names, is_served, paths) };
    let router = routes.into_axum_router().merge(router).merge(openapi_page(&catalog));
    Edge {
        worker_pool: None,
        others: Routes::from(router).prepare(),
        catalog,
        browsers: None,
        json: Some(json),
        authenticator: access.authenticator.clone().filter(|authenticator| authenticator.guards_ops()),
        hosts: None,
        pages_act: may_act,
        max_header_list: MAX_OPS_HEADER_LIST,
        max_message: MAX_OPS_MESSAGE,
    }
}

/// The page that describes the calls by JSON, made when it is first asked for.
fn openapi_page(catalog: &Catalog) -> Router {
    let methods: Vec<_> = catalog.methods_by_json().collect();
    let text = Arc::new(LazyLock::new(move || Bytes::from(openapi::document(&methods).to_string())));
    let page = move || std::future::ready(([(CONTENT_TYPE, "application/json")], Bytes::clone(&text)));
    Router::new().route(OPENAPI, get(page))
}

impl Edge {
    /// Serves `service` too, behind the same checks and bounds, by gRPC, gRPC-Web and JSON where these are spoken.
    /// `descriptor` describes it. No rule can name its methods, so callers with credentials alone cannot call it.
    #[must_use]
    pub fn also<S>(mut self, service: S, descriptor: ServiceDescriptor) -> Self
    where
        S: Service<Request<axum::body::Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
    {
        let service = service.map_response(|mut answer| {
            answer.extensions_mut().insert(Bare);
            answer
        });
        let path = format!("/{}/{{*method}}", descriptor.full_name());
        self.others = Routes::from(self.others.into_axum_router().route_service(&path, service)).prepare();
        self.catalog.rpcs.extend(descriptor.methods().map(|method| self::path(&method)));
        self.catalog.own.push(descriptor.full_name().to_owned());
        self.catalog.services.push(descriptor);
        self
    }
}

/// HTTP pages in addition to gRPC.
#[derive(Debug, Default)]
pub struct Pages {
    /// Their handlers.
    pub router: Router,
    /// Their paths. One that ends in a slash, except `/`, stands for all below it.
    pub paths: Vec<&'static str>,
    /// Whether calls from these pages may change something.
    pub may_act: bool,
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
    /// Paths of the methods.
    rpcs: FxHashSet<String>,
    pages: Vec<&'static str>,
    /// Names of services of the program's own.
    own: Vec<String>,
    is_of_operators: bool,
}

impl Catalog {
    /// The services with these names, from their descriptors, with the methods whose path `has`.
    fn new(names: &[&str], has: impl Fn(&str) -> bool, pages: Vec<&'static str>) -> Self {
        let service = |name: &&str| DESCRIPTORS.get_service_by_name(name).expect("every service has a descriptor");
        let services: Vec<_> = names.iter().map(service).collect();
        let rpcs = services.iter().flat_map(ServiceDescriptor::methods).map(|method| path(&method));
        let rpcs = rpcs.filter(|path| has(path)).collect();
        Self { services, rpcs, pages, own: Vec::new(), is_of_operators: false }
    }

    /// Whether a path exists.
    pub(super) fn has(&self, path: &str) -> bool {
        self.has_rpc(path) || self.is_page(path)
    }

    /// Whether a path is a method.
    pub(super) fn has_rpc(&self, path: &str) -> bool {
        self.rpcs.contains(path)
    }

    /// The method of a path.
    pub(super) fn method(&self, path: &str) -> Option<MethodDescriptor> {
        let (service, name) = path.strip_prefix('/').filter(|_| self.has_rpc(path))?.rsplit_once('/')?;
        let service = self.services.iter().find(|known| known.full_name() == service)?;
        service.methods().find(|method| method.name() == name)
    }

    /// The methods that can be called by HTTP and JSON.
    pub(super) fn methods_by_json(&self) -> impl Iterator<Item = MethodDescriptor> {
        let methods = self.services.iter().flat_map(ServiceDescriptor::methods);
        methods.filter(|method| self.by_json(&path(method)).is_ok())
    }

    /// The method of a path that is called by HTTP and JSON.
    ///
    /// # Errors
    /// The refusal of a call of an unknown method, or of one that speaks only gRPC.
    pub(super) fn by_json(&self, path: &str) -> Result<MethodDescriptor, Status> {
        let method = self.method(path).ok_or_else(|| self.unimplemented(path))?;
        match Rpc::at(path) {
            Some(Rpc::Attach | Rpc::Reflection) => {
                Err(status::saying(Reason::UnknownMethod, "this method speaks only gRPC, not JSON"))
            }
            _ => Ok(method),
        }
    }

    /// Whether a path is of a service of the program's own.
    pub(super) fn is_own(&self, path: &str) -> bool {
        let service = path.strip_prefix('/').and_then(|path| path.rsplit_once('/')).map(|(service, _)| service);
        service.is_some_and(|service| self.own.iter().any(|own| own == service))
    }

    /// Whether a path is a page.
    pub(super) fn is_page(&self, path: &str) -> bool {
        let is_below = |page: &&str| page.len() > 1 && page.ends_with('/') && path.starts_with(page);
        self.pages.iter().any(|page| *page == path || is_below(page))
    }

    /// The answer to an unknown path.
    pub(super) fn refuse(&self, path: &str, headers: &HeaderMap) -> Response<Body> {
        if speaks_grpc(headers) {
            return self.unimplemented(path).into_http();
        }
        let pages = if self.pages.is_empty() { "none".into() } else { self.pages.join(" ") };
        let json = if self.is_page(OPENAPI) { "; calls by JSON are a POST of application/json" } else { "" };
        let text = format!("unknown path; pages: {pages}; gRPC calls are a POST of application/grpc by HTTP/2{json}");
        plain_text(StatusCode::NOT_FOUND, &text)
    }

    fn unimplemented(&self, path: &str) -> Status {
        let name = path.strip_prefix('/').unwrap_or(path);
        let (service, method) = name.rsplit_once('/').unwrap_or((name, ""));
        let Some(service) = self.services.iter().find(|known| known.full_name() == service) else {
            let listener = if self.is_of_operators { "on the operators' listener" } else { "here" };
            let names: Vec<_> = self.services.iter().map(ServiceDescriptor::full_name).collect();
            let message = format!("no such service {listener}; there are {}", names.join(", "));
            return status::saying(Reason::UnknownService, message);
        };
        let known = service.methods().filter(|method| self.has_rpc(&self::path(method)));
        let methods = known.map(|method| method.name().to_owned()).collect::<Vec<_>>().join(", ");
        if service.methods().any(|known| known.name() == method) {
            let message = format!("{name} is for callers; the operators' listener has {methods} of that service");
            return status::saying(Reason::UnknownService, message);
        }
        let message = format!("no such method; {} has {methods}", service.full_name());
        status::saying(Reason::UnknownMethod, message)
    }
}

fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// An answer for a caller that does not speak gRPC: one line.
pub(super) fn plain_text(status: StatusCode, line: &str) -> Response<Body> {
    let mut response = Response::new(Body::new(format!("{line}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Whether a request is a gRPC or gRPC-Web call.
pub(super) fn speaks_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_rpcs_is_that_of_the_contract() {
        for (name, rpc) in Rpc::NAMES {
            let service = DESCRIPTORS.get_service_by_name(rpc.service()).expect(name);
            assert!(service.methods().any(|method| method.name() == rpc.method()), "{name}");
        }
        let ours = DESCRIPTORS.services().filter(|service| service.full_name().starts_with("waterwheel."));
        for method in ours.collect::<Vec<_>>().iter().flat_map(ServiceDescriptor::methods) {
            assert!(Rpc::at(&path(&method)).is_some(), "{} needs a row in src/auth/rule.rs", method.full_name());
        }
    }
}
