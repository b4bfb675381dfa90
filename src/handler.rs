//! The handler traits and kinds: the code that runs jobs, and what it sees of a job.
//!
//! A [`Kind`] is a name, options, and a factory that makes one handler for each worker. The worker reuses its handler,
//! and makes a new one after a panic or a forced stop.

// The modules below have the view of a job, and the ways of running jobs: `builtin`, `exec`, `process` and `remote`.
// CONTRIBUTING.md says what another way needs.

mod back_off;
mod block_on;
#[cfg(feature = "server")]
mod builtin;
#[cfg(feature = "programs")]
mod child;
mod contain;
mod context;
#[cfg(feature = "programs")]
mod exec;
mod external;
mod function;
mod output;
#[cfg(feature = "programs")]
mod process;
#[cfg(feature = "programs")]
pub(crate) mod protocol;
#[cfg(feature = "server")]
pub(crate) mod remote;
mod start_mark;
mod stop_reason;
#[cfg(test)]
mod tests;
mod trace;
#[cfg(feature = "programs")]
mod worker_job;

use std::{any::Any, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use crate::{
    model::{HandlerError, Job, KindLimits, Output},
    task::off_thread,
};
pub(crate) use back_off::back_off;
#[cfg(feature = "server")]
pub use builtin::Builtin;
#[cfg(feature = "server")]
pub(crate) use child::{for_program as program_variables, remove_left_workspaces};
pub(crate) use contain::{Contained, contain, panic_message};
pub use context::{Context, Site};
#[cfg(feature = "programs")]
pub use exec::{ExecCommand, InvalidExecCommand};
pub(crate) use external::{External, ExternalStats};
pub use external::{Outage, ProcessState, ProcessStats, ProgramStats, Runner};
pub use output::Event;
#[cfg(feature = "programs")]
pub use process::{Processes, Recycle, WorkerProgram};
#[cfg(feature = "server")]
pub(crate) use remote::RemoteWorkers;

pub use stop_reason::StopReason;

#[doc(inline)]
pub use crate::task::Tasks;

// For the service, and its tests.
#[cfg(feature = "server")]
#[doc(hidden)]
pub use remote::IdleLeave;
#[doc(hidden)]
pub use {
    context::ContextParts,
    external::{AttachedWorkerStats, NewWorker},
    output::OutputSink,
};

/// Runs jobs that mostly wait: I/O-bound work on the serving threads.
///
/// The job is boxed because it is moved often, and a future may hold several copies of an argument.
///
/// A single poll must stay short: a poll that takes longer than 100 ms delays every call of its thread, and is logged.
/// Use a [`BlockingHandler`] for work that computes or blocks.
///
/// A worker reuses its handler: one `start`, any number of jobs, one `close`. A handler that panics, is cut off, or
/// ends with [`HandlerError::Crashed`] or [`HandlerError::Unavailable`] is dropped without `close`.
pub trait Handler: Send + 'static {
    /// Prepares the handler for its first job, for example by connecting or starting a process. The job waits
    /// meanwhile. Does nothing by default.
    ///
    /// An error or a panic counts as one of the [factory](Kind::try_new). If the start takes longer than its job may,
    /// the start and the handler are dropped.
    fn start(&mut self, site: Arc<Site>) -> impl Future<Output = Result<(), HandlerError>> + Send {
        drop(site);
        std::future::ready(Ok(()))
    }

    /// Runs one job.
    ///
    /// When the job must stop, [`Context::cancelled`] returns; after the grace, the future is dropped.
    fn handle(&mut self, job: Box<Job>, cx: Context) -> impl Future<Output = Result<Output, HandlerError>> + Send;

    /// Releases the handler's resources: a drain or a resize removed its worker, or a reload replaced its kind. Does
    /// nothing by default.
    ///
    /// A drain waits for the future. It is dropped after `grace`, the cancel grace of the kind.
    fn close(self, grace: Duration) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        let _ = grace;
        drop(self);
        std::future::ready(())
    }
}

/// Runs jobs that compute or block, on the worker's own thread.
pub trait BlockingHandler: Send + 'static {
    /// Runs one job.
    ///
    /// # Errors
    /// The error that the caller gets. A handler that sees [`Context::is_cancelled`] should return
    /// [`HandlerError::Stopped`]; one that continues after the grace is counted as stuck.
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError>;

    /// The same as [`Handler::close`], on a thread that may block. The drain does not wait longer than `grace`.
    fn close(self: Box<Self>, grace: Duration) {
        let _ = grace;
    }
}

/// A name, its options, and the factory of its handlers.
#[derive(Clone)]
pub struct Kind {
    name: Arc<str>,
    options: KindOptions,
    is_blocking: bool,
    make: Arc<dyn Fn() -> Result<Instance, HandlerError> + Send + Sync>,
    external: Option<Arc<dyn External>>,
}

/// Operator settings of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "programs", derive(serde::Deserialize))]
pub struct KindOptions {
    /// Longest run of one job. `None` means that only the deadline limits it.
    pub run_timeout: Option<Duration>,
    /// Maximum bytes of output. `None` means the pool's default.
    pub max_output: Option<usize>,
    /// Whether a job may safely run twice. If a drain kills an idempotent job, it answers UNAVAILABLE, so that the
    /// client retries.
    pub idempotent: bool,
    /// Time between the request to stop and the forced stop. `None` means the pool's default.
    #[cfg_attr(feature = "programs", serde(skip))]
    pub cancel_grace: Option<Duration>,
    /// Limits that protect what the jobs call. None by default.
    #[cfg_attr(feature = "programs", serde(skip))]
    pub limits: KindLimits,
}

