//! The open calls of one connection, for HTTP/1.1 and HTTP/2: their number, their time limits, and their unread
//! answers.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use parking_lot::Mutex;
use slab::Slab;
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep_until},
};

use crate::model::Peer;

/// Time that a stream lasts beyond its limit, so that at the deadline the caller's own clock acts first.
const GRACE: Duration = Duration::from_millis(100);

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The time limit of a call's stream, from its path and headers. `None` is unlimited.
#[derive(Clone)]
pub struct StreamLimit(Arc<Rule>);

type Rule = dyn Fn(&str, &HeaderMap) -> Option<Duration> + Send + Sync;

impl StreamLimit {
    /// A limit that `rule` computes.
    pub fn new(rule: impl Fn(&str, &HeaderMap) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self(Arc::new(rule))
    }

    fn end<B>(&self, request: &Request<B>) -> Option<Instant> {
        let limit = (self.0)(request.uri().path(), request.headers())?;
        Instant::now().checked_add(limit)?.checked_add(GRACE)
    }
}

impl fmt::Debug for StreamLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamLimit")
    }
}

/// An answer that was not sent completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsentAnswer {
    /// Its request id; empty if it has none.
    pub request_id: String,
    /// The peer of its connection.
    pub peer: String,
    /// Bytes that were ready and not sent. 0 if all of it was given to the connection, and the peer did not read it
    /// all.
    pub unsent_bytes: usize,
}

/// The unread answers of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct UnsentAnswers(Arc<Unsent>);

#[derive(Debug, Default)]
struct Unsent {
    answers: Mutex<Answers>,
    sent: Notify,
}

#[derive(Debug, Default)]
struct Answers {
    waiting: Slab<UnsentAnswer>,
    /// Answers that were reset during a drain because they made no progress.
    cut: Option<Vec<UnsentAnswer>>,
}

impl UnsentAnswers {
    /// Returns when no answer is unread. Cancel safe.
    pub(super) async fn none(&self) {
        loop {
            let sent = self.0.sent.notified();
            if self.is_empty() {
                return;
            }
            sent.await;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.answers.lock().waiting.is_empty()
    }

    fn enter(&self, answer: UnsentAnswer) -> usize {
        self.0.answers.lock().waiting.insert(answer)
    }

    fn leave(&self, entry: usize, is_cut: bool) {
        let mut answers = self.0.answers.lock();
        let answer = answers.waiting.remove(entry);
        if let Some(cut) = answers.cut.as_mut().filter(|_| is_cut) {
            cut.push(answer);
        }
        if answers.waiting.is_empty() {
            self.0.sent.notify_waiters();
        }
    }

    /// From now on, cut answers are recorded.
    pub(super) fn keep_cut(&self) {
        self.0.answers.lock().cut.get_or_insert_default();
    }

    /// Unread answers, and those that were cut since [`keep_cut`](Self::keep_cut).
    pub(super) fn list(&self) -> Vec<UnsentAnswer> {
        let answers = self.0.answers.lock();
        answers.waiting.iter().map(|(_, answer)| answer).chain(answers.cut.iter().flatten()).cloned().collect()
    }
}

/// The calls of one connection. Clones share the state.
#[derive(Debug, Clone)]
pub(super) struct Calls(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    peer: Arc<Peer>,
    limit: Option<StreamLimit>,
    stall: Duration,
    unsent: UnsentAnswers,
    /// Every open call holds a clone.
    open: Arc<()>,
    opened: AtomicU64,
    /// Request id of the last large answer that was given to the connection.
    last: Mutex<Option<HeaderValue>>,
}

impl Calls {
    pub(super) fn new(peer: Arc<Peer>, limit: Option<StreamLimit>, stall: Duration, unsent: UnsentAnswers) -> Self {
        Self(Arc::new(Seen {
            peer,
            limit,
            stall,
            unsent,
            open: Arc::default(),
            opened: AtomicU64::default(),
            last: Mutex::default(),
        }))
    }

    /// Open calls.
    pub(super) fn open(&self) -> usize {
        Arc::strong_count(&self.0.open) - 1
    }

