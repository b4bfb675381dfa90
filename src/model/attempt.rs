//! One attempt of a detached job: its token, and its last events for watchers.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tokio::{sync::watch, time::Instant};

/// Bytes of output that an attempt keeps for late watchers. The last chunk is kept even if it is larger.
const MAX_REPLAY: usize = 256 << 10;
/// Bytes that each chunk counts in addition to its contents.
const CHUNK: usize = 64;

/// A running attempt of a detached job.
#[derive(Debug)]
pub struct RunningAttempt {
    /// Its token.
    pub token: Arc<AttemptToken>,
    /// How often in a row its worker has crashed or was lost. After some, it runs alone there, which shows whether the
    /// job or one beside it was the cause.
    pub crashes: u32,
    shared_crash: AtomicBool,
    events: watch::Sender<Replay>,
}

/// Identifies one attempt of a detached job. The text form is `JOB/NUMBER/ROW`, which is unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptToken {
    /// Id of the detached job, the same for each attempt. Use it as an idempotency key.
    pub job: String,
    /// Number of the attempt, from 1. It only increases: a receiver that has seen a larger number may refuse this one.
    pub number: u32,
    /// Number of the job in its store. A later job with the same id has a larger one.
    pub row: i64,
}

impl fmt::Display for AttemptToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.job, self.number, self.row)
    }
}

/// The last events of an attempt.
#[derive(Debug, Default)]
pub struct Replay {
    chunks: VecDeque<Bytes>,
    /// Offset of the first chunk in the output.
    begin: u64,
    /// Bytes of all chunks, including the overhead.
    size: usize,
    /// The last progress report.
    pub progress: Option<ProgressReport>,
    /// Number of progress reports.
    pub progresses: u64,
}

/// A progress report of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgressReport {
    /// Share of the work that is done, from 0 to 1.
    pub fraction: f64,
    /// What the handler is doing, for people.
    pub message: String,
    /// When it was reported.
    pub at: Instant,
}

impl RunningAttempt {
    /// An attempt without events.
    #[must_use]
    pub fn new(token: AttemptToken, crashes: u32) -> Self {
        Self { token: Arc::new(token), crashes, shared_crash: AtomicBool::new(false), events: watch::Sender::default() }
    }

    /// Its worker crashed while it ran other jobs too.
    pub fn note_shared_crash(&self) {
        self.shared_crash.store(true, Ordering::Relaxed);
    }

    /// Whether its worker crashed while it ran other jobs too.
    #[must_use]
    pub fn has_shared_crash(&self) -> bool {
        self.shared_crash.load(Ordering::Relaxed)
    }

    /// Watches the events. The channel closes when the attempt ends.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Replay> {
        self.events.subscribe()
    }

    /// Adds a chunk of output.
    pub fn write(&self, chunk: Bytes) {
        self.events.send_modify(|replay| {
            replay.size += chunk.len() + CHUNK;
            replay.chunks.push_back(chunk);
            while replay.size > MAX_REPLAY && replay.chunks.len() > 1 {
                let dropped = replay.chunks.pop_front().map_or(0, |chunk| chunk.len());
                replay.size -= dropped + CHUNK;
                replay.begin += dropped as u64;
            }
        });
    }

    /// Reports progress.
    pub fn progress(&self, fraction: f64, message: String) {
        self.events.send_modify(|replay| {
            replay.progress = Some(ProgressReport { fraction, message, at: Instant::now() });
            replay.progresses += 1;
        });
    }
}

impl Replay {
    /// A part of the output from `offset` on, and its own offset. That is larger than `offset` if bytes in between were
    /// dropped.
    #[must_use]
    pub fn output(&self, offset: u64) -> Option<(u64, Bytes)> {
        let mut begin = self.begin;
        for chunk in &self.chunks {
            let from = offset.saturating_sub(begin);
            if from < chunk.len() as u64 {
                return Some((begin + from, chunk.slice(from as usize..)));
            }
            begin += chunk.len() as u64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_watchers_get_what_fits() {
        let attempt = RunningAttempt::new(AttemptToken { job: "a/b".into(), number: 2, row: 7 }, 0);
        assert_eq!(attempt.token.to_string(), "a/b/2/7");
        let told = attempt.watch();
        let output = |offset| told.borrow().output(offset);
        assert_eq!(output(0), None);
        attempt.write("abc".into());
        attempt.write("de".into());
        assert_eq!(
            (output(0), output(1), output(4), output(5)),
            (Some((0, "abc".into())), Some((1, "bc".into())), Some((4, "e".into())), None)
        );
        let large = Bytes::from(vec![0; MAX_REPLAY]);
        attempt.write(large.clone());
        assert_eq!((output(0), output(7).map(|(offset, _)| offset)), (Some((5, large)), Some(7)));
        for _ in 0..MAX_REPLAY {
            attempt.write("x".into());
        }
        assert!(told.borrow().size <= MAX_REPLAY && told.borrow().chunks.len() > 4_000);
        assert_eq!(output(0).map(|(offset, _)| offset), Some(told.borrow().begin));
    }
}
