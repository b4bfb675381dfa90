//! What happens to a call in front of all services of a listener, and its route to a service. [`Edge::for_peer`] makes
//! the service of each connection.

mod answer;
mod browsers;
mod checks;

use std::{convert::Infallible, fmt::Display, future::ready, sync::Arc};

use bytes::Bytes;
use futures_util::future::{BoxFuture, Either};
use http::{Request, Response};
use hyper::service::Service;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{body::Body, codec::CompressionEncoding, service::Routes};
use tower::{BoxError, Service as _};

pub use self::browsers::{Browsers, Hosts};
use self::{
    answer::{AnswerBody, AnswerFuture},
    browsers::Translated,
    checks::HEALTH,
};
use super::{
    CallerServices,
    context::{Arrival, REQUEST_ID},
    routes::Catalog,
    upload::{Expected, Upload},
};
use crate::{
    auth::{Authenticator, Certificate, Rpc},
    memory::{ConnectionMemory, HeldBack},
    model::Peer,
    proto::{MAX_ENVELOPE, worker_pool_service_server::WorkerPoolServiceServer},
};

/// The services of one listener, and what applies to all of their calls.
pub struct Edge {
    /// The worker pool, whose calls bypass the router; `None` on the operators' listener.
    pub(super) worker_pool: Option<CallerServices>,
    /// All other services, by path.
    pub(super) others: Routes,
    pub(super) catalog: Catalog,
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

/// The services of a listener, for the calls of one connection.
#[derive(Clone)]
pub struct Front(Arc<Connection>);

/// What the calls of one connection share. Each call counts its references to this, so connections do not share it:
/// counters that many threads write are slow.
struct Connection {
    edge: Arc<Edge>,
    worker_pool: Option<Arc<CallerServices>>,
    /// The other end.
    peer: Arc<Peer>,
    /// Counts its bytes.
    memory: Arc<ConnectionMemory>,
    /// Whether its calls need credentials.
    is_guarded: bool,
    certificate: Option<Certificate>,
}

impl Edge {
    /// Accepts only the host names of `hosts`.
    #[must_use]
    pub fn called_by(self, hosts: Option<Hosts>) -> Self {
        Self { hosts, ..self }
    }

    /// The service of one connection. `peer` is the other end, and `memory` counts the bytes.
    pub fn for_peer(self: &Arc<Self>, peer: Arc<Peer>, memory: Arc<ConnectionMemory>) -> Front {
        let worker_pool = self.worker_pool.clone().map(Arc::new);
        // On a Unix socket, the permissions of the socket file authorize operators.
        let is_guarded = self.authenticator.is_some() && (worker_pool.is_some() || peer.is_of_network());
        let certificate = peer.certificate.as_ref().filter(|_| is_guarded).map(|der| Certificate::read(der));
        Front(Arc::new(Connection { edge: Arc::clone(self), worker_pool, peer, memory, is_guarded, certificate }))
    }
}

/// The answer of a service.
type Answer = BoxFuture<'static, Result<Response<Body>, Infallible>>;

impl<B> Service<Request<B>> for Front
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send + Display> + HeldBack + Send + Unpin + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Either<Translated, AnswerFuture>;

    fn call(&self, request: Request<B>) -> Self::Future {
        match self.0.edge.browsers.as_ref().filter(|browsers| browsers.apply_to(&request)) {
            Some(browsers) => Either::Left(browsers.translate(self.clone(), request)),
            None => Either::Right(self.answer(request)),
        }
    }
}

