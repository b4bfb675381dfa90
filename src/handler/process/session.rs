//! One life of a process: what is written to it, read from it and known of it.

mod watch;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tokio::{
    sync::{self, SetOnce, mpsc},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Recycle, WorkerProgram,
    processes::{KeptSlot, memory},
    protocol::{Failed, ProtocolFault, Ready, Run, ToWorker, VERSION},
    reading::Reader,
    writing::Writer,
};
use crate::{
    handler::{
        Context,
        child::{Child, LineLog, Pipe, Process, Tail, end, quoting},
    },
    model::{Job, ProgramEnd},
};

/// Pieces of the output of one job that wait for it. With more jobs at once, the output of all waits for the slowest.
const EVENTS: usize = 4;

/// What a job hears of its process. The end of the process is the end of the events.
pub(super) enum JobEvent {
    Piece(Bytes),
    Progress { fraction: f64, message: String },
    Done { content_type: String, last: Bytes },
    Failed(Failed),
}

/// The events of one job.
pub(super) type Events = mpsc::Receiver<JobEvent>;

/// How the life of a process ended.
pub(super) enum SessionEnd {
    /// It was asked to leave. It may have been killed for not doing so.
    Left,
    Failed {
        told: String,
        /// Whether it had answered a job, or was ended for the sake of one.
        has_worked: bool,
    },
}

/// What one job at a time has, also while it waits.
#[expect(
    clippy::disallowed_types,
    reason = "the job that reads does so for all, and wakes those that wait for their turn"
)]
type Turn<T> = sync::Mutex<T>;

/// An id that no job has.
const NO_JOB: u64 = 0;

/// A process that runs jobs, as they see it.
pub(super) struct Session {
    pub(super) pid: u32,
    places: usize,
    born: Instant,
    /// Places that are taken.
    taken: AtomicUsize,
    /// Whether it takes no more jobs.
    closed: AtomicBool,
    answered: AtomicU64,
    jobs: Mutex<Jobs>,
    writer: Writer,
    reader: Turn<Reader>,
    /// The end of what it printed; of its job alone where it runs one at a time.
    tail: Mutex<Tail>,
    stderr_tail: usize,
    terminate: CancellationToken,
    /// Cancelled when it has exited.
    pub(super) ended: CancellationToken,
    /// Takes the first cause of its end.
    causes: mpsc::Sender<Cause>,
    end: SetOnce<ProgramEnd>,
}

#[derive(Default)]
struct Jobs {
    last: u64,
    routes: FxHashMap<u64, Route>,
}

struct Route {
    events: mpsc::Sender<JobEvent>,
    cx: Context,
}

/// Why a process is not followed any more.
pub(super) enum Cause {
    Exited,
    Left,
    /// It closed a pipe of its messages.
    Closed,
    Fault(ProtocolFault),
    /// It does not run one of its kinds, or speaks another protocol.
    Unfit(String),
    NotReady,
    /// A job did not stop, or the server does.
    Forced,
}

/// Reads, writes and watches a process until it is dead, and all that it printed is read.
pub(super) async fn live(slot: &KeptSlot, child: Child) -> SessionEnd {
    let Child { mut process, input: _, stdout, stderr, messages } = child;
    let (program, messages) = (&slot.set.program, messages.expect("they were asked for"));
    let (tell, causes) = mpsc::channel(1);
    let session = Arc::new(Session {
        pid: process.pid(),
        places: program.jobs_per_process.max(1),
        born: Instant::now(),
        taken: AtomicUsize::new(0),
        closed: AtomicBool::new(false),
        answered: AtomicU64::new(0),
        jobs: Mutex::default(),
        writer: Writer::new(messages.input),
        reader: Turn::new(Reader::new(messages.output)),
        tail: Mutex::new(Tail::new(program.stderr_tail)),
        stderr_tail: program.stderr_tail,
        terminate: CancellationToken::new(),
        ended: CancellationToken::new(),
        causes: tell,
        end: SetOnce::new(),
    });
    let watch = async {
        let cause = session.watch(slot, &mut process, causes).await;
        session.ended.cancel();
        cause
    };
    let write_rest = async {
        if let Some(Err(_)) = session.ended.run_until_cancelled(session.writer.write_rest()).await {
            session.tell(Cause::Closed);
        }
    };
    let (cause, (), (), (), ()) = tokio::join!(
        watch,
        session.begin(slot),
        write_rest,
        session.log(slot, "stdout", stdout),
        session.log(slot, "stderr", stderr),
    );
    session.conclude(program, process, cause)
}

