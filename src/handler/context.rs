//! What a handler sees of its job: budget, request to stop, output, request id.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, SetOnce},
    time::Instant,
};
use tracing::{Instrument, Span};

use super::{OutputSink, Runner, StopReason, block_on::block_on, start_mark::StartMark};
use crate::{
    model::{
        AttemptToken, Call, Deadline, HandlerError, JobId, KindId, ProgramEnd, RequestId, RunningAttempt, TraceContext,
        Traits, text,
    },
    task::Tasks,
};

static NO_SPAN: Span = Span::none();

/// What a handler sees of its job besides the job itself. Clones are cheap and share the state.
#[derive(Debug, Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    parts: ContextParts,
    /// Created on first use if the call has none: an unlogged job needs no id.
    request_id: OnceLock<RequestId>,
    stop: SetOnce<(StopReason, Instant)>,
    start: StartMark,
    runner: OnceLock<Runner>,
    program_end: OnceLock<Box<ProgramEnd>>,
    /// Microseconds from the arrival to the last progress; 0 before the first.
    progress: AtomicU64,
}

/// The parts of a [`Context`].
#[derive(Debug)]
pub struct ContextParts {
    /// Id of the job.
    pub job: JobId,
    /// Where the job runs.
    pub site: Arc<Site>,
    /// When the job must be answered.
    pub deadline: Deadline,
    /// The call of the job; `None` if the call has neither a caller name nor a span.
    pub call: Option<Arc<Call>>,
    /// Tenant; `None` for the default one.
    pub tenant: Option<Arc<str>>,
    /// What a replay of the job needs.
    pub(crate) traits: Traits,
    /// Receives the output chunks.
    pub output: OutputSink,
}

/// State that all jobs of a kind share.
#[derive(Debug)]
// Each job changes the reference count, so the count must not share a cache line with another thread's data.
#[repr(align(128))]
pub struct Site {
    /// The kind.
    pub kind: Arc<str>,
    /// Number of the kind in its pool.
    pub kind_id: KindId,
    /// Pool that runs it.
    pub pool: Arc<str>,
    /// Runs shielded work.
    pub tasks: Tasks,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("job", &self.parts.job).field("start", &self.start).finish_non_exhaustive()
    }
}

impl Context {
    /// The context of a job that has not started.
    pub fn new(parts: ContextParts) -> Self {
        Self(Arc::new(Inner {
            parts,
            request_id: OnceLock::new(),
            stop: SetOnce::new(),
            start: StartMark::default(),
            runner: OnceLock::new(),
            program_end: OnceLock::new(),
            progress: AtomicU64::new(0),
        }))
    }

    /// Id of the job.
    pub fn job(&self) -> JobId {
        self.0.parts.job
    }

    /// Kind of the job.
    pub fn kind(&self) -> &Arc<str> {
        &self.0.parts.site.kind
    }

    /// Number of the kind in its pool.
    pub(crate) fn kind_id(&self) -> KindId {
        self.0.parts.site.kind_id
    }

    /// Pool that runs the job.
    pub fn pool(&self) -> &Arc<str> {
        &self.0.parts.site.pool
    }

    /// Correlation id of the call.
    pub fn request_id(&self) -> &RequestId {
        self.known_request_id().unwrap_or_else(|| self.0.request_id.get_or_init(RequestId::generate))
    }

    /// The request id, if the call has one or it was created before.
    pub fn known_request_id(&self) -> Option<&RequestId> {
        self.call().and_then(|call| call.request_id.as_ref()).or_else(|| self.0.request_id.get())
    }

    /// Name of the caller; `None` without authentication.
    pub fn principal(&self) -> Option<&Arc<str>> {
        self.call()?.principal.as_ref()
    }

    /// The attempt of a detached job; `None` if a caller waits for the job.
    pub fn attempt(&self) -> Option<&AttemptToken> {
        self.running_attempt().map(|attempt| &*attempt.token)
    }

    /// Id of the detached job that runs, for log lines.
    pub(crate) fn detached_job(&self) -> Option<&str> {
        self.attempt().map(|attempt| &*attempt.job)
    }

