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

/// Bytes of unread output from which on no more jobs are read. Jobs that already run may exceed it.
const MAX_UNREAD_BYTES: usize = 4 << 20;

/// Results on their way from the driver of a call to its reader. A channel would take a permit, a block and two
/// wake-ups, where this takes one push: the driver and the reader live on one thread. Results are handed over in
/// batches, because neither side runs before the other waits.
pub(super) struct Outbox {
    state: Arc<Mutex<State>>,
    /// Results that are not yet handed over.
    held: Batch,
    /// Unread load at the last hand-over. The reader only lowers it.
    handed: Amount,
}

/// The reader's end: results, and then the status of the call. Dropping it notifies the driver.
pub(super) struct Answers {
    state: Arc<Mutex<State>>,
    /// Results that were taken in one batch.
    taken: VecDeque<(SubmitManyResponse, Kept)>,
}

#[derive(Default)]
struct State {
    waiting: Batch,
    /// What the reader took last. It counts as unread until the reader returns for more.
    lent: Amount,
    /// Final status of the call, once the driver is gone; an inner `None` is OK.
    end: Option<Option<Status>>,
    left: bool,
    /// The driver waits until fewer results than this are unread; 0 if it does not wait.
    wanted: usize,
    reader: Option<Waker>,
    driver: Option<Waker>,
}

#[derive(Default)]
struct Batch {
    results: VecDeque<(SubmitManyResponse, Kept)>,
    /// Output bytes of the results.
    bytes: usize,
}

/// Resources that a result holds until it is read.
#[derive(Default)]
pub(super) struct Kept {
    /// Its memory among unread answers.
    pub(super) _charge: Option<Charge>,
    /// The tenant's quota.
    pub(super) _hold: Option<Hold>,
}

/// Results, and their output bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    results: usize,
    bytes: usize,
}

impl Batch {
    fn load(&self) -> Amount {
        Amount { results: self.results.len(), bytes: self.bytes }
    }
}

impl Amount {
    fn and(self, other: Self) -> Self {
        Self { results: self.results + other.results, bytes: self.bytes + other.bytes }
    }

    /// Number of results; `usize::MAX` if they are too large together.
    fn count(self) -> usize {
        if self.bytes > MAX_UNREAD_BYTES { usize::MAX / 2 } else { self.results }
    }
}

impl State {
    fn unread(&self) -> Amount {
        self.waiting.load().and(self.lent)
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
        let answers = Answers { state: Arc::clone(&state), taken: VecDeque::new() };
        (Self { state, held: Batch::default(), handed: Amount::default() }, answers)
    }

    /// Adds a result, which the reader sees after the next [`hand_over`](Self::hand_over). Returns an upper bound of
    /// the unread results.
    pub(super) fn push(&mut self, result: SubmitManyResponse, kept: Kept) -> usize {
        self.held.bytes += output_bytes(&result);
        self.held.results.push_back((result, kept));
        self.handed.and(self.held.load()).count()
    }

    /// Hands the pushed results to the reader. Call it before the driver waits.
    pub(super) fn hand_over(&mut self) {
        if self.held.results.is_empty() {
            return;
        }
        let reader = {
            let mut state = self.state.lock();
            state.waiting.bytes += std::mem::take(&mut self.held.bytes);
            if state.waiting.results.is_empty() {
                std::mem::swap(&mut state.waiting.results, &mut self.held.results);
            } else {
                state.waiting.results.append(&mut self.held.results);
            }
            self.handed = state.unread();
            state.reader.take()
        };
        wake(reader);
    }

    /// Results that the caller has not read.
    pub(super) fn unread(&mut self) -> usize {
        let mut state = self.state.lock();
        state.wanted = 0;
        self.handed = state.unread();
        self.handed.and(self.held.load()).count()
    }

    /// Returns when fewer than `max` results are unread, or the caller has left. Cancel safe.
    pub(super) async fn below(&self, max: usize) {
        self.until(|state| {
            state.wanted = max;
            state.left || state.unread().count() < max
        })
        .await;
    }

    /// Returns when the caller has left. Cancel safe.
    pub(super) async fn left(&self) {
        self.until(|state| state.left).await;
    }

    /// Ends the call, once its results are read.
    pub(super) fn end(mut self, status: Option<Status>) {
        self.hand_over();
        self.state.lock().end = Some(status);
    }

    async fn until(&self, is_so: impl Fn(&mut State) -> bool) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if is_so(&mut state) {
                return Poll::Ready(());
            }
            // One task waits for all of this, so that the latest waker is the only one.
            state.driver = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.hand_over();
        let reader = {
            let mut state = self.state.lock();
            state.end.get_or_insert_default();
            state.reader.take()
        };
        wake(reader);
    }
}

impl Stream for Answers {
    type Item = Result<SubmitManyResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { state, taken } = &mut *self;
        if let Some((result, _)) = taken.pop_front() {
            return Poll::Ready(Some(Ok(result)));
        }
        let mut state = state.lock();
        std::mem::swap(&mut state.waiting.results, taken);
        state.lent = Amount { results: taken.len(), bytes: std::mem::take(&mut state.waiting.bytes) };
        let wanted = state.unread().count() < state.wanted;
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

impl Drop for Answers {
    fn drop(&mut self) {
        let (driver, unread) = {
            let mut state = self.state.lock();
            state.left = true;
            (state.driver.take(), std::mem::take(&mut state.waiting.results))
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

    fn read(answers: &mut Answers) -> Option<String> {
        let answer = answers.next().now_or_never()?;
        Some(answer.map_or("end".to_owned(), |answer| answer.map_or_else(|end| end.to_string(), |answer| answer.tag)))
    }

    #[test]
    fn results_go_over_together_and_count_until_the_reader_comes_back() {
        let (mut outbox, mut answers) = Outbox::new();
        assert_eq!([outbox.push(result("a"), Kept::default()), outbox.push(result("b"), Kept::default())], [1, 2]);
        assert_eq!(read(&mut answers), None);
        outbox.hand_over();
        assert_eq!(outbox.push(result("c"), Kept::default()), 3);
        assert_eq!(read(&mut answers).as_deref(), Some("a"));
        assert_eq!(outbox.unread(), 3);
        assert_eq!([read(&mut answers).as_deref(), read(&mut answers).as_deref()], [Some("b"), None]);
        assert_eq!(outbox.unread(), 1);
    }

    #[test]
    fn what_was_pushed_is_read_before_the_end() {
        let (mut outbox, mut answers) = Outbox::new();
        outbox.push(result("a"), Kept::default());
        outbox.end(Some(Status::new(Code::DeadlineExceeded, "late")));
        assert_eq!(read(&mut answers).as_deref(), Some("a"));
        assert!(read(&mut answers).is_some_and(|end| end.contains("late")));
        let (mut outbox, mut answers) = Outbox::new();
        outbox.push(result("b"), Kept::default());
        drop(outbox);
        assert_eq!([read(&mut answers).as_deref(), read(&mut answers).as_deref()], [Some("b"), Some("end")]);
    }
}
