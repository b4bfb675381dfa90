//! Reads the rest of requests whose calls have ended.
//!
//! A client that still sends its request when its answer is complete is told so by a reset of the stream. Some proxies,
//! such as HAProxy 2.6, then forward the reset and lose the answer. So a bounded rest is first read and discarded.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use h2::RecvStream;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

/// Longest time for one rest.
const MAX_TIME: Duration = Duration::from_secs(3);
/// Maximum bytes of one rest: somewhat more than the largest payload by default.
const MAX_BYTES: usize = 8 << 20;

/// Where request bodies leave what they did not read.
#[derive(Debug, Default)]
pub(super) struct Left {
    streams: Mutex<Vec<RecvStream>>,
    waker: AtomicWaker,
}

impl Left {
    /// Leaves a request that was not read to its end.
    pub(super) fn push(&self, stream: RecvStream) {
        self.streams.lock().push(stream);
        self.waker.wake();
    }
}

/// The rests of a connection's requests. They are no more than its open streams.
#[derive(Debug, Default)]
pub(super) struct Rests {
    pub(super) left: Arc<Left>,
    reading: Vec<Rest>,
}

#[derive(Debug)]
struct Rest {
    stream: RecvStream,
    bytes: usize,
    alarm: Pin<Box<Sleep>>,
}

impl Rests {
    /// Reads what has arrived. Dropping a rest resets its stream, unless the client has ended it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        self.left.waker.register(cx.waker());
        let left = std::mem::take(&mut *self.left.streams.lock());
        self.reading.extend(left.into_iter().map(|stream| Rest { stream, bytes: 0, alarm: Box::pin(sleep(MAX_TIME)) }));
        self.reading.retain_mut(|rest| rest.poll(cx).is_pending());
    }
}

impl Rest {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(data) = self.stream.poll_data(cx) {
            let Some(Ok(data)) = data else { return Poll::Ready(()) };
            self.bytes += data.len();
            if self.bytes > MAX_BYTES || self.stream.flow_control().release_capacity(data.len()).is_err() {
                return Poll::Ready(());
            }
        }
        self.alarm.as_mut().poll(cx)
    }
}