impl Front {
    /// Checks a call, and passes it on to its service.
    fn answer<B>(&self, request: Request<B>) -> AnswerFuture
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + HeldBack + Send + Unpin + 'static,
    {
        let Connection { peer, memory, .. } = &*self.0;
        let (rpc, peer, memory) = (Rpc::at(request.uri().path()), Arc::clone(peer), Arc::clone(memory));
        let mut arrival = Arrival { at: Instant::now(), rpc, peer, caller: None, memory, inbound: None };
        let sent = request.headers().get(REQUEST_ID).cloned();
        let give_up = self.0.give_up(&arrival, request.headers());
        let refusal = self.0.refuse(&request, &mut arrival);
        let is_refused = refusal.is_some();
        let answer = match refusal {
            Some(refusal) => Box::pin(ready(Ok(refusal))),
            None => self.0.begin(request, arrival),
        };
        AnswerFuture { answer, sent, give_up, alarm: None, front: self.clone(), rpc, is_refused }
    }
}

impl Connection {
    /// The worker pool, if a call is for it.
    fn called_pool(&self, rpc: Option<Rpc>) -> Option<(&Arc<CallerServices>, Rpc)> {
        let rpc = rpc.filter(|rpc| rpc.service() == Rpc::Submit.service())?;
        Some((self.worker_pool.as_ref()?, rpc))
    }

    /// Counts the received bytes of a call, and begins it.
    fn begin<B>(&self, request: Request<B>, mut arrival: Arrival) -> Answer
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + HeldBack + Send + Unpin + 'static,
    {
        let (mut head, body) = request.into_parts();
        let rpc = arrival.rpc;
        let (expected, reads_itself) = expected(rpc, head.uri.path());
        let largest = self.edge.largest(rpc);
        // Boxed, because the service moves the request about six times, each time with a copy.
        let body = Box::new(Upload::new(body, Arc::clone(&arrival.memory), largest, expected));
        if reads_itself {
            arrival.inbound = Some(Arc::new(Mutex::new(Some(Body::new(body)))));
            head.extensions.insert(arrival);
            return self.call(rpc, largest, Request::from_parts(head, Body::empty()));
        }
        head.extensions.insert(arrival);
        self.call(rpc, largest, Request::from_parts(head, body))
    }

    /// Calls of the worker pool bypass the router, which costs as much as the pool itself.
    fn call<B>(&self, rpc: Option<Rpc>, largest: usize, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
    {
        let Edge { others, catalog, .. } = &*self.edge;
        match self.called_pool(rpc) {
            Some((worker_pool, _)) => WorkerPoolServiceServer::from_arc(Arc::clone(worker_pool))
                // Output is bounded where it is produced.
                .max_encoding_message_size(usize::MAX)
                // A message may be much smaller than what it is when decompressed.
                .max_decoding_message_size(largest)
                .accept_compressed(CompressionEncoding::Gzip)
                .call(request),
            None if catalog.has(request.uri().path()) => Box::pin(others.clone().call(request.map(Body::new))),
            None => Box::pin(ready(Ok(catalog.refuse(request.uri().path(), request.headers())))),
        }
    }
}

/// The messages that a call should send, and whether its service reads them itself instead of using the codec.
fn expected(rpc: Option<Rpc>, path: &str) -> (Expected, bool) {
    match rpc {
        Some(Rpc::SubmitMany | Rpc::CreateJobs) => (Expected::Many, true),
        Some(Rpc::Attach) => (Expected::ManyCut, true),
        Some(Rpc::Reflection) => (Expected::Many, false),
        Some(_) => (Expected::One, false),
        None if path.starts_with(HEALTH) => (Expected::One, false),
        None => (Expected::Many, false),
    }
}

impl Edge {
    /// Largest message of a call, in bytes. Only jobs and their outputs may be large.
    fn largest(&self, rpc: Option<Rpc>) -> usize {
        use Rpc::{Attach, CreateJob, CreateJobs, Stream, Submit, SubmitMany};
        match rpc {
            Some(Submit | Stream | SubmitMany | Attach | CreateJob | CreateJobs) => self.max_message,
            _ => MAX_ENVELOPE.min(self.max_message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_keeps_little_for_a_call() {
        // Each call holds it for as long as it waits.
        assert!(size_of::<<Front as Service<Request<Body>>>::Future>() <= 96);
    }
}
