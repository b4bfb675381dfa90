//! What must hold of every job, step by step, and the rules as cases.

mod callers;
mod cases;
mod drive;
mod flows;
mod held;
mod lives;
mod property;
mod rules;
mod script;
mod sizing;
mod storm;
mod tally;

use std::{fmt, time::Duration};

use super::{Host, Refusal, Withdrawal, Withdrawn};
use crate::model::{Criticality, JobStage, Outcome, RejectionReason, WhenFull};

/// A host whose jobs, waiters and states are numbers, so that each can be followed.
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
    /// Milliseconds from now until the job must not start any more.
    patience: i64,
    /// Milliseconds from then until it must have ended.
    spare: i64,
    tenant: u8,
    /// 0 is no key.
    key: u8,
    /// 0 is the empty key.
    limit_key: u8,
    when_full: WhenFull,
    shard: usize,
}

/// One transition of the machine.
#[derive(Debug, Clone, Copy)]
enum Event {
    Offer(Offer),
    End { job: u32, outcome: Outcome, run: Duration },
    Release { job: u32 },
    Withdraw { job: u32, why: Withdrawal },
    Stick { job: u32 },
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

/// All that a transition shows to its caller and to waiting callers.
#[derive(Debug, Clone)]
struct Step {
    answer: Answer,
    told: Vec<Told>,
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
    /// The states that came back out of the machine, sorted.
    Dropped(Vec<u32>),
    Found(Withdrawn),
    Replaced(bool),
    /// Whether jobs are held back.
    Paused(bool),
    /// Where a cancel found its job.
    Hit(Option<JobStage>),
    Done,
}

#[derive(Debug, Clone)]
enum Told {
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
            Self::Refused(refusal) => write!(f, "refused: {}", reason_name(&refusal.reason)),
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
        other => unreachable!("the machine does not refuse like this: {other:?}"),
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

/// How a job ended that a worker never had; `None` where one had it.
fn told_name(told: &Told) -> Option<&'static str> {
    match told {
        Told::Ended { outcome: Outcome::ExpiredInQueue, .. } => Some("expired"),
        Told::Ended { outcome: Outcome::Shed, .. } => Some("shed"),
        Told::Ended { outcome: Outcome::Drained, .. } => Some("drained"),
        Told::Ended { outcome: Outcome::CancelledByOperator, .. } => Some("cancelled"),
        Told::Ended { outcome, .. } => panic!("no queued job ends like this: {outcome:?}"),
        Told::Refused { reason: RejectionReason::NoRoomInTime, .. } => Some("no room"),
        Told::Refused { .. } => Some("refused"),
        Told::Start { .. } => None,
    }
}
