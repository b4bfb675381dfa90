//! Tests of the scheduler: checks of every job after each step, and the rules as cases.

mod cases;
mod cold_start;
mod drive;
mod flows;
mod job_model;
mod property;
mod rules;
mod script;
mod sizing;
mod tally;

use std::{fmt, time::Duration};

use super::{Host, Refusal, Withdrawal, Withdrawn};
use crate::model::{Criticality, JobStage, Limiter, Outcome, RejectionReason, WhenFull};

/// How many of the cases or seeds of a long test run: an eighth by default, and all of them with `SCHEDULER_CASES=all`,
/// as in `.ci/run`.
fn sample(all: u32) -> u32 {
    if is_thorough() { all } else { all.div_ceil(8) }
}

#[expect(clippy::disallowed_methods, reason = "a longer run is asked for by hand")]
fn is_thorough() -> bool {
    std::env::var_os("SCHEDULER_CASES").is_some_and(|cases| cases == "all")
}

/// A host whose jobs, waiters and states are numbers, so that a test can track each of them.
struct Numbers;

impl Host for Numbers {
    type Job = u32;
    type Waiter = u32;
    type State = u32;
}

/// An arrival; its job gets the next number.
#[derive(Debug, Clone, Copy)]
struct Offer {
    class: Criticality,
    kind: usize,
    bytes: usize,
    /// Milliseconds until the latest start of the job.
    patience: i64,
    /// Milliseconds from the latest start to the deadline.
    spare: i64,
    tenant: u8,
    /// 0 means no ordering key.
    key: u8,
    /// 0 means the empty limit key.
    limit_key: u8,
    when_full: WhenFull,
    is_stored: bool,
    shard: usize,
}

/// One event of the scheduler.
#[derive(Debug, Clone, Copy)]
enum Event {
    Offer(Offer),
    End { job: u32, outcome: Outcome, run: Duration },
    Release { job: u32 },
    Withdraw { job: u32, why: Withdrawal },
    Stick { job: u32 },
    Hold { job: u32, scope: Limiter, time: Duration },
    Divide { servers: u32 },
    AddWorker,
    Resize { min: usize, max: usize },
    Pause,
    Resume,
    Shut,
    Open,
    Cancel { job: u32 },
    Close,
    Abandon,
    Retire,
    Pass { by: Duration },
    Tick,
}

/// The result of an event, and its effects on other jobs.
#[derive(Debug, Clone)]
struct Step {
    answer: Answer,
    notifications: Vec<Notification>,
}

#[derive(Debug, Clone)]
enum Answer {
    Started {
        worker: u32,
        state: u32,
    },
    Queued,
    Waiting,
    Refused(Refusal),
    Decided(bool),
    /// The states that the scheduler returned, sorted.
    Dropped(Vec<u32>),
    Found(Withdrawn),
    Replaced(bool),
    /// Whether the pool is paused.
    Paused(bool),
    /// The stage of a job when it was cancelled.
    Hit(Option<JobStage>),
    Done,
}

#[derive(Debug, Clone)]
enum Notification {
    Start { job: u32, worker: u32, state: u32 },
    Ended { job: u32, outcome: Outcome, retry_after: Option<Duration> },
    Refused { job: u32, reason: RejectionReason },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { worker, .. } => write!(f, "starts on {worker}"),
            Self::Queued => f.write_str("queued"),
            Self::Waiting => f.write_str("waits"),
            Self::Refused(refusal) => write!(f, "refused: {}", refusal_name(refusal)),
            Self::Decided(true) => f.write_str("decided"),
            Self::Decided(false) => f.write_str("decided before"),
            Self::Dropped(states) if states.is_empty() => f.write_str("done"),
            Self::Dropped(states) => write!(f, "drops {}", states.len()),
            Self::Found(found) => f.write_str(found_name(*found)),
            Self::Replaced(true) => f.write_str("replaced"),
            Self::Replaced(false) => f.write_str("not replaced"),
            Self::Paused(true) => f.write_str("paused"),
            Self::Paused(false) => f.write_str("not paused"),
            Self::Hit(hit) => f.write_str(hit_name(*hit)),
            Self::Done => f.write_str("done"),
        }
    }
}

fn refusal_name(refusal: &Refusal) -> &'static str {
    match reason_name(&refusal.reason) {
        "unreachable" if refusal.retry_after.is_none() => "runs too long",
        name => name,
    }
}

fn reason_name(reason: &RejectionReason) -> &'static str {
    match reason {
        RejectionReason::QueueFull => "full",
        RejectionReason::QueueTooLong { .. } => "long",
        RejectionReason::WaitTooLong { .. } => "impatient",
        RejectionReason::DeadlineUnreachable { budget: Duration::ZERO, .. } => "past",
        RejectionReason::DeadlineUnreachable { .. } => "unreachable",
        RejectionReason::TenantShare { .. } => "share",
        RejectionReason::LimitExceeded { .. } => "limit",
        RejectionReason::NoRoomInTime => "no room",
        RejectionReason::Draining => "draining",
        RejectionReason::PoolDraining => "shut",
        RejectionReason::NoWorkers { .. } => "no workers",
        other => unreachable!("unexpected refusal: {other:?}"),
    }
}

fn found_name(found: Withdrawn) -> &'static str {
    match found {
        Withdrawn::Queued => "was queued",
        Withdrawn::Waiting => "was waiting",
        Withdrawn::Gone => "gone",
    }
}

fn hit_name(hit: Option<JobStage>) -> &'static str {
    match hit {
        Some(JobStage::Waiting) => "hit a caller",
        Some(JobStage::Queued) => "hit in the queue",
        Some(_) => "runs on",
        None => "hit nothing",
    }
}

/// Name of the end of a job without a worker. `None` if the job starts.
fn notification_name(notification: &Notification) -> Option<&'static str> {
    match notification {
        Notification::Ended { outcome: Outcome::ExpiredInQueue, .. } => Some("expired"),
        Notification::Ended { outcome: Outcome::Shed, .. } => Some("shed"),
        Notification::Ended { outcome: Outcome::Replaced, .. } => Some("replaced"),
        Notification::Ended { outcome: Outcome::Drained, .. } => Some("drained"),
        Notification::Ended { outcome: Outcome::CancelledByOperator, .. } => Some("cancelled"),
        Notification::Ended { outcome, .. } => panic!("no queued job ends like this: {outcome:?}"),
        Notification::Refused { reason: RejectionReason::NoRoomInTime, .. } => Some("no room"),
        Notification::Refused { .. } => Some("refused"),
        Notification::Start { .. } => None,
    }
}
