//! The arrival of a job: its bounds, its context, and the verdict of the scheduler.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{
    inner::{PoolInner, Shared, jittered},
    lease::Lease,
    queued_job::QueuedJob,
    shard::shard,
    ticket::{State, Ticket},
    trace::log_arrival,
};
use crate::{
    handler::{Context, ContextParts, OutputSink},
    model::{Call, Job, JobId, KindId, Limiter, RecordedEnd, Rejection, RejectionReason, Traits},
    scheduler::{Arrival, Refusal, Verdict},
};

impl Ticket {
    /// Asks the pool to admit a job.
    pub(super) fn admit(
        inner: &Shared,
        kind: KindId,
        mut job: Box<Job>,
        output: OutputSink,
    ) -> Result<Self, Rejection> {
        check(inner, kind, &job)?;
        let now = Instant::now();
        let cx = context(inner, kind, now, &mut job, output);
        Self::offer(inner, now, job, cx, inner.kind(kind).is_blocking())
    }

    /// Offers a checked job to the scheduler. If it has to wait, it later starts on a thread of its worker with
    /// `on_thread`, and else in the task of this ticket, even if its kind is blocking.
    pub(super) fn offer(
        inner: &Shared,
        now: Instant,
        job: Box<Job>,
        cx: Context,
        on_thread: bool,
    ) -> Result<Self, Rejection> {
        let deadline = cx.deadline();
        let queue_end = job.queue_timeout.and_then(|timeout| deadline.arrival().checked_add(timeout));
        let start_by = queue_end.map_or(deadline.reply_by(), |end| end.min(deadline.reply_by()));
        let arrival = Arrival {
            job: cx.clone(),
            kind: cx.kind_id(),
            class: job.criticality,
            bytes: job.payload.len(),
            start_by,
            finish_by: deadline.reply_by(),
            tenant: &job.tenant,
            ordering_key: &job.ordering_key,
            limit_key: &job.limit_key,
            when_full: job.when_full.unwrap_or(inner.settings.when_full),
            is_stored: cx.attempt().is_some(),
            shard: shard(),
        };
        let mut queued = None;
        let waiter = |key| {
            let (waiter, job) = QueuedJob::new(inner.clone(), key, start_by, cx.clone(), on_thread);
            queued = Some(job);
            waiter
        };
        match inner.drive(|core, effects| core.offer(now, arrival, waiter, effects)) {
            Verdict::Start(grant) => {
                let lease = Lease::new(inner.clone(), grant, now);
                log_arrival(inner, &job, &cx, None);
                Ok(Self::new(State::Granted(job), lease, cx))
            }
            Verdict::Queued(key) | Verdict::Waiting(key) => {
                log_arrival(inner, &job, &cx, None);
                let queued = queued.expect("a job that does not start at once has a waiter");
                let state = State::Queued(queued.next(job).boxed());
                Ok(Self::new(state, Lease::naming(inner.clone(), key), cx))
            }
            Verdict::Refused(refusal) => {
                inner.recorder.record(&cx, now, RecordedEnd::Refused);
                let rejection = refuse(inner, &cx, refusal);
                log_arrival(inner, &job, &cx, Some(&rejection));
                Err(rejection)
            }
        }
    }
}

/// Checks the bounds of a job that do not depend on the load.
pub(super) fn check(inner: &PoolInner, kind: KindId, job: &Job) -> Result<(), Rejection> {
    let reject = |reason| Err(inner.reject(Arc::clone(inner.kind(kind).name()), reason));
    let (size, limit) = (job.payload.len(), inner.settings.max_payload.min(inner.settings.queue_bytes));
    if size > limit {
        return reject(RejectionReason::PayloadTooLarge { size, limit });
    }
    let violations = job.violations();
    if violations.is_empty() { Ok(()) } else { reject(RejectionReason::Invalid { violations }) }
}

/// The context of a job that arrives now.
pub(super) fn context(inner: &PoolInner, kind: KindId, now: Instant, job: &mut Job, output: OutputSink) -> Context {
    Context::new(ContextParts {
        job: JobId::next(),
        site: inner.site(kind),
        deadline: job.deadline.unwrap_or_else(|| inner.settings.deadline.fix(now, job.timeout)),
        call: job.call.take().or_else(Call::of_entered_span),
        traits: Traits::of(job),
        tenant: (!job.tenant.is_empty()).then(|| Arc::from(&*job.tenant)),
        output,
    })
}

fn refuse(inner: &PoolInner, cx: &Context, refusal: Refusal) -> Rejection {
    let Refusal { mut reason, retry_after } = refusal;
    // To the scheduler a job ends when its answer must be sent, which is earlier than the timeout of its caller.
    if let RejectionReason::DeadlineUnreachable { needed, .. } = &mut reason {
        *needed = inner.settings.deadline.timeout_for(*needed);
    }
    let (pool, kind) = (Some(Arc::clone(cx.pool())), Arc::clone(cx.kind()));
    // The time of a hold is known, so that no earlier try can succeed.
    let is_held = matches!(reason, RejectionReason::LimitExceeded { limit: Limiter::Hold | Limiter::KeyHold, .. });
    let spread = |delay| if is_held { jittered(delay).max(delay) } else { jittered(delay) };
    Rejection { reason, pool, kind, retry_after: retry_after.map(spread) }
}
