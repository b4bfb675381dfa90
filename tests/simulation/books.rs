//! The books of a service, job by job: what it counts, what it remembers, what it says in its receipt, what its handlers
//! did, and what its callers were told.

use std::time::Duration;

use waterwheel::{
    Pool,
    model::{JobId, Outcome},
    pool::{Counts, EndedJob, ListedJob, Stage},
};

use crate::{
    oracle::SLACK,
    record::{Attempt, AttemptEnd, Events, Life, LifeEnd},
};

/// A job that a pool remembers.
struct Entry {
    ended: EndedJob,
    kind: String,
}

/// What is wrong with the books of a life.
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

/// All jobs that ended in a pool.
fn entries(pool: &Pool, events: &Events) -> Vec<Entry> {
    // One process numbers its jobs from one on.
    let Some((process, _)) = events.attempts.first().and_then(|attempt| attempt.job_id.split_once('-')) else {
        return Vec::new();
    };
    let ids = (1..=events.jobs.len()).filter_map(|number| format!("{process}-{number:x}").parse::<JobId>().ok());
    let ended = ids.filter_map(|id| match pool.explain(id)?.job {
        ListedJob { stage: Stage::Ended(ended), kind, .. } => Some(Entry { ended, kind: kind.to_string() }),
        _ => None,
    });
    ended.collect()
}

/// Each job is counted as what it is remembered as.
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
        // What a crash takes away is cancelled, and nothing is left to tell of it.
        if *column == "cancelled" && is_crashed { remembered > *counted } else { remembered != *counted }
    };
    let fault = |(column, counted)| format!("{counted} jobs are counted as {column}, and {} ended so", count(column));
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

/// A job ended as its handler and its caller say.
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
        return Some(format!("{ended:?} is not what its handler did: {attempt:?}"));
    }
    let told = events.jobs.iter().filter_map(|asked| asked.told.as_ref()).find(|told| told.job_id() == Some(&id))?;
    (told.name() != name_of(ended.outcome)).then(|| format!("{ended:?} is not what its caller was told: {told:?}"))
}

/// What callers are told.
fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        // The simulation tells a job that the drain lost from a call that it refused.
        Outcome::Drained => "DRAINED",
        Outcome::CancelledByOperator => "CANCELLED",
        other => other.reason().name(),
    }
}

/// The receipt counts all that ended since the drain began, but what it names.
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
        .then(|| format!("{finished} jobs are in its receipt, and {least} to {most} ended since {begin:?}"))
}
