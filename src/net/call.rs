//! What calls of one connection have in common, whichever protocol they came by: how many are open, when each one ends,
//! and which answers are on their way.

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

/// What a stream lasts longer than it may: at its deadline, the clock of its caller is to speak first.
const GRACE: Duration = Duration::from_millis(100);

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How long the stream of a call may last, by the path of the call and its headers. `None` is for ever.
#[derive(Clone)]
pub struct StreamLimit(Arc<Rule>);

type Rule = dyn Fn(&str, &HeaderMap) -> Option<Duration> + Send + Sync;

impl StreamLimit {
    /// A limit that `rule` tells.
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

/// An answer that was not sent to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsentAnswer {
    /// Its request id; empty where it has none.
    pub request_id: String,
    /// The other end of its connection.
    pub peer: String,
    /// Bytes that were ready and not sent; 0 where it was handed to the connection, whose peer did not take all of it.
    pub unsent_bytes: usize,
}

/// The answers of a server that wait for their readers. Clones share them.
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
    /// Those that were reset because they stood still, in a drain.
    cut: Option<Vec<UnsentAnswer>>,
}

impl UnsentAnswers {
    /// Returns when no answer waits. Cancel safe.
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

    /// From now on, those that are cut are listed.
    pub(super) fn keep_cut(&self) {
        self.0.answers.lock().cut.get_or_insert_default();
    }

    /// Those that wait, and those that were cut since [`keep_cut`](Self::keep_cut).
    pub(super) fn list(&self) -> Vec<UnsentAnswer> {
        let answers = self.0.answers.lock();
        answers.waiting.iter().map(|(_, answer)| answer).chain(answers.cut.iter().flatten()).cloned().collect()
    }
}

/// The calls of one connection. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Calls(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    peer: Arc<Peer>,
    limit: Option<StreamLimit>,
    stall: Duration,
    unsent: UnsentAnswers,
    /// Every open call holds it.
    open: Arc<()>,
    opened: AtomicU64,
    /// Request id of the last large answer that was handed to the connection.
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

    /// Calls that are open.
    pub(super) fn open(&self) -> usize {
        Arc::strong_count(&self.0.open) - 1
    }

    /// Calls that were opened in all.
    pub(super) fn opened(&self) -> u64 {
        self.0.opened.load(Relaxed)
    }

    /// What tells that the socket does not take what was handed to it.
    pub(super) fn backlog(&self) -> Backlog {
        Backlog { calls: Arc::clone(&self.0), entry: None }
    }

    /// Begins a call.
    pub(super) fn begin<B>(&self, request: &Request<B>) -> Call {
        // Only the task of the connection writes it.
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

/// What a connection took of answers and its socket does not take yet: one entry among the answers that wait. A connection
/// that ends meanwhile has cut them.
pub(super) struct Backlog {
    calls: Arc<Seen>,
    entry: Option<usize>,
}

impl Backlog {
    /// Notes whether there is any.
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

/// An open call, and when it is given up: at its end, and when its answer stands still.
pub(super) struct Call {
    calls: Arc<Seen>,
    _open: Arc<()>,
    end: Option<Instant>,
    /// Most calls end at their first poll: the timer is made for those that do not.
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
    /// Ready when a call that is pending is to be given up.
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

    /// Notes that the answer waits for its reader with so many bytes. It may, for so long as some of them are read.
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

    /// Notes that all of the answer is with the connection.
    pub(super) fn handed_over(&self, request_id: Option<&HeaderValue>) {
        *self.calls.last.lock() = request_id.cloned();
    }

    /// Notes that nothing waits for the reader.
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