impl JobEvent {
    /// Whether it is the last one.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Failed(_))
    }
}

impl Session {
    /// Waits until it is ready; from then on its jobs read.
    async fn begin(self: &Arc<Self>, slot: &KeptSlot) {
        let program = &slot.set.program;
        let ready = async { self.reader.lock().await.ready(&self.ended).await };
        let ready = timeout(program.start_timeout, ready).await;
        match ready.unwrap_or(Err(Cause::NotReady)).and_then(|ready| fit(program, ready)) {
            Ok(name) => {
                tracing::info!(program = %slot.set.name, pid = self.pid, name, "a process of a program is ready");
                slot.is_ready(self);
            }
            Err(cause) => self.tell(cause),
        }
    }

    /// Copies what the process prints to the log, with its job where it can have but one.
    async fn log(
        &self,
        slot: &KeptSlot,
        stream: &'static str,
        mut pipe: Pipe<impl tokio::io::AsyncRead + std::os::fd::AsFd + Unpin>,
    ) {
        let (mut lines, program) = (LineLog::new(), &slot.set.name);
        let tell = |line: &str, suppressed: u64| {
            let cx = if self.places == 1 {
                self.jobs.lock().routes.values().next().map(|route| route.cx.clone())
            } else {
                None
            };
            let job = cx.as_ref().map(|cx| tracing::field::display(cx.job()));
            let request_id = cx.as_ref().map(|cx| tracing::field::display(cx.request_id()));
            tracing::info!(%program, pid = self.pid, job, request_id, stream, suppressed, "{line}");
        };
        while let Some(chunk) = pipe.next(&self.ended).await {
            self.tail.lock().push(&chunk);
            lines.push(&chunk, tell);
        }
        lines.finish(tell);
    }

    /// Tells the jobs that are left.
    fn conclude(&self, program: &WorkerProgram, process: Process, cause: Cause) -> SessionEnd {
        self.close();
        let status = process.reap();
        let tail = self.tail();
        let exit = status.map_or_else(
            |fault| ProgramEnd { told: format!("its exit is lost: {fault}"), ..ProgramEnd::default() },
            |status| end(Path::new(&program.name), status, &tail),
        );
        let name = &program.name;
        let told = match &cause {
            Cause::Exited | Cause::Left => exit.told.clone(),
            Cause::Closed => format!("{name} closed descriptor 3 or 4, and was ended"),
            Cause::Fault(fault) => format!("{name} broke the protocol, and was ended: {fault}"),
            Cause::Unfit(why) => format!("{name} {why}"),
            Cause::NotReady => {
                let limit = program.start_timeout.as_millis();
                format!("{name} did not say that it is ready within {limit} ms, and was ended")
            }
            Cause::Forced => format!("{name} was ended, for a job of it did not stop"),
        };
        let _ = self.end.set(ProgramEnd { told: told.clone(), ..exit });
        match cause {
            Cause::Left => {
                tracing::info!(program = name, pid = self.pid, jobs = self.answered(), "a process of a program left");
                SessionEnd::Left
            }
            _ => {
                let was_stopped = matches!(cause, Cause::Forced) || self.terminate.is_cancelled();
                let told = quoting(told, &tail, program.stderr_tail);
                SessionEnd::Failed { told, has_worked: was_stopped || self.answered() > 0 }
            }
        }
    }

