//! What a pool keeps of each job, so that the last ones can be replayed under other settings: no payload, and no name
//! of a caller.

use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

use super::{Criticality, Job, Outcome, WhenFull};

/// What the scheduler heeds in a job, besides its kind and its deadline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    pub(crate) class: Criticality,
    pub(crate) when_full: Option<WhenFull>,
    pub(crate) tenant: Hash16,
    pub(crate) ordering_key: Hash16,
    pub(crate) limit_key: Hash16,
}

/// Sixteen bits of the hash of a name; 0 for the empty one. Few of the names that are in use at a time share one.
pub(crate) type Hash16 = u16;

/// A job that ended or was refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RecordedJob {
    /// Microseconds from the start of the recording to the arrival.
    pub(crate) at: u64,
    /// Seconds from the arrival until the answer must be sent.
    pub(crate) budget: f32,
    /// Seconds from the arrival to the start of the run, or to the end of the job.
    pub(crate) wait: f32,
    /// Seconds for which it had a worker.
    pub(crate) held: f32,
    pub(crate) traits: Traits,
    /// Number of its kind in the pool.
    pub(crate) kind: u16,
    pub(crate) end: RecordedEnd,
    /// Whether it is a detached one, which has its place in a divided limit from the store.
    pub(crate) is_stored: bool,
}

/// How a recorded job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedEnd {
    /// Its run came to an end by itself, so that it is known how long it needs a worker.
    Ran,
    /// It was not accepted, or another job took its place in the queue.
    Refused,
    /// It was stopped by its deadline or a limit on its run.
    Missed,
    /// It ended early for another reason: its caller left, or its worker.
    Cut,
}

impl Traits {
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            class: job.criticality,
            when_full: job.when_full,
            tenant: hash(&job.tenant),
            ordering_key: hash(&job.ordering_key),
            limit_key: hash(&job.limit_key),
        }
    }
}

impl RecordedEnd {
    /// The names of the ends in metrics, in order.
    pub(crate) const NAMES: [&str; 4] = ["ran", "refused", "missed", "cut"];

    pub(crate) fn of(outcome: Outcome, started: bool) -> Self {
        match outcome {
            Outcome::Shed | Outcome::Replaced => Self::Refused,
            Outcome::DeadlineExceeded | Outcome::RunTimeout | Outcome::ExpiredInQueue => Self::Missed,
            Outcome::Completed
            | Outcome::HandlerFailed
            | Outcome::WorkerCrashed
            | Outcome::OutputTooLarge
            | Outcome::HandlerPanicked
                if started =>
            {
                Self::Ran
            }
            _ => Self::Cut,
        }
    }
}

fn hash(name: &str) -> Hash16 {
    // The upper bits are the best ones.
    if name.is_empty() { 0 } else { ((FxBuildHasher.hash_one(name) >> 48) as u16).max(1) }
}

// Each pool keeps many.
const _: () = assert!(size_of::<RecordedJob>() <= 32);
