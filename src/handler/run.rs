//! One run of a handler: its start, its runner, its output, the reason to stop, and the code that catches its panics.
//! `src/pool/run.rs` runs the handlers, `src/pool/outcome.rs` turns a panic into the job's outcome, and the stop ladder is in
//! `src/pool/stop.rs`.

use std::{
    any::Any,
    fmt,
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rand::RngExt;
use tokio::{sync::mpsc, time::Instant};

use crate::model::{Deadline, HandlerError};

/// Characters of a panic's message that are kept.
const LONGEST_MESSAGE: usize = 512;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why a job must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// Its deadline, or a limit of its run.
    Deadline,
    /// Its caller disconnected or cancelled.
    Caller,
    /// The drain reached its time limit.
    Drain,
    /// An operator cancelled the job.
    Operator,
}

impl StopReason {
    /// Name in messages to workers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "DEADLINE",
            Self::Caller => "CALLER",
            Self::Drain => "DRAIN",
            Self::Operator => "OPERATOR",
        }
    }
}

/// What runs a job outside of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Runner {
    /// A process on this machine, by its id.
    Process(u32),
    /// An attached worker, by name and address.
    Worker(Arc<str>),
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Worker(shown) => write!(f, "worker {shown}"),
        }
    }
}

/// Marks the start of a run, for readers on other threads. Plain atomics cost a short job less than a cell that guards
/// against a second write.
#[derive(Debug, Default)]
pub(super) struct StartMark {
    /// Nanoseconds from the arrival to the start, plus one; 0 before the mark.
    waited: AtomicU64,
    /// Longest run in nanoseconds; 0 if only the deadline limits it.
    limit: AtomicU64,
    /// Longest wait from the arrival in nanoseconds, after the mark was taken back; 0 if only the deadline limits it.
    wait_limit: AtomicU64,
    worker: AtomicU32,
}

impl StartMark {
    /// Marks the start of a run on `worker`, `waited` after the arrival, with a run limit of `limit`.
    pub(super) fn set(&self, worker: u32, waited: Duration, limit: Option<Duration>) {
        self.worker.store(worker, Ordering::Relaxed);
        self.limit.store(limit.map_or(0, |limit| nanos(limit).max(1)), Ordering::Relaxed);
        self.set_waited(waited);
    }

    /// Takes the mark back: the job has its worker, and waits for what runs it, for at most `limit` from its arrival.
    pub(super) fn take_back(&self, limit: Option<Duration>) {
        self.wait_limit.store(limit.map_or(0, |limit| nanos(limit).max(1)), Ordering::Relaxed);
        self.waited.store(0, Ordering::Release);
    }

    /// Marks the start again, after [`take_back`](Self::take_back).
    pub(super) fn set_waited(&self, waited: Duration) {
        // Stored last: a reader that sees this value also sees the others.
        self.waited.store(nanos(waited) + 1, Ordering::Release);
    }

    /// Time from the arrival to the start; `None` before the mark.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.waited.load(Ordering::Acquire).checked_sub(1).map(Duration::from_nanos)
    }

    /// When a job with this deadline is stopped: at the deadline, or earlier by the limit of its run, or of its wait.
    pub(super) fn until(&self, deadline: Deadline) -> Instant {
        let waited = self.waited();
        let limit = if waited.is_some() { &self.limit } else { &self.wait_limit };
        let limit = Some(limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0);
        let from = deadline.arrival() + waited.unwrap_or_default();
        let limited = limit.and_then(|limit| from.checked_add(Duration::from_nanos(limit)));
        limited.map_or(deadline.reply_by(), |end| end.min(deadline.reply_by()))
    }

    /// The worker; 0 before the mark.
    pub(super) fn worker(&self) -> u32 {
        self.worker.load(Ordering::Relaxed)
    }
}

/// A random pause after a failure: 0.5 to 1.5 times a base that doubles `doublings` times, from 100 ms to 30 s.
pub(crate) fn back_off(doublings: u32) -> Duration {
    SHORTEST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE).mul_f64(rand::rng().random_range(0.5..1.5))
}

/// Nanoseconds, limited to five centuries, which no deadline exceeds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX - 1)
}

/// What a running job sends to a streaming caller.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A piece of the output; never empty.
    Chunk(Bytes),
    /// Progress of the job.
    Progress {
        /// Share of the work that is done, from 0 to 1.
        fraction: f64,
        /// What the handler is doing, for people.
        message: String,
    },
}

/// Receives the output chunks of a job.
#[derive(Debug)]
pub struct OutputSink {
    /// Receives the chunks at once; `None` if the caller waits for the whole output.
    reader: Option<mpsc::Sender<Event>>,
    limit: usize,
    /// Bytes written so far.
    written: AtomicUsize,
    /// The collected chunks. They are counted under this lock.
    collected: Mutex<BytesMut>,
}

impl OutputSink {
    /// Collects up to `limit` bytes, for a caller that waits for the whole output.
    #[must_use]
    pub fn collect(limit: usize) -> Self {
        Self { reader: None, limit, written: AtomicUsize::new(0), collected: Mutex::default() }
    }

