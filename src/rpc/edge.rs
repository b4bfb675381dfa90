use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::ready as now_ready,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, header::HeaderName};
use hyper::service::Service;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Status, body::Body, service::Routes};
use tower::Service as _;

use super::{
    Browsers, Calls, WorkerPool,
    calls::Method,
    catalog::Catalog,
    context::{Arrival, REQUEST_ID, request_id},
    form,
    guard::Entrance,
    hosts::Hosts,
    load::{ConnectionLoad, Load},
    message::decode_message,
    single::Single,
    status,
    telling::{AnswerBody, Meters, Telling},
    timeout::{self, GRPC_TIMEOUT},
    upload::Upload,
};
use crate::auth::Caller;
use crate::memory::{ConnectionMemory, HeldBack, Memory};
use crate::model::{Deadline, DeadlinePolicy, Origin, Peer};
use crate::proto::worker_pool_service_server::WorkerPoolServiceServer;

/// The front of all services of one listener.
///
/// It fixes the instant of arrival, echoes the request id on every answer, answers a panicking call with INTERNAL and
/// one of an unknown method with the names of those that there are, turns the codec's refusal of a large message into
/// the service's own, and adds the load of the process to the answers of the worker pool where they are to tell it.
///
/// A clone is for one connection: a call touches nothing that it shares with the others.
pub struct Edge {
    hot: Option<Hot>,
    others: Routes,
    catalog: Arc<Catalog>,
    browsers: Option<Browsers>,
    /// The other end of the connection; none before there is one.
    peer: Option<Arc<Peer>>,
    /// Who is let in; none where everybody is.
    entrance: Option<Entrance>,
    /// By which names it may be called; none where it may be called by any.
    hosts: Option<Hosts>,
    sizes: Sizes,
    memory: Arc<ConnectionMemory>,
}

/// What a call may bring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Most bytes of its headers, as HTTP/2 counts them.
    pub(super) header_list: usize,
    /// Most bytes of a message.
    pub(super) message: usize,
}

/// The hot service, and what is measured at it.
pub(super) struct Hot {
    make: MakeWorkerPool,
    service: WorkerPoolServiceServer<WorkerPool>,
    meters: Arc<Meters>,
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Makes the hot service anew, with a count of references of its own.
pub(super) type MakeWorkerPool = Arc<dyn Fn() -> WorkerPoolServiceServer<WorkerPool> + Send + Sync>;

type Failure = Box<dyn Error + Send + Sync>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Edge {
    /// Hands calls of the worker pool to `hot`, all others to `others`, as far as `catalog` has them.
    pub(super) fn new(hot: Option<Hot>, others: Routes, catalog: Catalog, sizes: Sizes) -> Self {
        let (catalog, memory) = (Arc::new(catalog), Memory::default().of(0));
        Self { hot, others, catalog, browsers: None, peer: None, entrance: None, hosts: None, sizes, memory }
    }

    /// Takes calls from pages of browsers too.
    pub(super) fn with_browsers(self, browsers: Option<Browsers>) -> Self {
        Self { browsers, ..self }
    }

    /// Lets in whom `entrance` lets in.
    pub(super) fn guarded_by(self, entrance: Option<Entrance>) -> Self {
        Self { entrance, ..self }
    }

    /// Takes calls by the names of `hosts` only.
    #[must_use]
    pub fn called_by(self, hosts: Option<Hosts>) -> Self {
        Self { hosts, ..self }
    }

    /// The front for one connection. All its calls carry `peer`, and what they hold is counted in `memory`.
    #[must_use]
    pub fn for_peer(&self, peer: Arc<Peer>, memory: Arc<ConnectionMemory>) -> Self {
        let entrance = self.entrance.as_ref().and_then(|entrance| entrance.for_peer(&peer));
        // No page of a browser reaches a Unix socket.
        let hosts = self.hosts.clone().filter(|_| matches!(peer.origin, Origin::Address(_)));
        Self { peer: Some(peer), memory, entrance, hosts, ..self.clone() }
    }

    /// Who calls, where the call is one that needs to know.
    fn let_in<B>(&self, request: &Request<B>) -> Result<Option<Arc<Caller>>, Status> {
        match &self.entrance {
            Some(entrance) if !self.catalog.is_page(request.uri().path()) => entrance.let_in(request, &self.catalog),
            _ => Ok(None),
        }
    }

    /// Whether a call is of a method that takes one message.
    fn takes_one(&self, hot: Option<Method>, path: &str) -> bool {
        match hot {
            Some(method) => method != Method::SubmitMany,
            None => self.catalog.has_rpc(path) && !path.ends_with("/ServerReflectionInfo"),
        }
    }

    /// The refusal of a request that comes from a page of a browser that nobody asked in.
    fn objection<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let of_hosts = self.hosts.as_ref().and_then(|hosts| hosts.objection(request));
        of_hosts.or_else(|| self.browsers.as_ref().and_then(|browsers| browsers.objection(request)))
    }

