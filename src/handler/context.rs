//! What a handler sees of its job: budget, cancel token, output, request id.

mod start;

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{self, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;
use tracing::{Instrument, Span};

pub use self::start::RunStart;
use self::start::StartMark;
use super::{CancelToken, OutputSink, StopReason, cancel::StopState};
use crate::{
    model::{Attempt, AttemptToken, Call, Deadline, HandlerError, JobId, ProgramEnd, RequestId, TraceContext},
    task::Tasks,
};

static NO_SPAN: Span = Span::none();

/// What a handler sees of its job besides the job itself. Clones are cheap and share the state.
#[derive(Debug, Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    parts: ContextParts,
    /// Made where the parts have none and somebody asks: a job whose lines nobody writes needs none.
    request_id: OnceLock<RequestId>,
    stop: StopState,
    start: StartMark,
    runner: OnceLock<Box<KnownRunner>>,
    /// Microseconds from the arrival to the last sign of progress; 0 before the first.
    progress: AtomicU64,
}

/// What runs a job outside of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runner {
    /// A process of this machine, by its id.
    Process(u32),
    /// An attached worker, by its name and its peer.
    Worker(Arc<str>),
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Worker(shown) => write!(f, "worker {shown}"),
        }
    }
}

struct KnownRunner {
    runner: Runner,
    /// How the process ended.
    end: OnceLock<ProgramEnd>,
}

/// What a [`Context`] is made of.
#[derive(Debug)]
pub struct ContextParts {
    /// Id of the job.
    pub job: JobId,
    /// Where the job runs.
    pub site: Arc<Site>,
    /// When the job must be answered.
    pub deadline: Deadline,
    /// The call that the job came with; `None` where it has neither name nor span.
    pub call: Option<Arc<Call>>,
    /// Who the work is for; `None` for the default tenant.
    pub tenant: Option<Arc<str>>,
    /// Takes the chunks.
    pub output: OutputSink,
}

/// What all jobs of a kind share.
#[derive(Debug)]
// Its references are counted with every job: apart from what another thread counts.
#[repr(align(128))]
pub struct Site {
    /// The kind.
    pub kind: Arc<str>,
    /// Pool that runs it.
    pub pool: Arc<str>,
    /// Where shielded work runs.
    pub tasks: Tasks,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("job", &self.parts.job).field("start", &self.start).finish_non_exhaustive()
    }
}

