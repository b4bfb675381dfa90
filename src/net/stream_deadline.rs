//! The end of a stream whose peer does not read.
//!
//! Where a peer gives no window, hyper does not look at the body any more, so no timer inside of it can fire: the stream
//! must be dropped from outside. hyper hands each stream to its executor right after it called the service for it, on
//! the same thread and with nothing in between, so the one can leave a note for the other.

use std::{
    cell::Cell,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Request};
use hyper::{rt::Executor, service::Service};
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, Sleep, sleep_until};

thread_local! {
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
}

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
        Instant::now().checked_add(limit)
    }
}

impl fmt::Debug for StreamLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamLimit")
    }
}

/// The streams of one connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Every open stream holds it.
    open: Arc<()>,
    opened: AtomicU64,
}

impl Streams {
    /// Streams that are open.
    pub(super) fn open(&self) -> usize {
        Arc::strong_count(&self.0.open) - 1
    }

    /// Streams that were opened in all.
    pub(super) fn opened(&self) -> u64 {
        self.0.opened.load(Relaxed)
    }
}

/// A service that leaves a note of when the stream of each call ends.
pub(super) struct Noting<S> {
    pub(super) service: S,
    pub(super) limit: Option<StreamLimit>,
    pub(super) streams: Streams,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Noting<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: Request<B>) -> S::Future {
        // Only the task of the connection writes it.
        self.streams.0.opened.store(self.streams.opened() + 1, Relaxed);
        END.set(self.limit.as_ref().and_then(|limit| limit.end(&request)));
        self.service.call(request)
    }
}

/// Runs streams, each until the end that was noted for it. A stream that is dropped is reset.
#[derive(Debug, Clone)]
pub(super) struct StreamExecutor(Streams);

impl StreamExecutor {
    pub(super) fn new(streams: Streams) -> Self {
        Self(streams)
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        TokioExecutor::new().execute(Bounded {
            stream,
            end: END.take(),
            alarm: None,
            _open: Arc::clone(&self.0.0.open),
        });
    }
}

pin_project_lite::pin_project! {
    /// A stream and its end. Most streams end at their first poll: the timer is made for those that do not.
    struct Bounded<F> {
        #[pin]
        stream: F,
        end: Option<Instant>,
        alarm: Option<Pin<Box<Sleep>>>,
        _open: Arc<()>,
    }
}

impl<F: Future<Output = ()>> Future for Bounded<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let bounded = self.project();
        match (bounded.stream.poll(cx), *bounded.end) {
            // Its peer had its time.
            (Poll::Pending, Some(end)) => {
                bounded.alarm.get_or_insert_with(|| Box::pin(sleep_until(end))).as_mut().poll(cx)
            }
            (polled, _) => polled,
        }
    }
}
