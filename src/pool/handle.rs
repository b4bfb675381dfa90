//! The public handle of a pool: submission and snapshots. Draining is in `drain.rs`, operating in `operate.rs`.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use futures_util::FutureExt;

use super::{
    JobStream, PoolBuilder, PoolStats,
    permit::Room,
    shard::{Shards, Shared},
    stream::stream,
    submission::{Admitted, Polled, Submission},
};
use crate::{
    handler::OutputSink,
    model::{Completed, Job, JobError, JobId, Rejection, RejectionReason},
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

/// An accepted job. Await it for its outcome; drop it to cancel the job.
///
/// A job runs in the task that polls its ticket: one that is neither polled nor dropped holds its worker.
#[must_use = "a ticket that is dropped cancels its job"]
pub struct Ticket {
    job: JobId,
    room: Option<Room>,
    outcome: Submission,
}

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
    pub fn submit(&self, job: Job) -> Submission {
        match self.locate(&job) {
            Ok(kind) => self.submit_at(kind, Box::new(job)),
            Err(rejection) => Submission::refused(rejection),
        }
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
        self.try_submit_at(kind, Box::new(job))
    }

    /// Runs `job` without a caller. Its failure is in the log and in the counters.
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
        let admitted = self.admit(kind, Box::new(job))?;
        let cx = admitted.context().clone();
        let id = cx.job();
        self.inner().tasks.spawn(async move {
            if let Err(error) = admitted.submission().await {
                tracing::warn!(job = %cx.job(), request_id = %cx.request_id(), %error, "a job without a caller failed");
            }
        });
        Ok(id)
    }

    /// Runs `job` and returns its output while it is made. It returns once the job runs.
    ///
    /// # Errors
    /// The same as [`submit`](Self::submit), for everything that happens before the job runs.
    pub async fn stream(&self, job: Job) -> Result<JobStream, JobError> {
        let kind = self.locate(&job)?;
        self.stream_at(kind, Box::new(job)).await
    }

    /// Number of workers that could run a job: all but the stuck ones.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.inner().read(crate::scheduler::Core::live_workers)
    }

    /// Whether stuck jobs have made the pool smaller than configured.
    #[must_use]
    pub fn is_impaired(&self) -> bool {
        self.inner().read(|core| core.unreplaced() > 0)
    }

    /// Whether the queue was four fifths full, and has not been below one fifth since.
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

    pub(super) fn submit_at(&self, kind: usize, job: Box<Job>) -> Submission {
        match self.admit(kind, job) {
            Ok(admitted) => admitted.submission(),
            Err(rejection) => Submission::refused(rejection),
        }
    }

    pub(super) fn try_submit_at(&self, kind: usize, job: Box<Job>) -> Result<Ticket, Rejection> {
        let admitted = self.admit(kind, job)?;
        let (job, room) = (admitted.context().job(), admitted.room());
        Ok(Ticket { job, room, outcome: admitted.submission() })
    }

    /// [`try_submit`](Self::try_submit), including the ticket's first poll.
    pub(super) fn begin_at(&self, kind: usize, job: Box<Job>, task: &mut TaskContext<'_>) -> Polled<Ticket> {
        let admitted = match self.admit(kind, job) {
            Ok(admitted) => admitted,
            Err(rejection) => return Polled::Ended(Err(rejection.into())),
        };
        let (job, room) = (admitted.context().job(), admitted.room());
        match admitted.poll_once(task) {
            Polled::Ended(outcome) => Polled::Ended(outcome),
            Polled::Pending(outcome) => Polled::Pending(Ticket { job, room, outcome }),
        }
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

    fn admit(&self, kind: usize, job: Box<Job>) -> Result<Admitted, Rejection> {
        let inner = self.inner();
        let limit = inner.kinds[kind].get_options().max_output.unwrap_or(inner.settings.max_output);
        Admitted::admit(inner, kind, job, OutputSink::collect(limit))
    }
}

impl Ticket {
    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The capacity that the job may wait for; `None` if a worker was free.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        self.room.clone()
    }

    /// Whether the job runs, or has ended, as its last poll found it.
    pub(crate) fn has_begun(&self) -> bool {
        self.outcome.has_begun()
    }
}

impl Future for Ticket {
    type Output = Result<Completed, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.outcome.poll_unpin(cx)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("job", &self.job).finish_non_exhaustive()
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