/// One worker's handler of one kind.
#[doc(hidden)]
pub enum Instance {
    /// Runs on the serving threads.
    Async(Box<dyn AsyncInstance>),
    /// Runs on the worker's own thread.
    Blocking(Box<dyn BlockingHandler>),
}

/// A [`Handler`] whose type is erased.
#[doc(hidden)]
pub trait AsyncInstance: Send {
    /// Prepares the handler for its first job.
    fn start(self: Box<Self>, site: Arc<Site>) -> AsyncRun<()>;

    /// Runs one job.
    fn run(self: Box<Self>, job: Box<Job>, cx: Context) -> AsyncRun;

    /// Releases the handler's resources.
    fn close(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()>;
}

/// A call of an asynchronous handler. It returns the handler at its end; if it is cut off or panics, the handler is
/// lost.
#[doc(hidden)]
pub type AsyncRun<T = Output> = BoxFuture<'static, (Box<dyn AsyncInstance>, Result<T, HandlerError>)>;

impl Instance {
    /// Closes the handler. Panics if the handler does.
    pub(crate) fn close(self, grace: Duration) -> BoxFuture<'static, ()> {
        match self {
            Self::Async(handler) => handler.close(grace),
            // If the runtime shuts down, the handler is dropped.
            Self::Blocking(handler) => Box::pin(async move {
                if let Err(error) = off_thread(move || handler.close(grace)).await
                    && let Ok(panic) = error.try_into_panic()
                {
                    std::panic::resume_unwind(panic);
                }
            }),
        }
    }
}

impl<H: Handler> AsyncInstance for H {
    fn start(self: Box<Self>, site: Arc<Site>) -> AsyncRun<()> {
        Box::pin(async move {
            let mut handler = Contained::new(self);
            let result = Handler::start(&mut **handler.get_mut(), site).await;
            (handler.into_inner() as Box<dyn AsyncInstance>, result)
        })
    }

    fn run(self: Box<Self>, job: Box<Job>, cx: Context) -> AsyncRun {
        Box::pin(async move {
            // A run that is cut off may panic in its drop. A second panic, in the handler's own drop, would abort the
            // process.
            let mut handler = Contained::new(self);
            let result = handler.get_mut().handle(job, cx).await;
            (handler.into_inner() as Box<dyn AsyncInstance>, result)
        })
    }

    fn close(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Handler::close(*self, grace))
    }
}

impl Kind {
    /// A kind whose jobs mostly wait. `factory` makes one handler for each worker.
    pub fn new<H: Handler>(name: impl Into<Arc<str>>, factory: impl Fn() -> H + Send + Sync + 'static) -> Self {
        Self::try_new(name, move || Ok(factory()))
    }

    /// A kind whose jobs mostly wait, and whose factory may fail. A serving thread calls `factory` for the first job of
    /// each worker and after a panic, a cut-off or a [crash](HandlerError::Crashed). A failing factory is retried with
    /// a growing back-off. Meanwhile its jobs end with
    /// [`Outcome::HandlerUnavailable`](crate::model::Outcome::HandlerUnavailable).
    pub fn try_new<H: Handler>(
        name: impl Into<Arc<str>>,
        factory: impl Fn() -> Result<H, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        Self::of(name.into(), false, move || Ok(Instance::Async(Box::new(factory()?))))
    }

    /// A kind whose jobs compute or block. `factory` makes one handler for each worker.
    pub fn blocking<H: BlockingHandler>(
        name: impl Into<Arc<str>>,
        factory: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        Self::try_blocking(name, move || Ok(factory()))
    }

    /// A kind whose jobs compute or block, and whose factory may fail, as in [`try_new`](Self::try_new). The worker's
    /// own thread calls `factory`.
    pub fn try_blocking<H: BlockingHandler>(
        name: impl Into<Arc<str>>,
        factory: impl Fn() -> Result<H, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        Self::of(name.into(), true, move || Ok(Instance::Blocking(Box::new(factory()?))))
    }

    fn of(
        name: Arc<str>,
        is_blocking: bool,
        make: impl Fn() -> Result<Instance, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        let options = KindOptions::default();
        Self { name, options, is_blocking, make: Arc::new(make), external: None }
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: KindOptions) -> Self {
        self.options = options;
        self
    }

    /// Lets `external` run its jobs.
    fn run_by(mut self, external: Arc<impl External>) -> Self {
        self.external = Some(external);
        self
    }

    /// What runs its jobs outside of the pool's threads.
    pub(crate) fn external(&self) -> Option<&Arc<dyn External>> {
        self.external.as_ref()
    }

    /// The same, if it is a `T`.
    pub(crate) fn external_of<T: External>(&self) -> Option<Arc<T>> {
        let external: Arc<dyn Any + Send + Sync> = self.external.clone()?;
        external.downcast().ok()
    }

    /// Name of the kind.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Operator settings.
    pub fn get_options(&self) -> &KindOptions {
        &self.options
    }

    /// Whether both kinds run jobs in the same way, whatever their names.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.make, &other.make) && self.options == other.options
    }

    /// Whether jobs run on the worker's own thread.
    pub fn is_blocking(&self) -> bool {
        self.is_blocking
    }

    /// Makes a handler for one worker. Panics if the factory does.
    ///
    /// # Errors
    /// The error of the factory.
    pub fn make(&self) -> Result<Instance, HandlerError> {
        (self.make)()
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind").field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}