    /// Calls so far.
    pub(super) fn opened(&self) -> u64 {
        self.0.opened.load(Relaxed)
    }

    /// Detects that the socket accepts no data.
    pub(super) fn backlog(&self) -> Backlog {
        Backlog { calls: Arc::clone(&self.0), entry: None }
    }

    /// Begins a call.
    pub(super) fn begin<B>(&self, request: &Request<B>) -> Call {
        // Only the task of the connection writes this.
        self.0.opened.store(self.opened() + 1, Relaxed);
        let end = self.0.limit.as_ref().and_then(|limit| limit.end(request));
        Call { calls: Arc::clone(&self.0), _open: Arc::clone(&self.0.open), end, alarm: None, waiting: None }
    }
}

impl Seen {
    fn unsent_answer(&self, request_id: Option<&HeaderValue>, unsent_bytes: usize) -> UnsentAnswer {
        let id = request_id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        UnsentAnswer { request_id: id.to_owned(), peer: self.peer.origin.to_string(), unsent_bytes }
    }
}

/// Answer data that the connection has and its socket does not accept: one entry among the unread answers. If the
/// connection ends in this state, the answers are cut.
pub(super) struct Backlog {
    calls: Arc<Seen>,
    entry: Option<usize>,
}

impl Backlog {
    /// Records whether the socket is blocked.
    pub(super) fn note(&mut self, is_blocked: bool) {
        match self.entry {
            None if is_blocked => {
                let last = self.calls.last.lock().clone();
                self.entry = Some(self.calls.unsent.enter(self.calls.unsent_answer(last.as_ref(), 0)));
            }
            Some(_) if !is_blocked => self.leave(false),
            _ => {}
        }
    }

    fn leave(&mut self, is_cut: bool) {
        if let Some(entry) = self.entry.take() {
            self.calls.unsent.leave(entry, is_cut);
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.leave(true);
    }
}

/// An open call. It is given up at its time limit, or when its answer makes no progress.
pub(super) struct Call {
    calls: Arc<Seen>,
    _open: Arc<()>,
    end: Option<Instant>,
    /// Most calls end at their first poll. The timer is made only for the others.
    alarm: Option<Pin<Box<Sleep>>>,
    /// The answer, while it waits for its reader.
    waiting: Option<Waiting>,
}

struct Waiting {
    entry: usize,
    unsent: usize,
    until: Option<Instant>,
}

impl Call {
    /// Ready when a pending call must be given up.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stalled = self.waiting.as_ref().and_then(|waiting| waiting.until);
        let Some(at) = [self.end, stalled].into_iter().flatten().min() else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if alarm.deadline() != at {
            alarm.as_mut().reset(at);
        }
        ready!(alarm.poll_unpin(cx));
        if stalled == Some(at) {
            self.leave(true);
        }
        Poll::Ready(())
    }

    /// Records that the answer waits for its reader with so many bytes. It may wait as long as some of them are read.
    pub(super) fn wait(&mut self, request_id: Option<&HeaderValue>, unsent: usize) {
        let until = Instant::now().checked_add(self.calls.stall);
        match &mut self.waiting {
            Some(waiting) if waiting.unsent == unsent => {}
            Some(waiting) => {
                (waiting.unsent, waiting.until) = (unsent, until);
                self.calls.unsent.0.answers.lock().waiting[waiting.entry].unsent_bytes = unsent;
            }
            None => {
                let entry = self.calls.unsent.enter(self.calls.unsent_answer(request_id, unsent));
                self.waiting = Some(Waiting { entry, unsent, until });
            }
        }
    }

    /// Records that the whole answer was given to the connection.
    pub(super) fn handed_over(&self, request_id: Option<&HeaderValue>) {
        *self.calls.last.lock() = request_id.cloned();
    }

    /// Records that nothing waits for the reader.
    pub(super) fn sent(&mut self) {
        self.leave(false);
    }

    fn leave(&mut self, is_cut: bool) {
        if let Some(Waiting { entry, .. }) = self.waiting.take() {
            self.calls.unsent.leave(entry, is_cut);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.sent();
    }
}
