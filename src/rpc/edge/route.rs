//! Routes calls to their services.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::service::Service;
use parking_lot::Mutex;
use tonic::{body::Body, service::Routes};
use tower::Service as _;

use super::{Arrived, Failure, Hot};
use crate::{
    auth::Rpc,
    memory::{ConnectionMemory, HeldBack},
    model::Peer,
    rpc::{
        attach::ATTACH, catalog::Catalog, context::Arrival, jobs::CREATE_JOBS, single_message::SingleMessage,
        upload::Upload,
    },
};

/// Counts received bytes, adds the caller, and selects the service. Calls of the worker pool bypass the router, which
/// costs as much as the pool.
#[derive(Clone)]
pub struct Route {
    pub(super) hot: Option<Hot>,
    pub(super) others: Routes,
    pub(super) catalog: Arc<Catalog>,
    /// The other end of the connection.
    pub(super) peer: Arc<Peer>,
    pub(super) memory: Arc<ConnectionMemory>,
    /// Largest message, in bytes.
    pub(super) message: usize,
}

type Answer = BoxFuture<'static, Result<Response<Body>, Infallible>>;

/// Whether the service reads the messages of this path itself.
fn reads_itself(path: &str) -> bool {
    path == ATTACH || path == CREATE_JOBS
}

impl Route {
    /// Whether a call's method takes one message.
    fn takes_one(&self, hot: Option<Rpc>, path: &str) -> bool {
        match hot {
            Some(method) => method != Rpc::SubmitMany,
            None => self.catalog.has_rpc(path) && !path.ends_with("/ServerReflectionInfo") && !reads_itself(path),
        }
    }

    fn answer<B>(&self, is_hot: bool, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Failure> + Send,
    {
        match self.hot.as_ref().filter(|_| is_hot) {
            Some(hot) => hot.service.clone().call(request),
            _ if self.catalog.has(request.uri().path()) => Box::pin(self.others.clone().call(request.map(Body::new))),
            _ => {
                let refusal = self.catalog.refuse(request.uri().path(), request.headers());
                Box::pin(std::future::ready(Ok(refusal)))
            }
        }
    }
}

impl<B> Service<Arrived<B>> for Route
where
    B: http_body::Body<Data = Bytes> + HeldBack + Send + Unpin + 'static,
    B::Error: Into<Failure> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, call: Arrived<B>) -> Answer {
        let Arrived { request, at, method, caller } = call;
        let is_bound = self.takes_one(method, request.uri().path());
        let cuts = request.uri().path() == ATTACH;
        let upload = |body| {
            let upload = Upload::new(body, Arc::clone(&self.memory), self.message);
            if cuts { upload.cutting() } else { upload }
        };
        // Boxed: the service moves it half a dozen times, with a copy each.
        let mut request = request.map(|body| Box::new(SingleMessage::new(upload(body), is_bound)));
        let (peer, memory) = (Some(Arc::clone(&self.peer)), Arc::clone(&self.memory));
        let mut arrival = Arrival { at, peer, caller, memory, inbound: None };
        if method != Some(Rpc::SubmitMany) && !reads_itself(request.uri().path()) {
            request.extensions_mut().insert(arrival);
            return self.answer(method.is_some(), request);
        }
        let (mut head, body) = request.into_parts();
        arrival.inbound = Some(Arc::new(Mutex::new(Some(Body::new(body)))));
        head.extensions.insert(arrival);
        self.answer(method.is_some(), Request::from_parts(head, Body::empty()))
    }
}
