//! The open calls of one connection, for HTTP/1.1 and HTTP/2: their number, their time limits, and their unread
//! answers.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
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

use super::stream::Activity;
use crate::model::Peer;

/// Time that a stream lasts beyond its limit, so that the caller's own timer fires first.
const GRACE: Duration = Duration::from_millis(100);

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The time limit of a call's stream, by its path and headers. `None` means no limit.
pub type StreamLimit = Arc<dyn Fn(&str, &HeaderMap) -> Option<Duration> + Send + Sync>;

/// An answer that its peer has not read to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadAnswer {
    /// Its request id; empty if it has none.
    pub request_id: String,
    /// The peer of its connection.
    pub peer: String,
    /// Bytes that were ready, but not sent. 0 if the connection got the whole answer.
    pub unsent_bytes: usize,
}

/// The unread answers of a server.
#[derive(Default)]
pub(super) struct UnreadAnswers {
    answers: Mutex<Answers>,
    /// Notified when the last one was read.
    all_read: Notify,
}

#[derive(Default)]
struct Answers {
    waiting: Slab<UnreadAnswer>,
    /// Answers that were reset during a drain because they made no progress.
    cut: Option<Vec<UnreadAnswer>>,
}

impl UnreadAnswers {
    /// Returns when all answers are read. Cancel safe.
    pub(super) async fn all_read(&self) {
        loop {
            let all_read = self.all_read.notified();
            if self.is_empty() {
                return;
            }
            all_read.await;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answers.lock().waiting.is_empty()
    }

    fn enter(self: &Arc<Self>, answer: UnreadAnswer) -> ListedAnswer {
        let key = self.answers.lock().waiting.insert(answer);
        ListedAnswer { answers: Arc::clone(self), key, is_cut: false }
    }

    /// Starts to record answers that are cut.
    pub(super) fn keep_cut(&self) {
        self.answers.lock().cut.get_or_insert_default();
    }

    /// Unread answers, and those that were cut since [`keep_cut`](Self::keep_cut).
    pub(super) fn list(&self) -> Vec<UnreadAnswer> {
        let answers = self.answers.lock();
        answers.waiting.iter().map(|(_, answer)| answer).chain(answers.cut.iter().flatten()).cloned().collect()
    }
}

/// An unread answer on the list. Dropping it removes it.
struct ListedAnswer {
    answers: Arc<UnreadAnswers>,
    key: usize,
    /// Whether the rest of the answer is never sent.
    is_cut: bool,
}

impl Drop for ListedAnswer {
    fn drop(&mut self) {
        let mut answers = self.answers.answers.lock();
        let answer = answers.waiting.remove(self.key);
        if let Some(cut) = answers.cut.as_mut().filter(|_| self.is_cut) {
            cut.push(answer);
        }
        if answers.waiting.is_empty() {
            self.answers.all_read.notify_waiters();
        }
    }
}

/// The calls of one connection.
pub(super) struct Calls {
    peer: Arc<Peer>,
    limit: Option<StreamLimit>,
    stall: Duration,
    unread: Arc<UnreadAnswers>,
    open: AtomicUsize,
    opened: AtomicU64,
    /// Request id of the last large answer that the connection got.
    last: Mutex<Option<HeaderValue>>,
}

impl Calls {
    pub(super) fn new(
        peer: Arc<Peer>,
        limit: Option<StreamLimit>,
        stall: Duration,
        unread: Arc<UnreadAnswers>,
    ) -> Arc<Self> {
        let (open, opened, last) = Default::default();
        Arc::new(Self { peer, limit, stall, unread, open, opened, last })
    }

    /// Open calls.
    pub(super) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Calls so far.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Tracks answer data that waits because the socket is blocked.
    pub(super) fn backlog(self: &Arc<Self>, activity: Activity) -> Backlog {
        Backlog { calls: Arc::clone(self), activity, listed: None }
    }

