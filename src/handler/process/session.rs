//! One life of a process, shared by its jobs.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use rand::RngExt;
use rustc_hash::FxHashMap;
use tokio::{
    sync::{self, SetOnce, mpsc},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    pipes::{Reader, Writer},
    process_set::{ProcessSet, Supervisor},
    processes::memory,
};
use crate::{
    handler::{
        Context, Recycle, WorkerProgram,
        child::{LineLog, MessagePipes, Pipe, Tail},
        protocol::{ProtocolFault, Ready, Run, ToWorker, VERSION},
        worker_job::{JobEvent, NO_JOB},
    },
    model::{Job, ProgramEnd},
};

/// Output pieces that are buffered for one job. If a job is slower, the output of all jobs of its process waits.
const EVENTS: usize = 4;

/// Time after which a ready process has started well, even without a job.
const SETTLED: Duration = Duration::from_secs(1);

/// The events of one job.
pub(super) type Events = mpsc::Receiver<JobEvent>;

/// Owned by one job at a time, and across its awaits.
#[expect(clippy::disallowed_types, reason = "one job reads for all, and the other jobs wait for this lock")]
type ReaderLock<T> = sync::Mutex<T>;

/// A running process, shared by its jobs.
pub(super) struct Session {
    pub(super) pid: u32,
    /// Jobs that it runs at the same time.
    pub(super) places: usize,
    pub(super) born: Instant,
    /// Occupied places.
    taken: AtomicUsize,
    /// Whether it accepts no more jobs.
    closed: AtomicBool,
    answered: AtomicU64,
    /// When it is due for replacement, a little earlier for some processes than for others.
    recycle: Recycle,
    /// Whether it has reached one of these limits, except for the age.
    is_worn: AtomicBool,
    last_job: AtomicU64,
    /// Messages about jobs that were over, of all processes of the program.
    late: Arc<AtomicU64>,
    /// Bytes that its last message announced, and that have not come.
    pub(super) missing: AtomicU64,
    jobs: Mutex<FxHashMap<u64, Route>>,
    pub(super) writer: Writer,
    reader: ReaderLock<Reader>,
    /// The end of its output. If it runs one job at a time, only the output of that job.
    pub(super) tail: Mutex<Tail>,
    stderr_tail: usize,
    /// Cancelled when the process must be asked to exit.
    pub(super) must_exit: CancellationToken,
    /// Cancelled when the process has exited.
    pub(super) ended: CancellationToken,
    /// Receives the first cause of the end.
    causes: mpsc::Sender<Cause>,
    ready_at: OnceLock<Instant>,
    pub(super) end: SetOnce<SessionEnd>,
}

/// How a session ended.
pub(super) struct SessionEnd {
    pub(super) program: ProgramEnd,
    /// Whether the fault may be one of several jobs.
    pub(super) was_shared: bool,
}

struct Route {
    events: mpsc::Sender<JobEvent>,
    cx: Context,
}

/// Why a session ended.
pub(super) enum Cause {
    Exited,
    Left,
    /// The process closed a message pipe.
    Closed,
    Fault(ProtocolFault),
    /// The process does not run one of its kinds, or speaks another protocol version.
    Unfit(String),
    NotReady,
    /// A job did not stop, or the server stops.
    Forced,
}

impl Session {
    /// The session of a process that was just started, and a receiver for the cause of its end.
    pub(super) fn new(set: &ProcessSet, pid: u32, messages: MessagePipes) -> (Arc<Self>, mpsc::Receiver<Cause>) {
        let (tell, causes) = mpsc::channel(1);
        let program = &set.program;
        let session = Self {
            pid,
            places: program.jobs_per_process.max(1),
            born: Instant::now(),
            taken: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            recycle: program.recycle.spread(rand::rng().random_range(80..=100)),
            is_worn: AtomicBool::new(false),
            last_job: AtomicU64::new(NO_JOB),
            late: Arc::clone(&set.late),
            missing: AtomicU64::new(0),
            jobs: Mutex::default(),
            writer: Writer::new(messages.input),
            reader: ReaderLock::new(Reader::new(messages.output)),
            tail: Mutex::new(Tail::new(program.stderr_tail)),
            stderr_tail: program.stderr_tail,
            must_exit: CancellationToken::new(),
            ended: CancellationToken::new(),
            causes: tell,
            ready_at: OnceLock::new(),
            end: SetOnce::new(),
        };
        (Arc::new(session), causes)
    }

