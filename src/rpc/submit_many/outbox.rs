use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::Stream;
use parking_lot::Mutex;
use tonic::Status;

use crate::proto::{SubmitManyResponse, submit_many_response::Outcome};

/// Output bytes that may be unread before no more jobs are read. What runs by then adds to them.
const UNREAD_BYTES: usize = 4 << 20;

/// Results on their way from the driver of a call to its reader. A channel of the library takes a permit, a block and
/// two wake-ups for what is one push here: the driver and the reader live on one thread.
pub(super) struct Outbox(Arc<Mutex<State>>);

/// The caller's end: results, and then the status of the call. Dropping it tells the driver.
pub(super) struct Answers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    results: VecDeque<SubmitManyResponse>,
    /// Output bytes of the results.
    bytes: usize,
    /// What the call ends with, once the driver is gone: `None` inside is OK.
    end: Option<Option<Status>>,
    left: bool,
    /// The driver waits until fewer results than this are unread; 0 where it does not.
    wanted: usize,
    reader: Option<Waker>,
    driver: Option<Waker>,
}

impl State {
    /// Results that are unread; more than any window holds where they are too large together.
    fn count(&self) -> usize {
        if self.bytes > UNREAD_BYTES { usize::MAX / 2 } else { self.results.len() }
    }
}

fn output_bytes(response: &SubmitManyResponse) -> usize {
    match &response.outcome {
        Some(Outcome::Result(result)) => result.output.len(),
        Some(Outcome::Failure(_)) | None => 0,
    }
}

impl Outbox {
    pub(super) fn new() -> (Self, Answers) {
        let state = Arc::new(Mutex::new(State::default()));
        (Self(Arc::clone(&state)), Answers(state))
    }

    /// Returns how many results are unread with this one.
    pub(super) fn push(&self, result: SubmitManyResponse) -> usize {
        let (reader, unread) = {
            let mut state = self.0.lock();
            state.bytes += output_bytes(&result);
            state.results.push_back(result);
            (state.reader.take(), state.count())
        };
        wake(reader);
        unread
    }

    /// Results that the caller has not read.
    pub(super) fn unread(&self) -> usize {
        let mut state = self.0.lock();
        state.wanted = 0;
        state.count()
    }

    /// Returns when fewer than `most` results are unread, or the caller has left. Cancel safe.
    pub(super) async fn below(&self, most: usize) {
        self.until(|state| {
            state.wanted = most;
            state.left || state.count() < most
        })
        .await;
    }

    /// Returns when the caller has left. Cancel safe.
    pub(super) async fn left(&self) {
        self.until(|state| state.left).await;
    }

    /// Ends the call, once its results are read.
    pub(super) fn end(self, status: Option<Status>) {
        self.0.lock().end = Some(status);
    }

    async fn until(&self, is_so: impl Fn(&mut State) -> bool) {
        std::future::poll_fn(|cx| {
            let mut state = self.0.lock();
            if is_so(&mut state) {
                return Poll::Ready(());
            }
            // One task waits for all of this: the latest waker is the only one.
            state.driver = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let reader = {
            let mut state = self.0.lock();
            state.end.get_or_insert_default();
            state.reader.take()
        };
        wake(reader);
    }
}

impl Stream for Answers {
    type Item = Result<SubmitManyResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.lock();
        if let Some(result) = state.results.pop_front() {
            state.bytes -= output_bytes(&result);
            let wanted = state.count() < state.wanted;
            let driver = if wanted { state.driver.take() } else { None };
            drop(state);
            wake(driver);
            return Poll::Ready(Some(Ok(result)));
        }
        if let Some(end) = &mut state.end {
            return Poll::Ready(end.take().map(Err));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let (driver, unread) = {
            let mut state = self.0.lock();
            state.left = true;
            (state.driver.take(), std::mem::take(&mut state.results))
        };
        drop(unread);
        wake(driver);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
