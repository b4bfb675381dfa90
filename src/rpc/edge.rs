//! The layers in front of all services of a listener. [`Edge::for_peer`] combines them for each connection.

mod answer;
mod browsers;
mod checks;
mod credentials;
mod late_answer;
mod route;

use std::sync::Arc;

use tonic::{codec::CompressionEncoding, service::Routes};
use tower::ServiceBuilder;

pub use self::browsers::{Browsers, Hosts};
use self::{
    answer::{Finished, Meters, RequestIds},
    browsers::GrpcWeb,
    checks::{Checked, GrpcOnly, HeaderSize},
    credentials::Credentials,
    late_answer::LateAnswers,
    route::{Arrivals, Route},
};
use super::{CallerServices, load::Load, routes::Catalog};
use crate::{
    auth::Authenticator,
    memory::ConnectionMemory,
    model::{Origin, Peer},
    proto::worker_pool_service_server::WorkerPoolServiceServer,
};

/// The services of one listener, with their layers.
pub struct Edge {
    /// The worker pool; `None` on the operators' listener.
    pub(super) hot: Option<Hot>,
    /// All other services, by path.
    pub(super) others: Routes,
    pub(super) catalog: Arc<Catalog>,
    /// Web pages that may call; `None` allows no pages.
    pub(super) browsers: Option<Browsers>,
    /// Authentication; `None` if it is off.
    pub(super) authenticator: Option<Arc<Authenticator>>,
    /// Accepted host names; `None` accepts any.
    pub(super) hosts: Option<Hosts>,
    /// Largest header list of a call, in bytes as HTTP/2 counts them.
    pub(super) max_header_list: usize,
    /// Largest message, in bytes.
    pub(super) max_message: usize,
}

/// The worker pool, whose calls bypass the router.
pub(super) struct Hot {
    pub(super) worker_pool: CallerServices,
    /// The load report; `None` if answers carry none.
    pub(super) load: Option<Load>,
}

/// The layers of one connection, from the outermost inwards.
pub type Front = RequestIds<Checked<Option<Hosts>, Checked<Option<Browsers>, GrpcWeb<Arrivals<Inner>>>>>;
/// The layers behind the one that records the arrival.
type Inner = Checked<HeaderSize, Checked<GrpcOnly, Checked<Option<Credentials>, Finished<LateAnswers<Route>>>>>;

impl Edge {
    /// Accepts only the host names of `hosts`.
    #[must_use]
    pub fn called_by(self, hosts: Option<Hosts>) -> Self {
        Self { hosts, ..self }
    }

    /// The layers for one connection. They share no frequently written data with other connections. `peer` is the other
    /// end of the connection, and `memory` counts its bytes.
    #[must_use]
    pub fn for_peer(&self, peer: Arc<Peer>, memory: Arc<ConnectionMemory>) -> Front {
        let Self { hot, others, catalog, browsers, authenticator, hosts, max_header_list, max_message } = self;
        // No web page can reach a Unix socket.
        let hosts = hosts.clone().filter(|_| matches!(peer.origin, Origin::Address(_)));
        let meters = hot.as_ref().map(|hot| Arc::new(hot.meters()));
        let credentials = authenticator
            .as_ref()
            .and_then(|authenticator| Credentials::of(authenticator, &peer, catalog, meters.as_ref()));
        ServiceBuilder::new()
            .layer_fn(|inner| RequestIds { inner })
            .layer_fn(|inner| Checked { check: hosts.clone(), inner })
            .layer_fn(|inner| Checked { check: browsers.clone(), inner })
            .layer_fn(|inner| GrpcWeb { browsers: browsers.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Arrivals { has_pool: hot.is_some(), peer: peer.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Checked { check: HeaderSize(*max_header_list), inner })
            .layer_fn(|inner| Checked { check: GrpcOnly(Arc::clone(catalog)), inner })
            .layer_fn(|inner| Checked { check: credentials.clone(), inner })
            .layer_fn(|inner| Finished { meters: meters.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| LateAnswers { inner })
            .service(Route {
                worker_pool: hot.as_ref().map(Hot::service),
                others: others.clone(),
                catalog: Arc::clone(catalog),
                max_message: *max_message,
            })
    }
}

impl Hot {
    /// The service, with a reference count of its own.
    fn service(&self) -> WorkerPoolServiceServer<CallerServices> {
        WorkerPoolServiceServer::new(self.worker_pool.clone())
            .max_decoding_message_size(self.worker_pool.0.largest_message)
            // Output is bounded where it is produced.
            .max_encoding_message_size(usize::MAX)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd)
    }

    fn meters(&self) -> Meters {
        Meters { calls: self.worker_pool.0.calls.clone(), load: self.load.clone() }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use hyper::service::Service;
    use tonic::body::Body;

    use super::{route::Arrived, *};

    #[test]
    fn the_layers_keep_little_for_a_call() {
        // Each call holds it for as long as it waits.
        assert!(size_of::<<Finished<LateAnswers<Route>> as Service<Arrived<Body>>>::Future>() <= 128);
        assert!(size_of::<<Front as Service<Request<Body>>>::Future>() <= 176);
    }
}