    /// Waits until the process is ready. From then on, its jobs read from it.
    pub(super) async fn begin(self: &Arc<Self>, supervisor: &Supervisor) {
        let program = &supervisor.set.program;
        let ready = async { self.reader.lock().await.ready(&self.ended).await };
        let ready = timeout(program.start_timeout, ready).await;
        match ready.unwrap_or(Err(Cause::NotReady)).and_then(|ready| fit(program, ready)) {
            Ok(name) => {
                tracing::info!(program = %supervisor.set.name, pid = self.pid, name, "a process of a program is ready");
                let _ = self.ready_at.set(Instant::now());
                supervisor.is_ready(self);
            }
            Err(cause) => self.tell(cause),
        }
    }

    /// Copies the output of the process to the log, with the job if the process runs one at a time.
    pub(super) async fn log(
        &self,
        supervisor: &Supervisor,
        stream: &'static str,
        mut pipe: Pipe<impl tokio::io::AsyncRead + std::os::fd::AsFd + Unpin>,
    ) {
        let (mut lines, program) = (LineLog::new(), &supervisor.set.name);
        let tell = |line: &str, suppressed: u64| {
            let cx =
                if self.places == 1 { self.jobs.lock().values().next().map(|route| route.cx.clone()) } else { None };
            let job = cx.as_ref().map(|cx| tracing::field::display(cx.job()));
            let detached_job = cx.as_ref().and_then(Context::detached_job);
            let request_id = cx.as_ref().map(|cx| tracing::field::display(cx.request_id()));
            tracing::info!(%program, pid = self.pid, job, detached_job, request_id, stream, suppressed, "{line}");
        };
        while let Some(chunk) = pipe.next(&self.ended).await {
            self.tail.lock().push(&chunk);
            lines.push(&chunk, tell);
        }
        lines.finish(tell);
    }

    /// Sends a job, and returns its events. `None` if the process accepts no more jobs.
    pub(super) fn run(&self, job: &Job, cx: &Context) -> Option<(u64, Events)> {
        if !self.is_silent() {
            return None;
        }
        if self.places == 1 {
            *self.tail.lock() = Tail::new(self.stderr_tail);
        }
        let (events, received) = mpsc::channel(EVENTS);
        let id = self.last_job.fetch_add(1, Ordering::Relaxed) + 1;
        self.jobs.lock().insert(id, Route { events, cx: cx.clone() });
        if self.send(ToWorker::Run(Run::of(id, job, cx)), job.payload.clone()) {
            return Some((id, received));
        }
        self.jobs.lock().remove(&id);
        None
    }

    /// The next event of a job; `None` if the process has ended. Cancel safe.
    pub(super) async fn next(&self, job: u64, events: &mut Events) -> Option<JobEvent> {
        let mut reader = tokio::select! {
            biased;
            event = events.recv() => return event,
            reader = self.reader.lock() => reader,
        };
        // The previous reader may have passed an event on.
        if let Ok(event) = events.try_recv() {
            return Some(event);
        }
        let event = reader.next(self, job).await;
        drop(reader);
        if event.is_none() {
            self.end.wait().await;
        }
        event
    }

    /// Whether the process has sent nothing while it has no job. Any such message ends the session.
    pub(super) fn is_silent(&self) -> bool {
        // If another job reads, that job detects the message.
        self.reader.try_lock().map_or(true, |mut reader| reader.next(self, NO_JOB).now_or_never().is_none())
    }

    /// Whether the last reader ran on the caller's thread.
    pub(super) fn is_here(&self) -> bool {
        self.reader.try_lock().is_ok_and(|reader| reader.is_here())
    }

