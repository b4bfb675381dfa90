//! Compares the accounts of a service job by job: its counts, its ended jobs, its drain receipt, the attempts of its
//! handlers and the answers to its callers. After each step, its pools must hold no jobs of calls that have ended.

use std::{collections::BTreeSet, time::Duration};

use waterwheel::{
    Pool,
    model::{JobId, JobStage, Outcome},
    phase::Phase,
    pool::{Counts, EndedJob, JobFilter, ListedJob},
};

use crate::{
    calls::LONGEST_UPLOAD,
    oracle::SLACK,
    record::{Attempt, AttemptEnd, Events, Life, LifeEnd, Record, Way},
    server::{FINISH, LINGER, NOTICE},
    wire::PUBLIC,
};

/// An ended job in the history of a pool.
struct Entry {
    ended: EndedJob,
    kind: String,
}

/// Contradictions between the accounts of one life.
pub(crate) fn faults(life: &Life, events: &Events) -> Vec<String> {
    let mut faults = Vec::new();
    let mut all = Vec::new();
    for pool in life.pools.all() {
        let entries = entries(pool, events);
        let is_crashed = matches!(life.end, LifeEnd::Crashed);
        faults.extend(count_faults(&pool.stats().counts, &entries, is_crashed));
        all.extend(entries);
    }
    faults.extend(all.iter().filter_map(|entry| entry_fault(entry, events)));
    faults.extend(receipt_fault(life, &all));
    faults
}

/// All ended jobs of a pool.
fn entries(pool: &Pool, events: &Events) -> Vec<Entry> {
    // A process numbers its jobs from 1.
    let Some((process, _)) = events.attempts.first().and_then(|attempt| attempt.job_id.split_once('-')) else {
        return Vec::new();
    };
    let ids = (1..=events.jobs.len()).filter_map(|number| format!("{process}-{number:x}").parse::<JobId>().ok());
    let ended = ids.filter_map(|id| match pool.explain(id)?.job {
        ListedJob { ended: Some(ended), kind, .. } => Some(Entry { ended, kind: kind.to_string() }),
        _ => None,
    });
    ended.collect()
}

/// The counts of a pool equal the outcomes in its history.
fn count_faults(counts: &Counts, entries: &[Entry], is_crashed: bool) -> Vec<String> {
    let count = |column: &str| entries.iter().filter(|entry| column_of(entry.ended.outcome) == column).count() as u64;
    let columns = [
        ("completed", counts.completed),
        ("failed", counts.failed),
        ("cancelled", counts.cancelled),
        ("expired", counts.expired),
        ("panicked", counts.panicked),
        ("shed", counts.shed),
    ];
    let is_wrong = |(column, counted): &(&str, u64)| {
        let remembered = count(column);
        // A crash counts its jobs as cancelled, but their history may be lost.
        if *column == "cancelled" && is_crashed { remembered > *counted } else { remembered != *counted }
    };
    let fault =
        |(column, counted)| format!("{counted} jobs are counted as {column}, but {} are in the history", count(column));
    columns.into_iter().filter(is_wrong).map(fault).collect()
}

fn column_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::HandlerFailed
        | Outcome::HandlerUnavailable
        | Outcome::WorkerCrashed
        | Outcome::WorkerLost { .. }
        | Outcome::OutputTooLarge => "failed",
        Outcome::HandlerPanicked => "panicked",
        Outcome::DeadlineExceeded | Outcome::RunTimeout | Outcome::ExpiredInQueue => "expired",
        Outcome::Cancelled | Outcome::CancelledByOperator | Outcome::Drained | Outcome::DrainKilled { .. } => {
            "cancelled"
        }
        Outcome::Shed => "shed",
        other => unreachable!("{other:?}"),
    }
}

/// The outcome of a job fits its attempt and the answer to its caller.
fn entry_fault(entry: &Entry, events: &Events) -> Option<String> {
    let Entry { ended, kind } = entry;
    let id = ended.job.to_string();
    let attempt = events.attempts.iter().find(|attempt| attempt.job_id == id);
    let ran = attempt.map(|attempt: &Attempt| attempt.end);
    let is_fitting = match ended.outcome {
        _ if kind == "echo" => true,
        _ if ended.started != ran.is_some() => false,
        Outcome::Completed => ran == Some(AttemptEnd::Answered),
        Outcome::HandlerFailed => ran == Some(AttemptEnd::Refused),
        Outcome::HandlerPanicked => ran == Some(AttemptEnd::Panicked),
        _ => true,
    };
    if !is_fitting {
        return Some(format!("{ended:?} contradicts its attempt: {attempt:?}"));
    }
    let answer =
        events.jobs.iter().filter_map(|sent| sent.answer.as_ref()).find(|answer| answer.job_id() == Some(&id))?;
    (answer.name() != name_of(ended.outcome))
        .then(|| format!("{ended:?} contradicts the answer to its caller: {answer:?}"))
}