    /// Passes on up to `limit` bytes, as fast as `events` is read.
    #[must_use]
    pub fn stream(limit: usize, events: mpsc::Sender<Event>) -> Self {
        Self { reader: Some(events), limit, written: AtomicUsize::new(0), collected: Mutex::default() }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) async fn write(&self, chunk: Bytes) -> Result<(), HandlerError> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.admit(&chunk)?;
        match &self.reader {
            // The caller no longer reads.
            Some(events) => events.send(Event::Chunk(chunk)).await.map_err(|_| HandlerError::Stopped),
            None => Ok(()),
        }
    }

    /// Drops the report if the reader is behind, so that progress never slows a handler.
    pub(super) fn progress(&self, fraction: f64, message: String) {
        if let Some(events) = &self.reader {
            let _ = events.try_send(Event::Progress { fraction, message });
        }
    }

    /// Ends the output of a job with `last`. Returns the whole output, or for a streaming caller the part that is not
    /// sent yet.
    ///
    /// # Errors
    /// [`HandlerError::OutputTooLarge`] if `last` exceeds the limit.
    pub fn finish(&self, last: Bytes) -> Result<Bytes, HandlerError> {
        // Most handlers wrote nothing before, and need no lock. A task that a handler left running may still write;
        // such late chunks are not part of the output.
        if self.written() == 0 {
            self.count(last.len())?;
            return Ok(last);
        }
        let mut collected = self.collected.lock();
        self.count(last.len())?;
        if self.reader.is_some() || collected.is_empty() {
            return Ok(last);
        }
        collected.extend_from_slice(&last);
        Ok(collected.split().freeze())
    }

    /// Counts a chunk, and collects it unless the output is streamed.
    fn admit(&self, chunk: &Bytes) -> Result<(), HandlerError> {
        let mut collected = self.collected.lock();
        self.count(chunk.len())?;
        if self.reader.is_none() {
            collected.extend_from_slice(chunk);
        }
        Ok(())
    }

    fn count(&self, more: usize) -> Result<(), HandlerError> {
        let written = self.written();
        if more > self.limit.saturating_sub(written) {
            return Err(HandlerError::OutputTooLarge { limit: self.limit });
        }
        self.written.store(written + more, Ordering::Relaxed);
        Ok(())
    }
}

/// A value that belongs to a handler, and may panic when it is dropped. The panic is logged and not propagated.
pub(crate) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the value stays until it is taken for good")
    }

    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect("the value stays until it is taken for good")
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        if let Err(panic) = contain(|| drop(value)) {
            tracing::error!(panic, "a handler panicked while it was dropped");
        }
    }
}

/// Runs code of a handler. Returns the message of a panic as an error.
pub(crate) fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(panic_message)
}

/// The message of a panic, shortened.
pub(crate) fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text");
    let text = text.chars().take(LONGEST_MESSAGE).collect();
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Dropping this panic payload may panic as well, without end, so it is leaked.
        let _ = ManuallyDrop::new(again);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_set() {
        let arrival = Instant::now();
        let deadline = Deadline::new(arrival, Duration::from_secs(100), Duration::from_secs(1));
        let mark = StartMark::default();
        assert_eq!((mark.until(deadline), mark.waited(), mark.worker()), (deadline.reply_by(), None, 0));
        let short = Duration::from_nanos(1);
        let cases = [
            (Duration::ZERO, None, None),
            (short, Some(Duration::ZERO), Some(short * 2)),
            (Duration::from_nanos(1_234_567_891), Some(short), Some(Duration::from_nanos(1_234_567_892))),
            (Duration::from_secs(98), Some(Duration::from_secs(2)), None),
            (Duration::ZERO, Some(Duration::MAX), None),
        ];
        for (waited, limit, until) in cases {
            let mark = StartMark::default();
            mark.set(7, waited, limit);
            let until = until.map_or(deadline.reply_by(), |until| arrival + until);
            assert_eq!((mark.until(deadline), mark.waited(), mark.worker()), (until, Some(waited), 7), "{limit:?}");
            mark.take_back(None);
            assert_eq!((mark.until(deadline), mark.waited()), (deadline.reply_by(), None));
            mark.take_back(Some(short));
            assert_eq!(mark.until(deadline), arrival + short);
            mark.set_waited(waited);
            assert_eq!((mark.until(deadline), mark.waited(), mark.worker()), (until, Some(waited), 7), "{limit:?}");
        }
    }

    #[tokio::test]
    async fn collects_in_order_and_keeps_the_limit() {
        let sink = OutputSink::collect(5);
        sink.write("ab".into()).await.expect("fits");
        sink.write("c".into()).await.expect("fits");
        assert_eq!(sink.write("def".into()).await, Err(HandlerError::OutputTooLarge { limit: 5 }));
        assert_eq!(sink.finish("de".into()), Ok(Bytes::from("abcde")));
    }

    #[tokio::test]
    async fn a_reader_that_left_stops_the_handler() {
        let (events, reader) = mpsc::channel(1);
        let sink = OutputSink::stream(10, events);
        sink.write("ab".into()).await.expect("room for one");
        sink.progress(0.5, "half".into());
        drop(reader);
        assert_eq!(sink.write("c".into()).await, Err(HandlerError::Stopped));
    }
}
