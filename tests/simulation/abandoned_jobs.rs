//! Checks after each step that pools hold no jobs of calls that have ended.

use std::{collections::BTreeSet, time::Duration};

use waterwheel::{
    phase::Phase,
    pool::{JobFilter, ListedJob, Pool, Stage},
};

use crate::{
    calls::LONGEST_UPLOAD,
    oracle::SLACK,
    record::{Events, LifeEnd, Record, Way},
};

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
    let is_running = matches!(job.stage, Stage::Running { .. });
    if !is_running && pool.phase() >= Phase::Stopping {
        return Some("a job is queued in a pool that is stopping".into());
    }
    if is_running && job.stopping {
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