    /// Sends a job, whose events come back. `None` where the process takes none any more.
    pub(super) fn run(&self, job: &Job, cx: &Context) -> Option<(u64, Events)> {
        if !self.is_silent() {
            return None;
        }
        if self.places == 1 {
            *self.tail.lock() = Tail::new(self.stderr_tail);
        }
        let (events, received) = mpsc::channel(EVENTS);
        let mut jobs = self.jobs.lock();
        jobs.last += 1;
        let id = jobs.last;
        jobs.routes.insert(id, Route { events, cx: cx.clone() });
        drop(jobs);
        if self.send(ToWorker::Run(Run::of(id, job, cx)), job.payload.clone()) {
            return Some((id, received));
        }
        self.jobs.lock().routes.remove(&id);
        None
    }

    /// The next event of a job; `None` where the process has ended. Cancel safe.
    pub(super) async fn next(&self, job: u64, events: &mut Events) -> Option<JobEvent> {
        let mut reader = tokio::select! {
            biased;
            event = events.recv() => return event,
            reader = self.reader.lock() => reader,
        };
        // Whoever read before may have passed one on.
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

    /// Whether the process says nothing that belongs to no job. What does ends it.
    pub(super) fn is_silent(&self) -> bool {
        // Where another job reads, it finds out.
        self.reader.try_lock().map_or(true, |mut reader| reader.next(self, NO_JOB).now_or_never().is_none())
    }

    /// Whether a job of the caller's thread was the last that read it.
    pub(super) fn is_here(&self) -> bool {
        self.reader.try_lock().is_ok_and(|reader| reader.is_here())
    }

    /// Where the events of a job go.
    pub(super) fn route(&self, job: u64) -> Option<mpsc::Sender<JobEvent>> {
        Some(self.jobs.lock().routes.get(&job)?.events.clone())
    }

    /// The same, for the last time.
    pub(super) fn answer(&self, job: u64) -> Option<mpsc::Sender<JobEvent>> {
        let route = self.jobs.lock().routes.remove(&job)?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        Some(route.events)
    }

    /// Ends the process of a job that has no answer.
    pub(super) fn forget(&self, id: u64) {
        // An answer that its job has not read counts, too.
        if self.jobs.lock().routes.remove(&id).is_some() {
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

    /// Has the process ended. The first cause counts.
    pub(super) fn tell(&self, cause: Cause) {
        let _ = self.causes.try_send(cause);
        self.close();
    }

    pub(super) fn terminate(&self) {
        self.close();
        self.terminate.cancel();
    }

    pub(super) fn has_place(&self) -> bool {
        !self.is_closed() && self.taken() < self.places
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn take_place(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes no more jobs where it is due for a fresh process.
    pub(super) fn give_place(&self, recycle: &Recycle) {
        let Recycle { jobs, age, memory: most } = recycle;
        let is_due = jobs.is_some_and(|jobs| self.answered() >= jobs)
            || age.is_some_and(|age| self.born.elapsed() >= age)
            || most.is_some_and(|most| memory(self.pid).is_some_and(|used| used > most));
        if is_due {
            self.close();
        }
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Jobs that it answered.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// How it ended.
    pub(super) fn end(&self) -> Option<&ProgramEnd> {
        self.end.get()
    }

    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock()
    }
}

/// Whether a process serves the program. Returns its name.
fn fit(program: &WorkerProgram, Ready { protocol, kinds, name }: Ready) -> Result<String, Cause> {
    if protocol != VERSION {
        return Err(Cause::Unfit(format!("speaks version {protocol} of the protocol, and not {VERSION}")));
    }
    match program.kinds.iter().find(|kind| !kinds.is_empty() && !kinds.contains(kind)) {
        Some(kind) => {
            let kinds = kinds.join(", ");
            Err(Cause::Unfit(format!("does not run the kind {kind}; it says that it runs {kinds}")))
        }
        None => Ok(name),
    }
}
