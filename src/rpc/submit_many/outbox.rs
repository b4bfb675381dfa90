//! The queue of unread results of a `SubmitMany` call.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::Stream;
use parking_lot::Mutex;
use tonic::Status;

use crate::{
    auth::Hold,
    memory::Charge,
    proto::{SubmitManyResponse, submit_many_response::Outcome},
};

/// Bytes of unread output at which no more jobs are read. Running jobs may exceed it.
const MAX_UNREAD_BYTES: usize = 4 << 20;

/// Results on their way from the driver of a call to its reader. A channel would need a permit, a block and two
/// wake-ups; this needs one push, because both run on one thread. The reader takes results in batches, because neither
/// side runs before the other waits.
pub(super) struct Outbox(Arc<Mutex<State>>);

/// The reader's end: returns results, and then the status of the call. Dropping it notifies the driver.
pub(super) struct Results {
    state: Arc<Mutex<State>>,
    /// Results that were taken in one batch.
    taken: VecDeque<(SubmitManyResponse, Kept)>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(SubmitManyResponse, Kept)>,
    /// Output bytes of the waiting results.
    bytes: usize,
    /// Results that the reader took last, and their bytes. They count as unread until the reader polls again.
    lent: usize,
    lent_bytes: usize,
    /// Final status of the call, once the driver is gone; an inner `None` is OK.
    end: Option<Option<Status>>,
    left: bool,
    /// The driver waits until fewer results than this are unread; 0 if it does not wait.
    wanted: usize,
    reader: Option<Waker>,
    driver: Option<Waker>,
}

/// Resources that a result holds until it is read.
#[derive(Default)]
pub(super) struct Kept {
    /// Its memory among unread answers.
    pub(super) _charge: Option<Charge>,
    /// The tenant's quota.
    pub(super) _hold: Option<Hold>,
}

impl State {
    /// Number of unread results; a very large number if their bytes exceed the limit.
    fn unread(&self) -> usize {
        if self.bytes + self.lent_bytes > MAX_UNREAD_BYTES { usize::MAX / 2 } else { self.waiting.len() + self.lent }
    }
}

fn output_bytes(response: &SubmitManyResponse) -> usize {
    match &response.outcome {
        Some(Outcome::Result(result)) => result.output.len(),
        Some(Outcome::Failure(_)) | None => 0,
    }
}

impl Outbox {
    pub(super) fn new() -> (Self, Results) {
        let state = Arc::<Mutex<State>>::default();
        (Self(Arc::clone(&state)), Results { state, taken: VecDeque::new() })
    }

    /// Adds a result. Returns the number of unread results.
    pub(super) fn push(&self, result: SubmitManyResponse, kept: Kept) -> usize {
        let mut state = self.0.lock();
        state.bytes += output_bytes(&result);
        state.waiting.push_back((result, kept));
        state.unread()
    }

    /// Wakes the reader for the pushed results. Call it before the driver waits.
    pub(super) fn wake_reader(&self) {
        let mut state = self.0.lock();
        let reader = if state.waiting.is_empty() { None } else { state.reader.take() };
        drop(state);
        wake(reader);
    }

    /// Results that the caller has not read.
    pub(super) fn unread(&self) -> usize {
        let mut state = self.0.lock();
        state.wanted = 0;
        state.unread()
    }

    /// Returns when fewer than `max` results are unread, or the caller has left. Cancel safe.
    pub(super) async fn below(&self, max: usize) {
        self.until(|state| {
            state.wanted = max;
            state.left || state.unread() < max
        })
        .await;
    }

    /// Returns when the caller has left. Cancel safe.
    pub(super) async fn left(&self) {
        self.until(|state| state.left).await;
    }

    /// Ends the call once its results are read.
    pub(super) fn end(self, status: Option<Status>) {
        self.0.lock().end = Some(status);
    }

    async fn until(&self, is_so: impl Fn(&mut State) -> bool) {
        std::future::poll_fn(|cx| {
            let mut state = self.0.lock();
            if is_so(&mut state) {
                return Poll::Ready(());
            }
            // One task waits for all of this, so only the latest waker counts.
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

impl Stream for Results {
    type Item = Result<SubmitManyResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { state, taken } = &mut *self;
        if let Some((result, _)) = taken.pop_front() {
            return Poll::Ready(Some(Ok(result)));
        }
        let mut state = state.lock();
        std::mem::swap(&mut state.waiting, taken);
        (state.lent, state.lent_bytes) = (taken.len(), std::mem::take(&mut state.bytes));
        let wanted = state.unread() < state.wanted;
        let driver = if wanted { state.driver.take() } else { None };
        let next = match taken.pop_front() {
            Some((result, _)) => Poll::Ready(Some(Ok(result))),
            None => match &mut state.end {
                Some(end) => Poll::Ready(end.take().map(Err)),
                None => {
                    state.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            },
        };
        drop(state);
        wake(driver);
        next
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        let (driver, unread) = {
            let mut state = self.state.lock();
            state.left = true;
            (state.driver.take(), std::mem::take(&mut state.waiting))
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

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};
    use tonic::Code;

    use super::*;

    fn result(tag: &str) -> SubmitManyResponse {
        SubmitManyResponse { tag: tag.to_owned(), outcome: None }
    }

    fn read(answers: &mut Results) -> Option<String> {
        let answer = answers.next().now_or_never()?;
        Some(answer.map_or("end".to_owned(), |answer| answer.map_or_else(|end| end.to_string(), |answer| answer.tag)))
    }

    #[test]
    fn results_count_until_the_reader_comes_back() {
        let (outbox, mut answers) = Outbox::new();
        assert_eq!([outbox.push(result("a"), Kept::default()), outbox.push(result("b"), Kept::default())], [1, 2]);
        assert_eq!(read(&mut answers).as_deref(), Some("a"));
        assert_eq!(outbox.push(result("c"), Kept::default()), 3);
        assert_eq!([read(&mut answers).as_deref(), read(&mut answers).as_deref()], [Some("b"), Some("c")]);
        assert_eq!(outbox.unread(), 1);
        assert_eq!(read(&mut answers), None);
        assert_eq!(outbox.unread(), 0);
    }

    #[test]
    fn what_was_pushed_is_read_before_the_end() {
        let (outbox, mut answers) = Outbox::new();
        outbox.push(result("a"), Kept::default());
        outbox.end(Some(Status::new(Code::DeadlineExceeded, "late")));
        assert_eq!(read(&mut answers).as_deref(), Some("a"));
        assert!(read(&mut answers).is_some_and(|end| end.contains("late")));
        let (outbox, mut answers) = Outbox::new();
        outbox.push(result("b"), Kept::default());
        drop(outbox);
        assert_eq!([read(&mut answers).as_deref(), read(&mut answers).as_deref()], [Some("b"), Some("end")]);
    }
}