    /// The attempt, with its watchers.
    pub(crate) fn running_attempt(&self) -> Option<&RunningAttempt> {
        self.call()?.attempt.as_deref()
    }

    /// Tenant; `None` for the default one.
    pub fn tenant(&self) -> Option<&Arc<str>> {
        self.0.parts.tenant.as_ref()
    }

    /// What a replay of the job needs.
    pub(crate) fn traits(&self) -> Traits {
        self.0.parts.traits
    }

    /// The process or worker outside of the server that runs the job, if there is one.
    pub fn runner(&self) -> Option<&Runner> {
        self.0.runner.get()
    }

    /// How the process ended; `None` while it runs, and if it was killed with its handler.
    pub fn program_end(&self) -> Option<&ProgramEnd> {
        self.0.program_end.get().map(|end| &**end)
    }

    /// Records what runs the job. A job has at most one runner.
    pub(super) fn note_runner(&self, runner: Runner) {
        self.0.runner.get_or_init(|| runner);
    }

    /// Records how the process ended.
    pub(super) fn note_program_end(&self, end: ProgramEnd) {
        self.0.program_end.get_or_init(|| Box::new(end));
    }

    /// When the job must be answered.
    pub fn deadline(&self) -> Deadline {
        self.0.parts.deadline
    }

    /// Time left until the job is stopped; zero afterwards.
    pub fn budget(&self) -> Duration {
        self.until().saturating_duration_since(Instant::now())
    }

    /// When the run is stopped.
    pub fn until(&self) -> Instant {
        self.0.start.until(self.deadline())
    }