    fn answer<B>(&self, hot: Option<&Hot>, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Failure> + Send,
    {
        // The router costs as much as the pool: calls of the hot service pass it by.
        match hot {
            Some(hot) => hot.service.clone().call(request),
            _ if self.catalog.has(request.uri().path()) => Box::pin(self.others.clone().call(request.map(Body::new))),
            _ => Box::pin(now_ready(Ok(self.catalog.refuse(request.uri().path(), request.headers())))),
        }
    }

    /// The answer to a call that is not let in. It tells no load: that is for those who may call, and a balancer keeps
    /// the weight of the last report that it got (gRFC A58).
    fn refused(&self, status: Status, sent: Option<HeaderValue>) -> EdgeFuture {
        self.answered(status.into_http(), sent)
    }

    fn answered(&self, response: Response<Body>, sent: Option<HeaderValue>) -> EdgeFuture {
        self.answering(Box::pin(now_ready(Ok(response))), sent)
    }

    fn answering(&self, answer: Answer, sent: Option<HeaderValue>) -> EdgeFuture {
        EdgeFuture { answer, sent, give_up: None, alarm: None, telling: None, memory: Arc::clone(&self.memory) }
    }
}

impl Clone for Edge {
    fn clone(&self) -> Self {
        Self {
            hot: self.hot.as_ref().map(Hot::anew),
            others: self.others.clone(),
            catalog: Arc::clone(&self.catalog),
            browsers: self.browsers.clone(),
            peer: self.peer.clone(),
            entrance: self.entrance.clone(),
            hosts: self.hosts.clone(),
            sizes: self.sizes,
            memory: Arc::clone(&self.memory),
        }
    }
}

impl Hot {
    pub(super) fn new(make: MakeWorkerPool, calls: Calls, load: Option<Load>) -> Self {
        Self {
            service: make(),
            make,
            meters: Arc::new(Meters { calls, load: load.map(ConnectionLoad::new).map(Arc::new) }),
        }
    }

    fn anew(&self) -> Self {
        Self::new(
            Arc::clone(&self.make),
            self.meters.calls.clone(),
            self.meters.load.as_ref().map(|load| load.load().clone()),
        )
    }
}

impl<B> Service<Request<B>> for Edge
where
    B: http_body::Body<Data = Bytes> + HeldBack + Send + Unpin + 'static,
    B::Error: Into<Failure> + Send + fmt::Display,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = EdgeFuture;

    fn call(&self, request: Request<B>) -> EdgeFuture {
        let sent = request.headers().get(REQUEST_ID).cloned();
        let now = Instant::now();
        if let Some(objection) = self.objection(&request) {
            return self.answered(objection, sent);
        }
        if let Some(browsers) = &self.browsers
            && browsers.are_meant(&request)
        {
            let edge = Self { browsers: None, ..self.clone() };
            let answer = browsers.answer(edge, request);
            return self.answering(answer, sent);
        }
        let give_up = give_up(request.headers(), now);
        if header_list(&request) > self.sizes.header_list {
            return self.refused(status::headers_too_large(self.sizes.header_list), sent);
        }
        let hot = self.hot.as_ref().zip(Method::of(request.uri().path()));
        if let Some(refusal) = form::objection(&request)
            && (hot.is_some() || self.catalog.has_rpc(request.uri().path()))
        {
            return self.answered(refusal, sent);
        }
        let caller = match self.let_in(&request) {
            Ok(caller) => caller,
            Err(status) => {
                hot.inspect(|(hot, method)| hot.meters.calls.refuse(*method, status.code()));
                return self.refused(status, sent);
            }
        };
        let is_bound = self.takes_one(hot.map(|(_, method)| method), request.uri().path());
        let upload = |body| Upload::new(body, Arc::clone(&self.memory), self.sizes.message);
        // Boxed: the service moves it half a dozen times, and keeps room for each.
        let request = request.map(|body| Box::new(Single::new(upload(body), is_bound)));
        let telling = hot.map(|(hot, method)| Telling::new(Arc::clone(&hot.meters), method, now));
        let (peer, memory) = (self.peer.clone(), Arc::clone(&self.memory));
        let mut arrival = Arrival { at: now, peer, caller, memory, inbound: None };
        let hot_service = hot.map(|(hot, _)| hot);
        let answer = if hot.is_some_and(|(_, method)| method == Method::SubmitMany) {
            let (mut head, body) = request.into_parts();
            arrival.inbound = Some(Arc::new(Mutex::new(Some(Body::new(body)))));
            head.extensions.insert(arrival);
            self.answer(hot_service, Request::from_parts(head, Body::empty()))
        } else {
            let mut request = request;
            request.extensions_mut().insert(arrival);
            self.answer(hot_service, request)
        };
        EdgeFuture { give_up, telling, ..self.answering(answer, sent) }
    }
}