    /// Begins a call.
    pub(super) fn begin<B>(self: &Arc<Self>, request: &Request<B>) -> Call {
        // Only the connection's task writes this counter.
        self.opened.store(self.opened() + 1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        let limit = self.limit.as_ref().and_then(|limit| limit(request.uri().path(), request.headers()));
        let end = limit.and_then(|limit| Instant::now().checked_add(limit)?.checked_add(GRACE));
        Call { calls: Arc::clone(self), end, alarm: None, waiting: None }
    }

    /// Adds an unread answer to the list.
    fn list_unread(&self, request_id: Option<&HeaderValue>, unsent_bytes: usize) -> ListedAnswer {
        let id = request_id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        let peer = self.peer.origin.to_string();
        self.unread.enter(UnreadAnswer { request_id: id.to_owned(), peer, unsent_bytes })
    }
}

/// Answer data that the connection has, but its blocked socket does not accept. It counts as one unread answer. If the
/// connection ends in this state, the answers are cut.
pub(super) struct Backlog {
    calls: Arc<Calls>,
    activity: Activity,
    /// The unread answer, while the socket is blocked.
    listed: Option<ListedAnswer>,
}

impl Backlog {
    /// Records whether the socket is blocked.
    pub(super) fn update(&mut self) {
        match (&mut self.listed, self.activity.is_blocked()) {
            (None, true) => {
                let last = self.calls.last.lock().clone();
                let listed = self.listed.insert(self.calls.list_unread(last.as_ref(), 0));
                listed.is_cut = true;
            }
            (Some(listed), false) => {
                listed.is_cut = false;
                self.listed = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
}

/// An open call. It is ended at its time limit, or when its answer makes no progress.
pub(super) struct Call {
    calls: Arc<Calls>,
    end: Option<Instant>,
    /// Most calls end at their first poll, so the timer is created only for the others.
    alarm: Option<Pin<Box<Sleep>>>,
    /// The answer, while it waits for its reader.
    waiting: Option<Waiting>,
}

/// An answer that waits for its reader.
struct Waiting {
    listed: ListedAnswer,
    unsent_bytes: usize,
    /// When it is cut, unless its reader makes progress.
    until: Option<Instant>,
}

impl Call {
    /// Ready when the pending call must be ended.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stalled = self.waiting.as_ref().and_then(|waiting| waiting.until);
        let Some(at) = [self.end, stalled].into_iter().flatten().min() else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if alarm.deadline() != at {
            alarm.as_mut().reset(at);
        }
        ready!(alarm.poll_unpin(cx));
        if let Some(mut waiting) = self.waiting.take_if(|_| stalled == Some(at)) {
            waiting.listed.is_cut = true;
        }
        Poll::Ready(())
    }

    /// Records that these bytes of the answer wait for its reader. The answer may wait as long as the reader makes
    /// progress.
    pub(super) fn wait(&mut self, request_id: Option<&HeaderValue>, unsent_bytes: usize) {
        let until = Instant::now().checked_add(self.calls.stall);
        match &mut self.waiting {
            Some(waiting) if waiting.unsent_bytes == unsent_bytes => {}
            Some(waiting) => {
                (waiting.unsent_bytes, waiting.until) = (unsent_bytes, until);
                self.calls.unread.answers.lock().waiting[waiting.listed.key].unsent_bytes = unsent_bytes;
            }
            None => {
                let listed = self.calls.list_unread(request_id, unsent_bytes);
                self.waiting = Some(Waiting { listed, unsent_bytes, until });
            }
        }
    }

    /// Records that the connection got the whole answer.
    pub(super) fn handed_over(&self, request_id: Option<&HeaderValue>) {
        *self.calls.last.lock() = request_id.cloned();
    }

    /// Records that no data waits for the reader.
    pub(super) fn sent(&mut self) {
        self.waiting = None;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.open.fetch_sub(1, Relaxed);
    }
}
