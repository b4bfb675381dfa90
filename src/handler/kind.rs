//! The interface of handlers, and kinds of them. Runs are in `src/pool/attempt.rs`, and blocking ones in
//! `src/pool/blocking.rs`.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::{Context, Processes, RemoteWorkers, Site, unwind::Contained};
use crate::{
    model::{HandlerError, Job, KindLimits, Output},
    task::off_thread,
};

/// Runs jobs that mostly wait: I/O-bound work on the serving threads.
///
/// The job comes in a box because it goes through many hands, and a future holds what it is given more than once.
///
/// A single poll must stay short. One that takes longer than 100 ms is named in a warning, for it holds up every call
/// of its thread; use a [`BlockingHandler`] for work that computes or blocks.
///
/// A worker keeps its handler from job to job: one `start`, any number of jobs, one `close`. A handler that panics, is cut
/// off, or ends with [`HandlerError::Crashed`] or [`HandlerError::Unavailable`] is dropped instead of closed.
pub trait Handler: Send + 'static {
    /// Makes the handler ready for its first job, which waits for it: connects, or starts a process. Does nothing by
    /// default.
    ///
    /// An error, or a panic, is as one of the [factory](Kind::try_new). A start that takes longer than its job may is
    /// dropped, and the handler with it.
    fn start(&mut self, site: Arc<Site>) -> impl Future<Output = Result<(), HandlerError>> + Send {
        drop(site);
        std::future::ready(Ok(()))
    }

    /// Runs one job.
    ///
    /// When the job is to stop, its [`CancelToken`](super::CancelToken) fires; after the grace the future is dropped.
    fn handle(&mut self, job: Box<Job>, cx: Context) -> impl Future<Output = Result<Output, HandlerError>> + Send;

    /// Lets go of what the handler holds: its worker goes, by a drain or a resize, or a reload replaced its kind.
    /// Does nothing by default.
    ///
    /// The drain waits for it. After `grace`, which is the cancel grace of the kind, the future is dropped.
    fn close(self, grace: Duration) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        let _ = grace;
        drop(self);
        std::future::ready(())
    }
}

/// Runs jobs that compute or block, on a thread of the worker's own.
pub trait BlockingHandler: Send + 'static {
    /// Runs one job.
    ///
    /// # Errors
    /// What the caller is told. A handler that sees [`Context::is_cancelled`] should return
    /// [`HandlerError::Stopped`]; one that goes on past the grace is counted as stuck.
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError>;

    /// [`Handler::close`], on a thread where it may block. Past `grace` it is not waited for.
    fn close(self, grace: Duration)
    where
        Self: Sized,
    {
        let _ = grace;
    }
}

/// A name, its options, and the factory of its handlers.
#[derive(Clone)]
pub struct Kind {
    name: Arc<str>,
    options: KindOptions,
    factory: Factory,
    runners: Runners,
}

/// What runs the jobs besides the handlers.
#[derive(Clone)]
enum Runners {
    None,
    Processes(Arc<Processes>),
    Remote(Arc<RemoteWorkers>),
}

/// What an operator sets for a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindOptions {
    /// Longest run of one job. `None` means that only the deadline bounds it.
    pub run_timeout: Option<Duration>,
    /// Most bytes of output. `None` means the pool's default.
    pub max_output: Option<usize>,
    /// Running a job twice does no harm: a drain that kills one then answers UNAVAILABLE, which invites a retry.
    pub idempotent: bool,
    /// Time between the request to stop and the forced stop. `None` means the pool's default.
    pub cancel_grace: Option<Duration>,
    /// Bounds for the sake of what the jobs call. None by default.
    pub limits: KindLimits,
}

#[derive(Clone)]
enum Factory {
    Async(Arc<Make<dyn AsyncInstance>>),
    Blocking(Arc<Make<dyn BlockingInstance>>),
}

type Make<T> = dyn Fn() -> Result<Box<T>, HandlerError> + Send + Sync;

/// One worker's handler of one kind.
pub enum Instance {
    /// Runs on the serving threads.
    Async(Box<dyn AsyncInstance>),
    /// Runs on the worker's own thread.
    Blocking(Box<dyn BlockingInstance>),
}

/// A [`Handler`] whose type is erased.
pub trait AsyncInstance: Send {
    /// Makes it ready for its first job.
    fn start(self: Box<Self>, site: Arc<Site>) -> AsyncRun<()>;

    /// Runs one job.
    fn run(self: Box<Self>, job: Box<Job>, cx: Context) -> AsyncRun;

