//! The public handle of a pool: submission of jobs, snapshots, and the commands of operators: pause, shut, resume,
//! resize, reconfigure, cancel. `drain.rs` adds drains.

#[cfg(feature = "server")]
use std::num::NonZeroU32;
use std::{fmt, num::NonZeroUsize, sync::Arc};

use tokio::time::Instant;

use super::{
    JobStream, PoolBuilder, PoolStats, Settings, Ticket,
    inner::{PoolInner, Shared},
    lease::WorkerHandlers,
    shard::shard,
    stream::stream,
    ticket::result_of,
    timers::keep_size,
};
use crate::{
    handler::{Kind, StopReason},
    model::{Job, JobError, JobId, JobResult, JobStage, KindId, Rejection, RejectionReason},
    phase::Phase,
    scheduler::{Bounds, Core, Suspension},
};

/// A bounded queue in front of a bounded set of workers. Clones share the pool.
///
/// ```
/// # use std::num::NonZeroUsize;
/// use waterwheel::{Job, Output, Pool, handler::{Context, Handler, Kind}, model::HandlerError};
///
/// struct Upper;
///
/// impl Handler for Upper {
///     async fn handle(&mut self, job: Box<Job>, _cx: Context) -> Result<Output, HandlerError> {
///         Ok(Output::new(job.payload.to_ascii_uppercase()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder("text").workers(NonZeroUsize::MIN).kind(Kind::new("upper", || Upper)).build();
/// let done = pool.submit(Job::new("upper", "hello")).await?;
/// assert_eq!(done.output.bytes, "HELLO");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool(Arc<[Shared]>);

impl Pool {
    /// Starts to build a pool.
    #[must_use]
    pub fn builder(name: impl Into<Arc<str>>) -> PoolBuilder {
        PoolBuilder::new(name.into())
    }

    /// Name of the pool.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.inner().name
    }

    /// Runs `job` and returns its result. Dropping the future cancels the job.
    ///
    /// The job is admitted at once, but it starts only when the future is polled; until then, it may hold a worker that
    /// does nothing. For several jobs at once, spawn each future (`tokio::spawn`), or poll them together (`join_all`).
    /// Do not collect the futures and await them in turn: then the jobs run in turn, too, and later ones may expire.
    ///
    /// # Errors
    /// [`JobError::Rejected`] if the job was not accepted, [`JobError::Failed`] if it did not complete.
    pub fn submit(&self, job: Job) -> impl Future<Output = JobResult> + Send + Unpin + use<> {
        result_of(self.try_submit(job))
    }

    /// Submits a job, without waiting for its outcome. As with [`submit`](Self::submit), the job is admitted at once,
    /// and starts when the ticket is polled: spawn the ticket, or poll it soon. [`send`](Self::send) does so.
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
    /// let ticket = pool.try_submit(Job::new("echo", "hi"))?;
    /// println!("accepted as {}", ticket.job());
    /// assert_eq!(ticket.await?.output.bytes, "hi");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Why the job was not accepted.
    pub fn try_submit(&self, job: Job) -> Result<Ticket, Rejection> {
        let (inner, kind) = (self.inner(), self.locate(&job)?);
        Ticket::admit(inner, kind, Box::new(job), inner.collector(kind))
    }

    /// Runs `job` without a caller. Failures are only logged and counted.
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
    /// pool.send(Job::new("echo", "hi"))?;
    /// pool.drain();
    /// pool.wait().await;
    /// assert_eq!(pool.stats().counts.completed, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Why the job was not accepted.
    pub fn send(&self, job: Job) -> Result<JobId, Rejection> {
        let ticket = self.try_submit(job)?;
        let (id, cx) = (ticket.job(), ticket.cx.clone());
        self.inner().tasks.spawn(async move {
            if let Err(error) = ticket.await {
                tracing::warn!(job = %cx.job(), request_id = %cx.request_id(), %error, "a job without a caller failed");
            }
        });
        Ok(id)
    }

    /// Runs `job` and streams its output. Returns once the job runs.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit) that occur before the job runs.
    pub async fn stream(&self, job: Job) -> Result<JobStream, JobError> {
        let kind = self.locate(&job)?;
        stream(self.inner(), kind, Box::new(job)).await
    }

    /// Number of usable workers: all except the stuck ones.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.inner().read(Core::live_workers)
    }

    /// Whether stuck jobs have made the pool smaller than configured.
    #[must_use]
    pub fn is_impaired(&self) -> bool {
        self.inner().read(|core| core.unreplaced() > 0)
    }

    /// Whether the queue is saturated: it was four fifths full, and has not been below one fifth since.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.inner().read(Core::is_saturated)
    }

    /// A snapshot. Jobs continue meanwhile.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats::of(self.inner())
    }

    /// Phase of the pool. It does not change when an operator [shuts](Self::shut) the pool; see
    /// [`suspension`](Self::suspension).
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.inner().phase.get()
    }

    /// A pool with one [`Shared`] for each shard.
    pub(super) fn of(inner: PoolInner, shards: usize) -> Self {
        let inner = Arc::new(inner);
        Self(std::iter::repeat_with(|| Shared::from(Arc::clone(&inner))).take(shards).collect())
    }

    /// The state, for the shard of the calling thread.
    pub(super) fn inner(&self) -> &Shared {
        self.0.get(shard()).unwrap_or(&self.0[0])
    }

    pub(crate) fn kind_names(&self) -> impl Iterator<Item = (KindId, &Arc<str>)> {
        self.inner().served().map(|(id, kind)| (id, kind.name()))
    }

    pub(super) fn locate(&self, job: &Job) -> Result<KindId, Rejection> {
        self.inner().find_kind(&job.kind).ok_or_else(|| {
            let suggestion = super::pools::closest(&job.kind, self.kind_names().map(|(_, name)| name));
            self.inner().reject(job.kind.as_str().into(), RejectionReason::UnknownKind { suggestion })
        })
    }
}

