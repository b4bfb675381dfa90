use std::{
    convert::Infallible,
    future::ready,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{self, Context, Poll},
};

use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, header::HeaderName};
use hyper::{body::Incoming, service::Service};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Status, body::Body, service::Routes};
use tower::Service as _;

use super::{
    WorkerPool,
    context::{Arrival, REQUEST_ID, request_id},
    guard::Entrance,
    status,
    timeout::{self, GRPC_TIMEOUT},
    upload::{ConnectionUploads, Upload, Uploads},
};
use crate::model::{Deadline, DeadlinePolicy, Peer};
use crate::proto::worker_pool_service_server::{SERVICE_NAME, WorkerPoolServiceServer};

/// The front of all services of one listener.
///
/// It fixes the instant of arrival, echoes the request id on every answer, answers a panicking call with INTERNAL, and
/// turns the codec's refusal of a large message into the service's own.
///
/// A clone is for one connection: a call touches nothing that it shares with the others.
pub struct Edge {
    make: Option<MakeWorkerPool>,
    worker_pool: Option<WorkerPoolServiceServer<WorkerPool>>,
    others: Routes,
    /// The other end of the connection; none before there is one.
    peer: Option<Arc<Peer>>,
    /// Who is let in; none where everybody is.
    entrance: Option<Entrance>,
    max_header_list: usize,
    uploads: Uploads,
    connection: Arc<ConnectionUploads>,
}

/// Makes the hot service anew, with a count of references of its own.
pub(super) type MakeWorkerPool = Arc<dyn Fn() -> WorkerPoolServiceServer<WorkerPool> + Send + Sync>;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Edge {
    /// Hands calls of the worker pool to what `make` makes, all others to `others`.
    pub(super) fn new(make: Option<MakeWorkerPool>, others: Routes, max_header_list: usize, uploads: Uploads) -> Self {
        let worker_pool = make.as_ref().map(|make| make());
        let connection = uploads.of(0);
        Self { make, worker_pool, others, peer: None, entrance: None, max_header_list, uploads, connection }
    }

    /// Lets in whom `entrance` lets in.
    pub(super) fn guarded_by(self, entrance: Option<Entrance>) -> Self {
        Self { entrance, ..self }
    }

    /// The front for one connection. All its calls carry `peer`.
    #[must_use]
    pub fn for_peer(&self, peer: Arc<Peer>) -> Self {
        let connection = self.uploads.of(peer.connection);
        let entrance = self.entrance.as_ref().map(|entrance| entrance.for_peer(&peer));
        Self { peer: Some(peer), connection, entrance, ..self.clone() }
    }
}

impl Clone for Edge {
    fn clone(&self) -> Self {
        Self {
            peer: self.peer.clone(),
            entrance: self.entrance.clone(),
            ..Self::new(self.make.clone(), self.others.clone(), self.max_header_list, self.uploads.clone())
        }
    }
}

impl Service<Request<Incoming>> for Edge {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = EdgeFuture;

    fn call(&self, mut request: Request<Incoming>) -> EdgeFuture {
        let sent = request.headers().get(REQUEST_ID).cloned();
        let now = Instant::now();
        let give_up = give_up(request.headers(), now);
        if header_list(&request) > self.max_header_list {
            return EdgeFuture::refused(status::headers_too_large(self.max_header_list), sent);
        }
        let caller = match &self.entrance {
            None => None,
            Some(entrance) => match entrance.let_in(&request) {
                Ok(caller) => caller,
                Err(status) => return EdgeFuture::refused(status, sent),
            },
        };
        request.extensions_mut().insert(Arrival { at: now, peer: self.peer.clone(), caller });
        let request = request.map(|body| Upload::new(body, Arc::clone(&self.connection)));
        // The router costs as much as the pool: calls of the hot service pass it by.
        let direct = self.worker_pool.as_ref().filter(|_| is_worker_pool(request.uri().path()));
        let answer: Answer = match direct {
            Some(service) => service.clone().call(request),
            None => Box::pin(self.others.clone().call(request.map(Body::new))),
        };
        EdgeFuture { answer, sent, give_up, alarm: None }
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
}

impl EdgeFuture {
    /// The answer to a call that is not let in.
    fn refused(status: Status, sent: Option<HeaderValue>) -> Self {
        Self { answer: Box::pin(ready(Ok(status.into_http()))), sent, give_up: None, alarm: None }
    }

    /// Whether a call that is pending has no time left. The timer is made for those alone that wait.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(give_up) = self.give_up else { return Poll::Pending };
        self.alarm.get_or_insert_with(|| Box::pin(sleep_until(give_up))).poll_unpin(cx)
    }
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

impl Future for EdgeFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = AssertUnwindSafe(|| self.answer.poll_unpin(cx));
        let mut response = match catch_unwind(polled) {
            Ok(Poll::Ready(Ok(response))) => rename_codec_refusal(response),
            Ok(Poll::Ready(Err(never))) => match never {},
            Ok(Poll::Pending) => {
                task::ready!(self.poll_alarm(cx));
                status::too_late(&request_id(self.sent.as_ref())).into_http()
            }
            Err(_) => {
                tracing::error!(request_id = ?self.sent, "a call panicked");
                status::panicked().into_http()
            }
        };
        name(response.headers_mut(), self.sent.as_ref());
        Poll::Ready(Ok(response))
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

fn is_worker_pool(path: &str) -> bool {
    path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME)).is_some_and(|rest| rest.starts_with('/'))
}

/// No handler of ours leaves the details out, so that a refusal by the codec is told apart.
fn rename_codec_refusal(response: Response<Body>) -> Response<Body> {
    let headers = response.headers();
    let is_refusal =
        headers.get("grpc-status").is_some_and(|code| ["8", "11", "13"].iter().any(|refused| code == refused))
            && !headers.contains_key("grpc-status-details-bin");
    if !is_refusal {
        return response;
    }
    Status::from_header_map(headers).map_or(response, |refusal| status::refused_by_codec(refusal).into_http())
}