    /// Lets go of what it holds.
    fn close(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()>;
}

/// What an asynchronous handler does, which gives the handler back at its end. One that is cut off, or panics, takes the
/// handler along.
pub type AsyncRun<T = Output> = BoxFuture<'static, (Box<dyn AsyncInstance>, Result<T, HandlerError>)>;

/// A [`BlockingHandler`] whose type is erased.
pub trait BlockingInstance: Send {
    /// Runs one job.
    ///
    /// # Errors
    /// As the handler.
    fn run(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError>;

    /// Lets go of what it holds.
    fn close(self: Box<Self>, grace: Duration);
}

impl Instance {
    /// Closes the handler. It may panic as the handler does.
    pub(crate) fn close(self, grace: Duration) -> BoxFuture<'static, ()> {
        match self {
            Self::Async(handler) => handler.close(grace),
            // Where the runtime goes away, the handler is dropped.
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
            // Where the run is cut off and panics in its drop, the handler's own drop must not panic on top of that.
            let mut handler = Contained::new(self);
            let result = handler.get_mut().handle(job, cx).await;
            (handler.into_inner() as Box<dyn AsyncInstance>, result)
        })
    }

    fn close(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Handler::close(*self, grace))
    }
}

impl<H: BlockingHandler> BlockingInstance for H {
    fn run(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        self.handle(job, cx)
    }

    fn close(self: Box<Self>, grace: Duration) {
        BlockingHandler::close(*self, grace);
    }
}

impl Kind {
    /// A kind whose jobs mostly wait. `factory` makes one handler for each worker.
    pub fn new<H: Handler>(name: impl Into<Arc<str>>, factory: impl Fn() -> H + Send + Sync + 'static) -> Self {
        Self::try_new(name, move || Ok(factory()))
    }

    /// A kind whose jobs mostly wait, and whose handlers cannot always be made. `factory` is called on a serving thread,
    /// for the first job of each worker and after a panic, a cut-off or a [crash](HandlerError::Crashed). Where it fails,
    /// it is left alone for a while, longer each time, and jobs that need it are answered with
    /// [`Outcome::HandlerUnavailable`](crate::model::Outcome::HandlerUnavailable).
    pub fn try_new<H: Handler>(
        name: impl Into<Arc<str>>,
        factory: impl Fn() -> Result<H, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        let factory = Factory::Async(Arc::new(move || Ok(Box::new(factory()?))));
        Self { name: name.into(), options: KindOptions::default(), factory, runners: Runners::None }
    }

    /// A kind whose jobs compute or block. `factory` makes one handler for each worker.
    pub fn blocking<H: BlockingHandler>(
        name: impl Into<Arc<str>>,
        factory: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        Self::try_blocking(name, move || Ok(factory()))
    }

    /// A kind whose jobs compute or block, and whose handlers cannot always be made, as [`try_new`](Self::try_new) has
    /// it. `factory` is called on the worker's own thread.
    pub fn try_blocking<H: BlockingHandler>(
        name: impl Into<Arc<str>>,
        factory: impl Fn() -> Result<H, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        let factory = Factory::Blocking(Arc::new(move || Ok(Box::new(factory()?))));
        Self { name: name.into(), options: KindOptions::default(), factory, runners: Runners::None }
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: KindOptions) -> Self {
        self.options = options;
        self
    }

    /// Its jobs are run by `processes`, which the pool lets have as many as its workers need.
    pub(super) fn run_by(mut self, processes: Arc<Processes>) -> Self {
        self.options.cancel_grace = Some(processes.program().cancel_grace);
        self.runners = Runners::Processes(processes);
        self
    }

    /// Its jobs are run by `workers`, and the pool has as many workers as these have slots.
    pub(super) fn run_remotely(mut self, workers: Arc<RemoteWorkers>) -> Self {
        self.runners = Runners::Remote(workers);
        self
    }

    /// The processes that run its jobs; `None` where they are run otherwise.
    #[must_use]
    pub fn processes(&self) -> Option<&Arc<Processes>> {
        match &self.runners {
            Runners::Processes(processes) => Some(processes),
            Runners::None | Runners::Remote(_) => None,
        }
    }

    /// The workers that attach for its jobs; `None` where they are run otherwise.
    #[must_use]
    pub fn remote_workers(&self) -> Option<&Arc<RemoteWorkers>> {
        match &self.runners {
            Runners::Remote(workers) => Some(workers),
            Runners::None | Runners::Processes(_) => None,
        }
    }

    /// Name of the kind.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What the operator set.
    #[must_use]
    pub fn get_options(&self) -> &KindOptions {
        &self.options
    }

    /// Whether it runs the same jobs in the same way as `other`, whatever its name.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let makes_the_same = match (&self.factory, &other.factory) {
            (Factory::Async(one), Factory::Async(another)) => Arc::ptr_eq(one, another),
            (Factory::Blocking(one), Factory::Blocking(another)) => Arc::ptr_eq(one, another),
            _ => false,
        };
        makes_the_same && self.options == other.options
    }

    /// Whether jobs run on the worker's own thread.
    #[must_use]
    pub fn is_blocking(&self) -> bool {
        matches!(self.factory, Factory::Blocking(_))
    }

    /// Makes a handler for one worker. It panics where the factory does.
    ///
    /// # Errors
    /// What the factory says.
    pub fn make(&self) -> Result<Instance, HandlerError> {
        match &self.factory {
            Factory::Async(make) => make().map(Instance::Async),
            Factory::Blocking(make) => make().map(Instance::Blocking),
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind").field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}
