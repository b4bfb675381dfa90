//! A worker that is taken ahead of its job, for callers that fetch a job only if it can run.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::{
    Pool, Ticket,
    arrival::{check, context},
    lease::Lease,
    ticket::State,
    trace::log_arrival,
};
use crate::{
    handler::{Context, StopReason},
    model::{Deadline, FieldViolation, Job, JobError, Rejection, RejectionReason, WhenFull},
    phase::Phase,
};

/// Longest wait for a worker: far more than a process lives.
const MAX_WAIT: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// A worker that waits for its job. Dropping it gives the worker back, and counts as a cancelled job.
///
/// A drain waits for it as for a running job; see [`stopped`](Self::stopped).
#[must_use = "dropping it gives the worker back"]
pub struct Reservation {
    pool: Pool,
    lease: Lease,
    cx: Context,
}

impl Pool {
    /// Takes a worker for a job of `kind` that is given later, for example after it was fetched from elsewhere. Waits
    /// behind the jobs of the queue, within the limits of the kind. Dropping the future ends the wait.
    ///
    /// ```
    /// # use waterwheel::{Job, Output, Pool, handler::{Context, Handler, Kind}, model::HandlerError};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     async fn handle(&mut self, job: Box<Job>, _cx: Context) -> Result<Output, HandlerError> {
    /// #         Ok(Output::new(job.payload))
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::builder("text").kind(Kind::new("echo", || Echo)).build();
    /// let worker = pool.reserve("echo").await?;
    /// let fetched = Job::new("echo", "from a broker");
    /// assert_eq!(worker.submit(fetched)?.await?.output.bytes, "from a broker");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The kind is unknown, the pool drains, or it has too many waiting callers.
    pub async fn reserve(&self, kind: &str) -> Result<Reservation, JobError> {
        let (inner, now) = (self.inner(), Instant::now());
        let mut job = Box::new(Job::new(kind, "").when_full(WhenFull::Wait));
        job.deadline = Some(Deadline::new(now, MAX_WAIT, Duration::ZERO));
        let kind = self.locate(&job)?;
        let cx = context(inner, kind, now, &mut job, inner.collector(kind));
        let lease = Ticket::offer(inner, now, job, cx.clone(), false)?.worker().await?;
        Ok(Reservation { pool: self.clone(), lease, cx })
    }
}

impl Reservation {
    /// Gives the worker its job, which starts when the ticket is polled.
    ///
    /// # Errors
    /// Why the job is refused: it is of another kind, has an ordering key or a limit key, or exceeds a bound.
    pub fn submit(self, mut job: Job) -> Result<Ticket, Rejection> {
        let Self { pool, lease, cx } = self;
        let (inner, kind, now) = (pool.inner(), cx.kind_id(), Instant::now());
        let is_kind = job.kind == **cx.kind();
        for (field, is_wrong, what) in [
            ("kind", !is_kind, "the worker was reserved for another kind"),
            ("ordering_key", !job.ordering_key.is_empty(), "a reserved worker takes no key"),
            ("limit_key", !job.limit_key.is_empty(), "a reserved worker takes no key"),
        ] {
            if is_wrong {
                let violations = vec![FieldViolation { field, description: what.into() }];
                return Err(inner.reject(job.kind.as_str().into(), RejectionReason::Invalid { violations }));
            }
        }
        check(inner, kind, &job)?;
        // Without a worker, it would have waited where it was fetched from.
        job.when_full = Some(WhenFull::Wait);
        let cx = context(inner, kind, now, &mut job, inner.collector(kind));
        inner.drive(|core, _| core.fill(now, lease.key(), cx.clone()));
        // A stop that came before saw the reservation alone.
        if inner.phase.get() >= Phase::Stopping {
            cx.stop(StopReason::Drain);
        }
        log_arrival(inner, &job, &cx, None);
        Ok(Ticket::new(State::Granted(Box::new(job)), lease, cx))
    }

    /// Returns when the worker should be given back, because the pool stops or an operator cancelled the reservation.
    pub async fn stopped(&self) -> StopReason {
        self.cx.cancelled().await
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("job", &self.cx.job()).finish_non_exhaustive()
    }
}