/// The answer to one call.
pub struct EdgeFuture {
    answer: Answer,
    /// The request id, as the caller sent it.
    sent: Option<HeaderValue>,
    /// When a call without an answer is ended from here: its message may never come.
    give_up: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
    /// What is told of the load; nothing by services other than the worker pool.
    telling: Option<Telling>,
    memory: Arc<ConnectionMemory>,
}

/// Size of the headers as HTTP/2 counts it: 32 bytes for each beside its name and value.
fn header_list<B>(request: &Request<B>) -> usize {
    let field = |name: usize, value: usize| name + value + 32;
    let authority = request.uri().authority().map_or(0, |authority| authority.as_str().len());
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| field(name.as_str().len(), value.len()));
    field(":path".len(), path) + field(":authority".len(), authority) + fields.sum::<usize>()
}

/// Within the margin before the deadline, after the service's own answer had its time.
fn give_up(headers: &HeaderMap, now: Instant) -> Option<Instant> {
    let asked = timeout::parse(headers.get(GRPC_TIMEOUT)?.to_str().ok()?).ok()?;
    // A budget that cannot be added up is no budget.
    now.checked_add(asked)?;
    let deadline = Deadline::new(now, asked, DeadlinePolicy::default().reply_margin);
    Some(deadline.reply_by() + (deadline.end() - deadline.reply_by()) / 2)
}

impl EdgeFuture {
    /// Whether a call that is pending has no time left. The timer is made for those alone that wait.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(give_up) = self.give_up else { return Poll::Pending };
        self.alarm.get_or_insert_with(|| Box::pin(sleep_until(give_up))).poll_unpin(cx)
    }

    /// The answer as it leaves: named, and with the load.
    fn finish(&mut self, mut response: Response<Body>) -> Response<AnswerBody> {
        let is_whole = response.headers().contains_key(GRPC_STATUS);
        if is_whole {
            response = self.rename_codec_refusal(response);
        }
        name(response.headers_mut(), self.sent.as_ref());
        decode_message(response.headers_mut());
        match self.telling.take() {
            Some(telling) => telling.tell(response, is_whole, Arc::clone(&self.memory)),
            None => AnswerBody::plain(response, Arc::clone(&self.memory)),
        }
    }

    /// No handler of ours leaves the details out, so that a refusal by the codec is told apart.
    fn rename_codec_refusal(&self, response: Response<Body>) -> Response<Body> {
        let headers = response.headers();
        let is_refusal = headers
            .get(GRPC_STATUS)
            .is_some_and(|code| ["3", "8", "11", "12", "13"].iter().any(|refused| code == refused))
            && !headers.contains_key("grpc-status-details-bin");
        if !is_refusal {
            return response;
        }
        let Some(refusal) = Status::from_header_map(headers).map(status::refused_by_codec) else { return response };
        if let Some(telling) = &self.telling {
            telling.count_refusal(refusal.code());
        }
        refusal.into_http()
    }
}

impl Future for EdgeFuture {
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = AssertUnwindSafe(|| self.answer.poll_unpin(cx));
        let response = match catch_unwind(polled) {
            Ok(Poll::Ready(Ok(response))) => response,
            Ok(Poll::Ready(Err(never))) => match never {},
            Ok(Poll::Pending) => {
                self.telling.iter_mut().for_each(Telling::wait);
                ready!(self.poll_alarm(cx));
                status::too_late(&request_id(self.sent.as_ref())).into_http()
            }
            Err(_) => {
                tracing::error!(request_id = ?self.sent, "a call panicked");
                status::panicked().into_http()
            }
        };
        Poll::Ready(Ok(self.finish(response)))
    }
}

/// Calls that end before they reach their service are named here.
fn name(headers: &mut HeaderMap, sent: Option<&HeaderValue>) {
    let header = HeaderName::from_static(REQUEST_ID);
    if !headers.contains_key(&header)
        && let Ok(id) = HeaderValue::from_str(request_id(sent).as_str())
    {
        headers.insert(header, id);
    }
}
