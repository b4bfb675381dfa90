//! The layers in front of all services of a listener, each in its own file. [`Edge::for_peer`] combines them for each
//! connection.

mod arrival;
mod check;
mod credentials;
mod deadline;
mod finish;
mod grpc_web;
mod header_size;
mod request_id;
mod route;

use std::{error::Error, sync::Arc};

use tonic::service::Routes;
use tower::ServiceBuilder;

use self::{
    arrival::Arrivals, check::Checked, credentials::Credentials, deadline::Deadlines, finish::Finished,
    grpc_web::GrpcWeb, header_size::HeaderSize, request_id::RequestIds, route::Route,
};
pub(super) use self::{arrival::Arrived, check::Check};
use super::{
    Browsers, Calls, WorkerPool, answer_body::Meters, catalog::Catalog, grpc_only::GrpcOnly, guard::Entrance,
    hosts::Hosts, load::Load,
};
use crate::{
    memory::ConnectionMemory,
    model::{Origin, Peer},
    proto::worker_pool_service_server::WorkerPoolServiceServer,
};

/// The services of one listener, with their layers.
pub struct Edge {
    hot: Option<Hot>,
    others: Routes,
    catalog: Arc<Catalog>,
    browsers: Option<Browsers>,
    /// Authentication; `None` if it is off.
    entrance: Option<Entrance>,
    /// Host names that are accepted; `None` for any.
    hosts: Option<Hosts>,
    sizes: Sizes,
}

/// Size limits of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Largest headers, in bytes as HTTP/2 counts them.
    pub(super) header_list: usize,
    /// Largest message, in bytes.
    pub(super) message: usize,
}

/// The worker pool's service, and its measurements.
#[derive(Clone)]
pub(super) struct Hot {
    make: MakeWorkerPool,
    service: WorkerPoolServiceServer<WorkerPool>,
    meters: Arc<Meters>,
}

/// Creates the worker pool's service with its own reference count.
pub(super) type MakeWorkerPool = Arc<dyn Fn() -> WorkerPoolServiceServer<WorkerPool> + Send + Sync>;

type Failure = Box<dyn Error + Send + Sync>;

/// The layers of one connection, the outermost first.
pub type Front = RequestIds<Checked<Option<Hosts>, Checked<Option<Browsers>, GrpcWeb<Arrivals<Inner>>>>>;
/// The layers behind the one that records the arrival.
type Inner = Checked<HeaderSize, Checked<GrpcOnly, Checked<Option<Credentials>, Finished<Deadlines<Route>>>>>;

impl Edge {
    /// Routes calls of the worker pool to `hot` and all others to `others`, if `catalog` contains them.
    pub(super) fn new(hot: Option<Hot>, others: Routes, catalog: Catalog, sizes: Sizes) -> Self {
        Self { hot, others, catalog: Arc::new(catalog), browsers: None, entrance: None, hosts: None, sizes }
    }

    /// Accepts calls from web pages, too.
    pub(super) fn with_browsers(self, browsers: Option<Browsers>) -> Self {
        Self { browsers, ..self }
    }

    /// Authenticates callers with `entrance`.
    pub(super) fn guarded_by(self, entrance: Option<Entrance>) -> Self {
        Self { entrance, ..self }
    }

    /// Accepts only the host names of `hosts`.
    #[must_use]
    pub fn called_by(self, hosts: Option<Hosts>) -> Self {
        Self { hosts, ..self }
    }

    /// The layers for one connection, which share nothing hot with other connections. All its calls have `peer`, and
    /// their memory is counted in `memory`.
    #[must_use]
    pub fn for_peer(&self, peer: Arc<Peer>, memory: Arc<ConnectionMemory>) -> Front {
        let Self { hot, others, catalog, browsers, entrance, hosts, sizes } = self;
        let hot = hot.as_ref().map(Hot::anew);
        let meters = hot.as_ref().map(|hot| Arc::clone(&hot.meters));
        // No web page can reach a Unix socket.
        let hosts = hosts.clone().filter(|_| matches!(peer.origin, Origin::Address(_)));
        let form = GrpcOnly(Arc::clone(catalog));
        let entrance = entrance.as_ref().and_then(|entrance| entrance.for_peer(&peer));
        let (catalog, has_pool) = (Arc::clone(catalog), hot.is_some());
        let entry = entrance.map(|entrance| Credentials { entrance, catalog: catalog.clone(), meters: meters.clone() });
        ServiceBuilder::new()
            .layer_fn(|inner| RequestIds { inner })
            .layer_fn(|inner| Checked { check: hosts.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Checked { check: browsers.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| GrpcWeb { browsers: browsers.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Arrivals { has_pool, inner })
            .layer_fn(|inner| Checked { check: HeaderSize(sizes.header_list), memory: memory.clone(), inner })
            .layer_fn(|inner| Checked { check: form.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Checked { check: entry.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Finished { meters: meters.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Deadlines { inner })
            .service(Route {
                hot,
                others: others.clone(),
                catalog,
                peer,
                memory: memory.clone(),
                message: sizes.message,
            })
    }
}

impl Hot {
    pub(super) fn new(make: MakeWorkerPool, calls: Calls, load: Option<Load>) -> Self {
        Self { service: make(), make, meters: Arc::new(Meters { calls, load }) }
    }

    fn anew(&self) -> Self {
        Self::new(Arc::clone(&self.make), self.meters.calls.clone(), self.meters.load.clone())
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use hyper::service::Service;
    use tonic::body::Body;

    use super::*;

    #[test]
    fn the_layers_keep_little_for_a_call() {
        // Each call holds it for as long as it waits.
        assert!(size_of::<<Finished<Deadlines<Route>> as Service<Arrived<Body>>>::Future>() <= 128);
        assert!(size_of::<<Front as Service<Request<Body>>>::Future>() <= 176);
    }
}