/// Name of the outcome in the answers to callers.
fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        // The simulation distinguishes a job that a drain lost from a call that it refused.
        Outcome::Drained => "DRAINED",
        Outcome::CancelledByOperator => "CANCELLED",
        other => other.reason().name(),
    }
}

/// The receipt counts or names every job that ended after the drain began.
fn receipt_fault(life: &Life, entries: &[Entry]) -> Option<String> {
    let LifeEnd::Drained { receipt, at } = &life.end else { return None };
    let begin = at.saturating_sub(receipt.elapsed);
    let ended_from = |from: Duration| {
        let ended_at = |entry: &&Entry| life.begin + entry.ended.at.saturating_duration_since(life.clock);
        entries.iter().filter(|entry| ended_at(entry) >= from).count()
    };
    let finished = receipt.finished as usize + receipt.lost.len();
    let (least, most) = (ended_from(begin + SLACK), ended_from(begin.saturating_sub(SLACK)));
    (!(least..=most).contains(&finished))
        .then(|| format!("its receipt has {finished} jobs, but {least} to {most} ended since {begin:?}"))
}

/// Faults of the drain that ended a life: it sends GOAWAY, stops starting jobs in time, and ends when nothing runs.
pub(crate) fn drain_faults(number: usize, life: &Life, events: &Events) -> Vec<String> {
    let LifeEnd::Drained { receipt, at } = &life.end else { return Vec::new() };
    let begin = at.saturating_sub(receipt.elapsed);
    let mut faults = Vec::new();
    let ran = events.attempts.iter().filter(|attempt| attempt.life == number);
    let busy = ran.map(|attempt| attempt.end_at).max().unwrap_or_default();
    let (shut, idle) = (begin + NOTICE + SLACK, busy.max(begin + NOTICE) + SLACK);
    if *at > idle + LINGER {
        faults.push(format!("its drain ended at {at:?}, but nothing ran since {busy:?}"));
    }
    for connection in events.connections.iter().filter(|connection| connection.life == number) {
        let is_left = connection.end.is_none_or(|end| end > shut);
        // The operators' listener is open as long as jobs run.
        let by = if connection.port == PUBLIC { shut } else { idle };
        let is_owed = is_left && connection.has_begun && !connection.has_failed;
        if is_owed && connection.goaway.is_none_or(|goaway| goaway > by) {
            faults.push(format!("it drained from {begin:?}, and did not send GOAWAY: {connection:?}"));
        }
    }
    let stop = begin + NOTICE + FINISH + SLACK;
    for attempt in events.attempts.iter().filter(|attempt| attempt.life == number && attempt.begin > stop) {
        faults.push(format!("it drained from {begin:?}, and started a job when it stopped others: {attempt:?}"));
    }
    faults
}

/// Checks the pools of running services.
pub(crate) struct AbandonedJobs {
    record: Record,
    /// Jobs with a fault. Each is reported once.
    reported: BTreeSet<String>,
}

impl AbandonedJobs {
    pub(crate) fn new(record: Record) -> Self {
        Self { record, reported: BTreeSet::new() }
    }

    pub(crate) fn check(&mut self, now: Duration) {
        let mut faults = Vec::new();
        let mut events = self.record.lock();
        let serving = events.lives.iter().filter(|life| matches!(life.end, LifeEnd::Serving));
        for pool in serving.flat_map(|life| life.pools.all()) {
            for job in pool.list(&JobFilter::held(), usize::MAX).jobs {
                if let Some(fault) = held_fault(pool, &job, &events, now)
                    && self.reported.insert(job.job.to_string())
                {
                    faults.push(format!("at {now:?}, {fault}: {job:?}"));
                }
            }
        }
        events.faults.extend(faults);
    }
}

fn held_fault(pool: &Pool, job: &ListedJob, events: &Events, now: Duration) -> Option<String> {
    let is_running = job.stage == JobStage::Running;
    if !is_running && pool.phase() >= Phase::Stopping {
        return Some("a job is queued in a pool that is stopping".into());
    }
    if is_running && job.stop.is_some() {
        return None;
    }
    let call = events.call_of(job.names.request_id.as_ref()?.as_str());
    if call.iter().any(|sent| sent.answer.is_none()) {
        return None;
    }
    let last = call.iter().max_by_key(|sent| sent.end)?;
    let upload = if last.way == Way::SubmitMany { LONGEST_UPLOAD } else { Duration::ZERO };
    let known_by = last.end + upload + events.latency + SLACK;
    if now <= known_by || events.disturbances.iter().any(|one| one.may_hide_end_of(last)) {
        return None;
    }
    let does = if is_running { "runs without having been cancelled" } else { "is still queued" };
    Some(format!("the job of a call that ended at {:?} {does}", last.end))
}