impl Context {
    /// A context of a job that has not begun.
    #[must_use]
    pub fn new(parts: ContextParts) -> Self {
        Self(Arc::new(Inner {
            parts,
            request_id: OnceLock::new(),
            stop: StopState::default(),
            start: StartMark::default(),
            runner: OnceLock::new(),
            progress: AtomicU64::new(0),
        }))
    }

    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.0.parts.job
    }

    /// Kind of the job.
    #[must_use]
    pub fn kind(&self) -> &Arc<str> {
        &self.0.parts.site.kind
    }

    /// Pool that runs the job.
    #[must_use]
    pub fn pool(&self) -> &Arc<str> {
        &self.0.parts.site.pool
    }

    /// Correlation id of the call.
    #[must_use]
    pub fn request_id(&self) -> &RequestId {
        self.known_request_id().unwrap_or_else(|| self.0.request_id.get_or_init(RequestId::generate))
    }

    /// The same, where one was given or asked for.
    #[must_use]
    pub fn known_request_id(&self) -> Option<&RequestId> {
        self.call().and_then(|call| call.request_id.as_ref()).or_else(|| self.0.request_id.get())
    }

    /// Name of the caller; `None` where callers are not told apart.
    #[must_use]
    pub fn principal(&self) -> Option<&Arc<str>> {
        self.call()?.principal.as_ref()
    }

    /// The attempt of a detached job; `None` for a caller that waits.
    #[must_use]
    pub fn attempt(&self) -> Option<&AttemptToken> {
        self.watched().map(|attempt| &attempt.token)
    }

    /// The same, with those that watch it.
    fn watched(&self) -> Option<&Attempt> {
        self.call()?.attempt.as_deref()
    }

    /// Who the work is for; `None` for the default tenant.
    #[must_use]
    pub fn tenant(&self) -> Option<&Arc<str>> {
        self.0.parts.tenant.as_ref()
    }

    /// What runs the job, if that is not this process.
    #[must_use]
    pub fn runner(&self) -> Option<&Runner> {
        self.0.runner.get().map(|known| &known.runner)
    }

    /// How its process ended; `None` while it runs, and where it was killed with its handler.
    #[must_use]
    pub fn program_end(&self) -> Option<&ProgramEnd> {
        self.0.runner.get()?.end.get()
    }

    /// Notes what runs the job, of which there is one.
    pub(super) fn note_runner(&self, runner: Runner) {
        self.0.runner.get_or_init(|| Box::new(KnownRunner { runner, end: OnceLock::new() }));
    }

    /// Notes how its process ended.
    pub(super) fn note_program_end(&self, end: ProgramEnd) {
        if let Some(known) = self.0.runner.get() {
            known.end.get_or_init(|| end);
        }
    }

    /// When the job must be answered.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.0.parts.deadline
    }

    /// What is left until the job is stopped. Zero when it is over.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.until().saturating_duration_since(Instant::now())
    }

    /// When the run is stopped.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.start().map_or(self.deadline().reply_by(), |start| start.until)
    }

    /// The trace that the job belongs to, as received.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.call().and_then(|call| call.trace.as_ref())
    }

    /// Span of the call.
    #[must_use]
    pub fn span(&self) -> &Span {
        self.call().map_or(&NO_SPAN, |call| &call.span)
    }

    /// Whether the queue and the attempt get spans of their own below [`span`](Self::span).
    #[must_use]
    pub fn child_spans(&self) -> bool {
        self.call().is_none_or(|call| call.child_spans)
    }

    fn call(&self) -> Option<&Call> {
        self.0.parts.call.as_deref()
    }

    /// Tells the handler to stop.
    #[must_use]
    pub fn cancel_token(&self) -> CancelToken {
        CancelToken::of(self)
    }

    /// Returns when the job is asked to stop. Cancel safe.
    pub async fn cancelled(&self) -> StopReason {
        self.0.stop.stopped().await
    }

    pub(super) fn stop_state(&self) -> &StopState {
        &self.0.stop
    }

    /// Runs `future` in the span that the handler is in, or else in that of the call, so that its log lines carry the
    /// request id. A task that a handler spawns needs it.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let current = Span::current();
        future.instrument(if current.is_none() { self.span().clone() } else { current })
    }

    /// Whether the job was asked to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.stop.reason().is_some()
    }

    /// Writes a piece of the output. Waits for a slow reader, but not once the job is asked to stop. Cancel safe: a
    /// chunk is sent whole or not at all.
    ///
    /// # Errors
    /// [`HandlerError::OutputTooLarge`] over the kind's limit, [`HandlerError::Stopped`] where the caller left or the
    /// reader is too slow for a job that was asked to stop: hand either on with `?`.
    pub async fn write(&self, chunk: impl Into<Bytes>) -> Result<(), HandlerError> {
        let chunk = chunk.into();
        let watched = self.watched().filter(|_| !chunk.is_empty()).map(|attempt| (attempt, chunk.clone()));
        let sent = tokio::select! {
            biased;
            sent = self.output().write(chunk) => sent,
            _ = self.cancelled() => Err(HandlerError::Stopped),
        };
        if let (Ok(()), Some((attempt, chunk))) = (&sent, watched) {
            attempt.write(chunk);
        }
        self.touch();
        sent
    }

    /// [`write`](Self::write) for blocking handlers: it blocks the thread while it waits.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_blocking(&self, chunk: impl Into<Bytes>) -> Result<(), HandlerError> {
        block_on(self.write(chunk))
    }

    /// Tells how far the job is: `fraction` from 0 to 1. It is advice, and dropped where nobody reads it.
    pub fn progress(&self, fraction: f64, message: impl Into<String>) {
        let (fraction, message) = (if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 }, message.into());
        match self.watched() {
            Some(attempt) => attempt.progress(fraction, message),
            None => self.output().progress(fraction, message),
        }
        self.touch();
    }

    /// Runs a clean-up that cancellation does not cut: it goes on in a task of its own when the handler is dropped.
    /// The end of the drain still bounds it.
    ///
    /// # Errors
    /// [`HandlerError::Crashed`] where the clean-up panicked or the runtime went away.
    pub async fn shield<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, HandlerError> {
        let shielded = self.tasks().shield(self.scope(work));
        shielded.await.ok_or_else(|| HandlerError::Crashed { message: "the shielded work did not end".into() })
    }

    /// Where work goes that outlives the handler, such as the reaping of a process.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.0.parts.site.tasks
    }

    /// The begin of the run; `None` while the job is queued.
    #[must_use]
    pub fn start(&self) -> Option<RunStart> {
        self.0.start.get(self.deadline())
    }

    /// Time from the arrival to the begin of the run; `None` while the job is queued.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.0.start.waited()
    }

    /// Time from the begin of the run to `now`; zero while the job is queued.
    #[must_use]
    pub fn ran(&self, now: Instant) -> Duration {
        let here = now.saturating_duration_since(self.deadline().arrival());
        self.waited().map_or(Duration::ZERO, |waited| here.saturating_sub(waited))
    }

    /// Worker that runs the job; 0 while it is queued.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.0.start.worker()
    }

    /// Marks the begin of the run, once: on `worker`, at `now`, and at most for `limit`.
    pub(crate) fn begin(&self, worker: u32, now: Instant, limit: Option<Duration>) {
        debug_assert!(self.waited().is_none(), "a job begins once");
        self.0.start.set(worker, now.saturating_duration_since(self.deadline().arrival()), limit);
    }

    /// Where chunks go.
    #[must_use]
    pub fn output(&self) -> &OutputSink {
        &self.0.parts.output
    }

    /// When the job last showed progress; its begin counts.
    #[must_use]
    pub fn last_progress(&self) -> Instant {
        let told = self.deadline().arrival() + Duration::from_micros(self.0.progress.load(Ordering::Relaxed));
        self.start().map_or(told, |start| start.at.max(told))
    }

    fn touch(&self) {
        self.0.progress.store(micros(self.deadline().arrival().elapsed()), Ordering::Relaxed);
    }
}

/// Wakes the thread that blocks on a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut task = task::Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut task) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod bench;