    /// The received trace context of the job.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.call().and_then(|call| call.trace.as_ref())
    }

    /// Span of the call.
    pub fn span(&self) -> &Span {
        self.call().map_or(&NO_SPAN, |call| &call.span)
    }

    /// Whether the queue and the attempt get spans of their own below [`span`](Self::span).
    pub fn child_spans(&self) -> bool {
        self.call().is_none_or(|call| call.child_spans)
    }

    fn call(&self) -> Option<&Call> {
        self.0.parts.call.as_deref()
    }

    /// Asks the job to stop. The first reason stays; returns whether this was the first time.
    pub fn stop(&self, reason: StopReason) -> bool {
        self.0.stop.set((reason, Instant::now())).is_ok()
    }

    /// Why the job must stop; `None` while it may continue. Blocking handlers check this between steps.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stopped().map(|(reason, _)| reason)
    }

    /// Why the job must stop, and when it was asked to.
    pub(crate) fn stopped(&self) -> Option<(StopReason, Instant)> {
        self.0.stop.get().copied()
    }

    /// Whether the job was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Returns when the job is asked to stop. Cancel safe.
    pub async fn cancelled(&self) -> StopReason {
        self.0.stop.wait().await.0
    }

    /// Runs `future` in the handler's span, or else in the span of the call, so that its log lines carry the request
    /// id. Wrap the tasks that a handler spawns in it.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let current = Span::current();
        future.instrument(if current.is_none() { self.span().clone() } else { current })
    }

    /// Writes a chunk of the output. Waits for a slow reader, unless the job is asked to stop. Cancel safe: a chunk is
    /// sent whole or not at all.
    ///
    /// # Errors
    /// [`HandlerError::OutputTooLarge`] over the kind's limit. [`HandlerError::Stopped`] if the caller has left, or the
    /// job is asked to stop while the reader is slow. Return either one with `?`.
    pub async fn write(&self, chunk: impl Into<Bytes>) -> Result<(), HandlerError> {
        let chunk = chunk.into();
        let watched = self.running_attempt().filter(|_| !chunk.is_empty()).map(|attempt| (attempt, chunk.clone()));
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

    /// Reports progress: `fraction` from 0 to 1. The report is dropped if no caller reads progress.
    pub fn progress(&self, fraction: f64, message: impl Into<String>) {
        let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
        let message = text::message(message.into());
        match self.running_attempt() {
            Some(attempt) => attempt.progress(fraction, message),
            None => self.output().progress(fraction, message),
        }
        self.touch();
    }

    /// Runs a clean-up that cancellation does not interrupt: it continues in its own task when the handler is dropped.
    /// The end of the drain still cuts it off.
    ///
    /// # Errors
    /// [`HandlerError::Crashed`] if the clean-up panicked or the runtime shut down.
    pub async fn shield<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, HandlerError> {
        let shielded = self.tasks().shield(self.scope(work));
        shielded.await.ok_or_else(|| HandlerError::Crashed { message: "the shielded work did not end".into() })
    }

    /// Runs work that outlives the handler, such as the reaping of a process.
    pub fn tasks(&self) -> &Tasks {
        &self.0.parts.site.tasks
    }

    /// Time from the arrival to the start of the run; `None` while the job is queued.
    pub fn waited(&self) -> Option<Duration> {
        self.0.start.waited()
    }

    /// Time from the arrival to the start of the run, or to `now` while the job is queued.
    pub fn queued(&self, now: Instant) -> Duration {
        self.waited().unwrap_or_else(|| now.saturating_duration_since(self.deadline().arrival()))
    }

    /// Time from the start of the run to `now`; zero while the job is queued.
    pub fn ran(&self, now: Instant) -> Duration {
        let here = now.saturating_duration_since(self.deadline().arrival());
        self.waited().map_or(Duration::ZERO, |waited| here.saturating_sub(waited))
    }

    /// Worker that runs the job; 0 while it is queued.
    pub fn worker(&self) -> u32 {
        self.0.start.worker()
    }

    /// Time for which the job has had its worker, until `now`. Longer than the run: the run begins when a task or a
    /// thread takes the job up, and when what runs it is there.
    pub(crate) fn held(&self, now: Instant) -> Duration {
        let here = now.saturating_duration_since(self.deadline().arrival());
        self.0.start.granted().map_or(Duration::ZERO, |granted| here.saturating_sub(granted))
    }

    /// Marks the start of the run: on `worker`, which it has since `granted`, at `now`, with a run limit of `limit`.
    pub(crate) fn begin(&self, worker: u32, granted: Instant, now: Instant, limit: Option<Duration>) {
        debug_assert!(self.waited().is_none(), "a job begins once");
        let after = |at: Instant| at.saturating_duration_since(self.deadline().arrival());
        self.0.start.set(worker, after(granted), after(now), limit);
    }

    /// Waits for the process or worker that `find` looks for, at first and after each change. Meanwhile, the job counts
    /// as queued.
    ///
    /// # Errors
    /// Those of `find`, and [`HandlerError::Stopped`] if the job is asked to stop.
    pub(super) async fn wait_for<T>(
        &self,
        changed: &Notify,
        queue_timeout: Option<Duration>,
        mut find: impl FnMut() -> Result<Option<T>, HandlerError>,
    ) -> Result<T, HandlerError> {
        loop {
            let next_change = changed.notified();
            if let Some(found) = find()? {
                if self.waited().is_none() {
                    self.0.start.set_waited(self.deadline().arrival().elapsed());
                }
                return Ok(found);
            }
            self.0.start.take_back(queue_timeout);
            tokio::select! {
                biased;
                _ = self.cancelled() => return Err(HandlerError::Stopped),
                () = next_change => {}
            }
        }
    }

    /// How often in a row its worker has crashed or was lost, if it is detached.
    pub(super) fn crashes(&self) -> u32 {
        self.running_attempt().map_or(0, |attempt| attempt.crashes)
    }

    /// Its worker crashed, or was lost, while it ran other jobs too.
    pub(super) fn note_shared_crash(&self) {
        if let Some(attempt) = self.running_attempt() {
            attempt.note_shared_crash();
        }
    }

    /// Receives the output chunks.
    pub fn output(&self) -> &OutputSink {
        &self.0.parts.output
    }

    /// When the job last showed progress; its start counts.
    pub fn last_progress(&self) -> Instant {
        let reported = Duration::from_micros(self.0.progress.load(Ordering::Relaxed));
        self.deadline().arrival() + self.waited().unwrap_or_default().max(reported)
    }

    fn touch(&self) {
        let since_arrival = self.deadline().arrival().elapsed().as_micros();
        self.0.progress.store(u64::try_from(since_arrival).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