    /// The sender for the events of a job.
    pub(super) fn route(&self, job: u64) -> Option<mpsc::Sender<JobEvent>> {
        Some(self.jobs.lock().get(&job)?.events.clone())
    }

    /// Whether the process was given this job. Ids only grow.
    pub(super) fn has_run(&self, job: u64) -> bool {
        job != NO_JOB && job <= self.last_job.load(Ordering::Relaxed)
    }

    /// Why one of its jobs cannot end: announced bytes that have not come.
    pub(super) fn blocked(&self) -> Option<String> {
        let missing = self.missing.load(Ordering::Relaxed);
        (missing > 0).then(|| format!("{missing} bytes that it announced have not come"))
    }

    /// Counts a message about a job that is over.
    pub(super) fn count_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// The sender for the last event of a job, which is removed.
    pub(super) fn answer(&self, job: u64) -> Option<mpsc::Sender<JobEvent>> {
        let route = self.jobs.lock().remove(&job)?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        Some(route.events)
    }

    /// Ends the process if the job has no answer.
    pub(super) fn forget(&self, id: u64) {
        // An answer also counts if its job has not read it.
        if self.jobs.lock().remove(&id).is_some() {
            self.tell(Cause::Forced);
        }
    }

    /// Sends a message. Returns whether the process still reads.
    pub(super) fn send(&self, message: ToWorker, bytes: Bytes) -> bool {
        let sent = self.writer.send(message, bytes);
        if sent.is_err() {
            self.tell(Cause::Closed);
        }
        sent.is_ok()
    }

    /// Ends the process. The first cause counts.
    pub(super) fn tell(&self, cause: Cause) {
        let _ = self.causes.try_send(cause);
        self.close();
    }

    pub(super) fn terminate(&self) {
        self.close();
        self.must_exit.cancel();
    }

    pub(super) fn has_place(&self) -> bool {
        !self.is_closed() && self.taken() < self.places
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn take_places(&self, places: usize) {
        self.taken.fetch_add(places, Ordering::Relaxed);
    }

    /// Number of jobs that it runs.
    pub(super) fn running(&self) -> usize {
        self.jobs.lock().len()
    }

    /// Whether it started well: it was ready, and had a job or went on for a while.
    pub(super) fn has_started(&self) -> bool {
        let has_run = self.last_job.load(Ordering::Relaxed) > NO_JOB;
        self.ready_at.get().is_some_and(|at| has_run || at.elapsed() >= SETTLED)
    }

    /// Gives places back.
    pub(super) fn give_places(&self, places: usize) {
        let Recycle { jobs, age: _, memory: max } = self.recycle;
        let is_worn = jobs.is_some_and(|jobs| self.answered() >= jobs)
            || max.is_some_and(|max| memory(self.pid).is_some_and(|used| used > max));
        self.is_worn.fetch_or(is_worn, Ordering::Relaxed);
        self.taken.fetch_sub(places, Ordering::Relaxed);
    }

    /// Whether it is due for replacement.
    pub(super) fn is_due(&self) -> bool {
        self.is_worn.load(Ordering::Relaxed) || self.age_left().is_some_and(|left| left.is_zero())
    }

    /// Time until it is due by its age, if that is limited.
    pub(super) fn age_left(&self) -> Option<Duration> {
        self.recycle.age.map(|age| age.saturating_sub(self.born.elapsed()))
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Number of answered jobs.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

/// Checks that a process runs all kinds of the program. Returns the name of the process.
fn fit(program: &WorkerProgram, Ready { protocol, kinds, name }: Ready) -> Result<String, Cause> {
    if protocol != VERSION {
        return Err(Cause::Unfit(format!("speaks version {protocol} of the protocol instead of {VERSION}")));
    }
    match program.kinds.iter().find(|kind| !kinds.is_empty() && !kinds.contains(kind)) {
        Some(kind) => {
            let kinds = kinds.join(", ");
            Err(Cause::Unfit(format!("does not run the kind {kind}; it says that it runs {kinds}")))
        }
        None => Ok(name),
    }
}
