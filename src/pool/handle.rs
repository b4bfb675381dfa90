//! The public handle of a pool: submission of jobs, and snapshots. `drain.rs` and `operate.rs` add drains and operator
//! commands.

use std::{fmt, sync::Arc};

use super::{
    JobStream, PoolBuilder, PoolStats, Ticket,
    outcome::JobResult,
    shard::{Shards, Shared},
    stream::stream,
    ticket::outcome,
};
use crate::{
    handler::OutputSink,
    model::{Job, JobError, JobId, Rejection, RejectionReason},
    phase::Phase,
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
pub struct Pool(Shards);

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

    /// Runs `job` and returns its result. Admission happens at once; dropping the future cancels the job.
    ///
    /// # Errors
    /// [`JobError::Rejected`] if the job was not accepted, [`JobError::Failed`] if it did not complete.
    pub fn submit(&self, job: Job) -> impl Future<Output = JobResult> + Send + Unpin + use<> {
        outcome(self.try_submit(job))
    }

    /// Submits a job, without waiting for its outcome.
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
        let kind = self.locate(&job)?;
        self.admit(kind, Box::new(job))
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
        let kind = self.locate(&job)?;
        let ticket = self.admit(kind, Box::new(job))?;
        let (id, cx) = (ticket.job(), ticket.context().clone());
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
        self.stream_at(kind, Box::new(job)).await
    }

    /// Number of usable workers: all except the stuck ones.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.inner().read(crate::scheduler::Core::live_workers)
    }

    /// Whether stuck jobs have made the pool smaller than configured.
    #[must_use]
    pub fn is_impaired(&self) -> bool {
        self.inner().read(|core| core.unreplaced() > 0)
    }

    /// Whether the queue is saturated: it was four fifths full, and has not been below one fifth since.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.inner().read(crate::scheduler::Core::is_saturated)
    }

    /// A snapshot. Jobs continue meanwhile.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats::of(self.inner())
    }

    /// Phase of the pool. It does not change when an operator [shuts](Self::shut) the pool; see [`hold`](Self::hold).
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.inner().phase.get()
    }

    pub(super) fn inner(&self) -> &Shared {
        self.0.here()
    }

    pub(super) async fn stream_at(&self, kind: usize, job: Box<Job>) -> Result<JobStream, JobError> {
        stream(self.inner(), kind, job).await
    }

    pub(crate) fn kind_names(&self) -> impl Iterator<Item = (usize, &Arc<str>)> {
        self.inner().served().map(|(index, kind)| (index, kind.name()))
    }

    fn locate(&self, job: &Job) -> Result<usize, Rejection> {
        self.inner().kind_index(&job.kind).ok_or_else(|| {
            let suggestion = super::pools::closest(&job.kind, self.kind_names().map(|(_, name)| name));
            self.inner().reject(job.kind.as_str().into(), RejectionReason::UnknownKind { suggestion })
        })
    }

    pub(super) fn admit(&self, kind: usize, job: Box<Job>) -> Result<Ticket, Rejection> {
        let inner = self.inner();
        let limit = inner.kinds[kind].get_options().max_output.unwrap_or(inner.settings.max_output);
        Ticket::admit(inner, kind, job, OutputSink::collect(limit))
    }
}

impl From<Shards> for Pool {
    fn from(shards: Shards) -> Self {
        Self(shards)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.inner().name).field("phase", &self.phase()).finish_non_exhaustive()
    }
}