impl Pool {
    /// Starts no more jobs until the pool is [resumed](Self::resume). Jobs are still queued, deadlines still apply, and
    /// running jobs continue. Returns false if the pool drains or is shut, because it then finishes its jobs.
    pub fn pause(&self) -> bool {
        let now = Instant::now();
        self.inner().drive(|core, _| core.pause(now))
    }

    /// Accepts no more jobs until the pool is [resumed](Self::resume). Finishes the jobs that it has, even if it was
    /// paused. Waiting callers are refused. Unlike [`drain`](Self::drain), this can be undone.
    pub fn shut(&self) {
        let now = Instant::now();
        self.inner().drive(|core, effects| core.shut(now, effects));
    }

    /// Accepts and starts jobs again, after [`pause`](Self::pause) and [`shut`](Self::shut). Returns false if the pool
    /// drains.
    pub fn resume(&self) -> bool {
        let now = Instant::now();
        self.inner().drive(|core, effects| {
            core.open();
            core.resume(now, effects);
        });
        self.inner().phase.get() < Phase::Draining
    }

    /// What an operator has suspended.
    #[must_use]
    pub fn suspension(&self) -> Suspension {
        self.inner().read(Core::suspension)
    }

    /// Whether jobs are accepted and started. A pool without workers is not serving: its workers would attach from
    /// elsewhere. Neither is a pool whose programs cannot start.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        let inner = self.inner();
        let has_workers = inner.read(Core::configured_workers) > 0;
        inner.phase.get() == Phase::Serving && self.suspension() == Suspension::None && has_workers && !inner.is_down()
    }

    /// Sets the bounds of the number of workers; equal ones fix it. `max` is at least `min`.
    ///
    /// Idle surplus workers are removed at once, busy ones after their job. Between different bounds, the pool adjusts
    /// its size once a second, on the runtime of this call. Returns false if the pool drains, or if its workers attach
    /// from elsewhere.
    pub fn resize(&self, min: NonZeroUsize, max: NonZeroUsize) -> bool {
        let inner = self.inner();
        if inner.phase.get() >= Phase::Draining || inner.is_remote() {
            return false;
        }
        let bounds = Bounds { min: min.get(), max: max.get().max(min.get()) };
        let now = Instant::now();
        let gone = inner.drive(|core, effects| core.resize(now, bounds, WorkerHandlers::fresh, effects));
        inner.retire(gone);
        inner.fit_externals();
        keep_size(inner);
        true
    }

    /// So many servers divide the limits of kinds that are to be divided.
    #[cfg(feature = "server")]
    pub(crate) fn divide_limits(&self, servers: NonZeroU32) {
        let now = Instant::now();
        self.inner().drive(|core, effects| core.divide_limits(now, servers, effects));
    }

    /// Replaces the settings and the kinds; call [`Pools::refresh`](super::Pools::refresh) afterwards. No job is lost:
    /// jobs of a replaced or removed kind end as they began, and jobs beyond a new bound leave the queue as usual. The
    /// number of workers changes only if the settings change it; otherwise it stays as [set](Self::resize). `shards`
    /// `ended_jobs` and `recorded_jobs` cannot change.
    ///
    /// Each kind that is not the [same](Kind::is_same) as before permanently takes some hundred bytes.
    pub fn reconfigure(&self, settings: Settings, kinds: Vec<Kind>) {
        let inner = self.inner();
        let Settings { shards, ended_jobs, recorded_jobs, .. } = *inner.settings;
        let was_remote = inner.is_remote();
        let resize = was_remote || !inner.settings.is_sized_like(&settings);
        let (min, max) = (settings.workers, settings.max_workers.unwrap_or(settings.workers));
        inner.settings.replace(Settings { shards, ended_jobs, recorded_jobs, ..settings });
        inner.serve(kinds);
        if resize {
            self.resize(min, max);
        }
    }

    /// The kind of that name, if it is served.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&Kind> {
        let inner = self.inner();
        inner.find_kind(name).map(|id| inner.kind(id))
    }

    /// Cancels a job: a queued one ends at once, a running one goes down the stop ladder. Returns its stage, or `None`
    /// if the pool has no such job or its outcome is decided. Scans all jobs of the pool.
    #[must_use]
    pub fn cancel(&self, job: JobId) -> Option<JobStage> {
        let now = Instant::now();
        let (stage, cx) = self.inner().drive(|core, effects| core.cancel(now, |cx| cx.job() == job, effects))?;
        if stage == JobStage::Running {
            cx.stop(StopReason::Operator);
        }
        Some(stage)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.inner().name).field("phase", &self.phase()).finish_non_exhaustive()
    }
}
