//! What happens to a call in front of all services of a listener, and its route to a service. [`Edge::for_peer`] makes
//! the service of each connection.

mod answer;
mod browsers;
mod checks;
mod connect;

use std::{convert::Infallible, fmt::Display, future::ready, sync::Arc};

use bytes::Bytes;
use futures_util::future::{BoxFuture, Either};
use http::{Method, Request, Response};
use hyper::service::Service;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{body::Body, codec::CompressionEncoding, service::Routes};
use tower::{BoxError, Service as _};

#[cfg(any(test, fuzzing))]
pub(super) use self::connect::{read_json, write_json};
pub(super) use self::{answer::Bare, connect::is_read_only};
use self::{
    answer::{AnswerBody, AnswerFuture},
    browsers::Translated,
};
pub use self::{
    browsers::{Browsers, Hosts},
    connect::Work,
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
    /// Translates calls by JSON; `None` if only gRPC is spoken.
    pub(super) json: Option<Work>,
    /// Authentication; `None` if it is off.
    pub(super) authenticator: Option<Arc<Authenticator>>,
    /// Host names that are accepted of operators, and of callers by a GET of JSON; `None` accepts any.
    pub(super) hosts: Option<Hosts>,
    /// Whether calls by JSON that a web page sends may change something.
    pub(super) pages_act: bool,
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
    /// Translates its calls by JSON.
    json: Option<Work>,
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
        let json = self.json.as_ref().map(Work::of_connection);
        let edge = Arc::clone(self);
        Front(Arc::new(Connection { edge, worker_pool, peer, memory, is_guarded, certificate, json }))
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
        if let Some(browsers) = self.0.edge.browsers.as_ref().filter(|browsers| browsers.apply_to(&request)) {
            return Either::Left(browsers.translate(self.clone(), request));
        }
        match connect::Call::of(&self.0, &request) {
            Some(call) => Either::Left(call.translate(self.clone(), request)),
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
        let refusal = refusal.map(|refusal| match *request.method() {
            // HTTP/2 would send it.
            Method::HEAD => refusal.map(|_| Body::empty()),
            _ => refusal,
        });
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
        let (expected, reads_itself) = self.edge.catalog.expected(rpc, head.uri.path());
        let largest = self.edge.largest(rpc, head.uri.path());
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

impl Catalog {
    /// The messages that a call should send, and whether its service reads them itself instead of using the codec.
    fn expected(&self, rpc: Option<Rpc>, path: &str) -> (Expected, bool) {
        match rpc {
            Some(Rpc::SubmitMany | Rpc::CreateJobs) => (Expected::Many, true),
            Some(Rpc::Attach) => (Expected::ManyCut, true),
            Some(Rpc::Reflection) => (Expected::Many, false),
            Some(_) => (Expected::One, false),
            None if self.method(path).is_some_and(|method| !method.is_client_streaming()) => (Expected::One, false),
            None => (Expected::Many, false),
        }
    }
}

impl Edge {
    /// Largest message of a call, in bytes. Only jobs, their outputs and messages of a program's own may be large.
    fn largest(&self, rpc: Option<Rpc>, path: &str) -> usize {
        use Rpc::{Attach, CreateJob, CreateJobs, Stream, Submit, SubmitMany};
        match rpc {
            Some(Submit | Stream | SubmitMany | Attach | CreateJob | CreateJobs) => self.max_message,
            None if self.catalog.is_own(path) => self.max_message,
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
