//! The layers in front of all services of a listener, and their route to a service. [`Edge::for_peer`] combines them for
//! each connection.

mod answer;
mod browsers;
mod checks;

use std::{convert::Infallible, future::ready, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::service::Service;
use parking_lot::Mutex;
use tonic::{body::Body, codec::CompressionEncoding, service::Routes};
use tower::{BoxError, Service as _, ServiceBuilder};

pub use self::browsers::{Browsers, Hosts};
use self::{answer::Answers, browsers::GrpcWeb, checks::Checks};
use super::{
    CallerServices,
    context::Arrival,
    job_service::{CREATE_JOB, CREATE_JOBS},
    routes::Catalog,
    upload::{Expected, Upload},
    worker_service::ATTACH,
};
use crate::{
    auth::{Authenticator, Certificate, Rpc},
    memory::{ConnectionMemory, HeldBack},
    model::{Origin, Peer},
    proto::{MAX_ENVELOPE, worker_pool_service_server::WorkerPoolServiceServer},
};

/// The services of one listener, with their layers.
pub struct Edge {
    /// The worker pool, whose calls bypass the router; `None` on the operators' listener.
    pub(super) worker_pool: Option<CallerServices>,
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

/// The layers of one connection, from the outermost inwards.
pub type Front = GrpcWeb<Answers<Checks<Route>>>;

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
        let Self { worker_pool, others, catalog, browsers, authenticator, hosts, max_header_list, max_message } = self;
        // Has a reference count of its own.
        let worker_pool = worker_pool.clone().map(Arc::new);
        let is_of_network = matches!(peer.origin, Origin::Address(_));
        // On a Unix socket, the permissions of the socket file authorize operators.
        let authenticator = authenticator.clone().filter(|_| worker_pool.is_some() || is_of_network);
        let certificate = peer.certificate.as_ref().filter(|_| authenticator.is_some());
        let certificate = certificate.map(|der| Arc::new(Certificate::read(der)));
        ServiceBuilder::new()
            .layer_fn(|inner| GrpcWeb { browsers: browsers.clone(), memory: memory.clone(), inner })
            .layer_fn(|inner| Answers {
                worker_pool: worker_pool.clone(),
                peer: peer.clone(),
                memory: memory.clone(),
                inner,
            })
            .layer_fn(|inner| Checks {
                // No web page can reach a Unix socket.
                hosts: hosts.clone().filter(|_| is_of_network),
                browsers: browsers.clone(),
                max_header_list: *max_header_list,
                catalog: catalog.clone(),
                authenticator: authenticator.clone(),
                certificate: certificate.clone(),
                worker_pool: worker_pool.clone(),
                inner,
            })
            .service(Route {
                worker_pool: worker_pool.clone().map(service),
                others: others.clone(),
                catalog: catalog.clone(),
                max_message: *max_message,
            })
    }
}

fn service(worker_pool: Arc<CallerServices>) -> WorkerPoolServiceServer<CallerServices> {
    WorkerPoolServiceServer::from_arc(worker_pool)
        // Output is bounded where it is produced.
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(CompressionEncoding::Gzip)
}

/// Counts received bytes, and selects the service. Calls of the worker pool bypass the router, which costs as much as
/// the pool itself.
#[derive(Clone)]
pub struct Route {
    worker_pool: Option<WorkerPoolServiceServer<CallerServices>>,
    others: Routes,
    catalog: Arc<Catalog>,
    /// Largest message, in bytes.
    max_message: usize,
}

/// The answer of a service.
type Answer = BoxFuture<'static, Result<Response<Body>, Infallible>>;

impl Route {
    /// The messages that a call should send, and whether its service reads them itself instead of using the codec.
    fn expected(&self, method: Option<Rpc>, path: &str) -> (Expected, bool) {
        match method {
            Some(Rpc::SubmitMany) => (Expected::Many, true),
            Some(_) => (Expected::One, false),
            None if path == ATTACH => (Expected::ManyCut, true),
            None if path == CREATE_JOBS => (Expected::Many, true),
            None if self.catalog.has_rpc(path) && !path.ends_with("/ServerReflectionInfo") => (Expected::One, false),
            None => (Expected::Many, false),
        }
    }

    /// Largest message of a call, in bytes. Only jobs and their outputs may be large.
    fn largest(&self, method: Option<Rpc>, path: &str) -> usize {
        match method {
            Some(Rpc::Submit | Rpc::Stream | Rpc::SubmitMany) => self.max_message,
            None if [ATTACH, CREATE_JOB, CREATE_JOBS].contains(&path) => self.max_message,
            _ => MAX_ENVELOPE.min(self.max_message),
        }
    }

    fn answer<B>(&self, method: Option<Rpc>, largest: usize, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        match self.worker_pool.as_ref().filter(|_| method.is_some()) {
            // A message may be much smaller than what it is when decompressed.
            Some(worker_pool) => worker_pool.clone().max_decoding_message_size(largest).call(request),
            _ if self.catalog.has(request.uri().path()) => Box::pin(self.others.clone().call(request.map(Body::new))),
            _ => Box::pin(ready(Ok(self.catalog.refuse(request.uri().path(), request.headers())))),
        }
    }
}

impl<B> Service<Request<B>> for Route
where
    B: http_body::Body<Data = Bytes> + HeldBack + Send + Unpin + 'static,
    B::Error: Into<BoxError> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<B>) -> Answer {
        let (mut head, body) = request.into_parts();
        let arrival = head.extensions.get_mut::<Arrival>().expect("`Answers` records the arrival");
        let method = arrival.method;
        let (expected, reads_itself) = self.expected(method, head.uri.path());
        // Boxed, because the service moves the request about six times, each time with a copy.
        let largest = self.largest(method, head.uri.path());
        let body = Box::new(Upload::new(body, Arc::clone(&arrival.memory), largest, expected));
        if reads_itself {
            arrival.inbound = Some(Arc::new(Mutex::new(Some(Body::new(body)))));
            return self.answer(method, largest, Request::from_parts(head, Body::empty()));
        }
        self.answer(method, largest, Request::from_parts(head, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_keep_little_for_a_call() {
        // Each call holds it for as long as it waits.
        assert!(size_of::<<Front as Service<Request<Body>>>::Future>() <= 112);
    }
}
