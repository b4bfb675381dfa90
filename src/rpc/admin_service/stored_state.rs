//! What a detached job waits for that no pool of this server has.

use tokio::time::Instant;

use super::{
    Admin,
    pool_jobs::{limit, next_start},
};
use crate::{
    detached::Detached,
    model::{Limiter, Reason},
    phase::Phase,
    pool::Suspension,
    proto::{Binding, StoredState},
    rpc::convert::{time, time_after},
    store::{JobRecord, JobState, StoreError},
};

/// What a job waits for.
pub(super) async fn stored_state(
    admin: &Admin,
    detached: &Detached,
    job: &JobRecord,
) -> Result<StoredState, StoreError> {
    let (id, work) = (&job.request.id, &job.request.job);
    Ok(match job.state {
        JobState::Scheduled if job.waits_for_group() => {
            because(Binding::Group, detached.store().members(job.row).await?.unwrap_or_default().waits_for())
        }
        JobState::Scheduled => {
            let cause = match job.attempts.last() {
                Some(last) if last.outcome == Some(Reason::LimitExceeded) => {
                    "its kind or its limit key is held by its handler"
                }
                Some(_) if job.failures == 0 => "its handler said that it must wait",
                Some(_) => "it failed, and is tried again later",
                None => "its start time has not come",
            };
            StoredState { until: Some(time(job.due_at)), ..because(Binding::StartTime, cause) }
        }
        JobState::Blocked if !job.needs_key() => {
            match detached.store().next_start(&work.kind, &work.limit_key).await? {
                Some(at) => {
                    let detail = "its limit key has reached its rate over all servers";
                    StoredState { until: Some(time(at)), ..because(Binding::LimitKeyRate, detail) }
                }
                None => {
                    because(Binding::LimitKeyConcurrency, "as many jobs of its limit key may run as its kind allows")
                }
            }
        }
        JobState::Blocked => {
            let blocker = detached.store().key_holder(&work.tenant, &work.ordering_key).await?.unwrap_or_default();
            StoredState { blocker, ..because(Binding::OrderingKey, "a job before it has the same ordering key") }
        }
        JobState::Ready => ready(admin, detached, &work.kind),
        JobState::Running if detached.is_unstored(id) => {
            because(Binding::Store, "it has run on this server, and the store has not taken its result yet")
        }
        JobState::Running => because(Binding::OtherServer, "another server has taken it, and runs it or is about to"),
        JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::Expired => {
            because(Binding::Ended, "it has ended")
        }
    })
}

/// Why this server does not take a ready job.
fn ready(admin: &Admin, detached: &Detached, kind: &str) -> StoredState {
    if detached.is_stopped() {
        return because(Binding::Drain, "this server drains, and takes no more jobs from the store");
    }
    if let Some(cause) = detached.away() {
        return because(Binding::Store, format!("the store takes no changes: {cause}"));
    }
    let Some(pool) = admin.pools.of_kind(kind) else {
        return because(Binding::Kind, "no pool of this server has its kind");
    };
    let operator = admin.monitor.operator(pool.name());
    match pool.suspension() {
        Suspension::Paused => return because(Binding::Pause, format!("its pool is paused{operator}")),
        Suspension::Shut => return because(Binding::Drain, format!("its pool drains{operator}")),
        Suspension::None if pool.phase() < Phase::Draining => {}
        Suspension::None => return because(Binding::Drain, "its pool drains"),
    }
    if let Some((Limiter::Hold, time)) = pool.held_for(kind, "") {
        let detail = "its kind is held by its handler";
        return StoredState { until: Some(time_after(time)), ..because(Binding::LimitHold, detail) };
    }
    if let Some(outage) = pool.outage(kind) {
        let until = next_start(&outage);
        return StoredState {
            until,
            ..because(Binding::Program, format!("the processes of its program keep ending: {}", outage.cause))
        };
    }
    if let Some(until) = detached.refused_until(kind) {
        let until = Some(time_after(until.saturating_duration_since(Instant::now())));
        return StoredState { until, ..because(Binding::Room, "its pool has refused a job of its kind a moment ago") };
    }
    if let Some(at) = detached.store().wakes().opens_at(kind) {
        let until = Some(time_after(at.saturating_duration_since(Instant::now())));
        return StoredState { until, ..because(Binding::LimitRate, "its kind has reached its rate over all servers") };
    }
    match pool.reached_limit(kind) {
        Some((limiter, value)) => {
            let detail = format!("its kind has reached its limit: {value}");
            StoredState { blocker: value, ..because(limit(limiter), detail) }
        }
        None if pool.worker_count() == 0 => because(Binding::NoWorker, "it waits for a worker to attach"),
        None if pool.free_workers() == 0 => because(Binding::Workers, "no worker of its pool is free"),
        None => because(Binding::Room, "its pool starts jobs that were taken from the store before it"),
    }
}

fn because(bound_by: Binding, detail: impl Into<String>) -> StoredState {
    StoredState { bound_by: bound_by.into(), detail: detail.into(), ..StoredState::default() }
}
