//! One life of a process: what is written to it, read from it and known of it.

mod watch;

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tokio::{io::AsyncWriteExt, net::unix::pipe::Sender, sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Recycle, WorkerProgram,
    processes::{KeptSlot, memory},
    protocol::ProtocolFault,
    reading::Reader,
};
use crate::{
    handler::{
        Context,
        child::{Child, LineLog, Pipe, Process, Tail, end, quoting},
    },
    model::ProgramEnd,
};

/// Pieces of the output of one job that wait for it. With more jobs at once, the output of all waits for the slowest.
const EVENTS: usize = 4;

/// What a job hears of its process. The end of the process is the end of the events.
pub(super) enum JobEvent {
    Piece(Bytes),
    Progress { fraction: f64, message: String },
    Done { content_type: String, last: Bytes },
    Failed { code: String, message: String },
}

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

/// What is written: a message in two parts.
type Order = [Bytes; 2];

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
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    /// The end of what it printed; of its job alone where it runs one at a time.
    tail: Mutex<Tail>,
    stderr_tail: usize,
    terminate: CancellationToken,
    kill: CancellationToken,
    end: OnceLock<ProgramEnd>,
}

#[derive(Default)]
struct Jobs {
    last: u64,
    routes: FxHashMap<u64, Route>,
    has_ended: bool,
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
    NotReady(Duration),
    /// A job did not stop, or the server does.
    Forced,
}

impl Session {
    pub(super) fn new(program: &WorkerProgram, pid: u32) -> (Arc<Self>, mpsc::Receiver<Order>) {
        let places = program.jobs_per_process.max(1);
        // For each job that it runs its run and its cancel; what came before was read, or the later one would not run.
        let (orders, to_write) = mpsc::channel(2 * places + 2);
        let session = Self {
            pid,
            places,
            born: Instant::now(),
            taken: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            jobs: Mutex::default(),
            orders: Mutex::new(Some(orders)),
            tail: Mutex::new(Tail::new(program.stderr_tail)),
            stderr_tail: program.stderr_tail,
            terminate: CancellationToken::new(),
            kill: CancellationToken::new(),
            end: OnceLock::new(),
        };
        (Arc::new(session), to_write)
    }

    /// Reads, writes and watches the process until it is dead, and all that it wrote is read.
    pub(super) async fn live(
        self: Arc<Self>,
        slot: &KeptSlot,
        child: Child,
        orders: mpsc::Receiver<Order>,
    ) -> SessionEnd {
        let Child { mut process, input: _, stdout, stderr, messages } = child;
        let messages = messages.expect("they were asked for");
        let ended = CancellationToken::new();
        // The first cause counts.
        let (tell, causes) = mpsc::channel(1);
        let reader = Reader::new(Arc::clone(&self), slot);
        let watch = async {
            let cause = self.watch(slot, &mut process, causes, &reader).await;
            ended.cancel();
            cause
        };
        let (cause, (), (), (), ()) = tokio::join!(
            watch,
            async { drop(tell.try_send(reader.read(messages.output, &ended).await)) },
            async {
                if self.write(messages.input, orders, &ended).await.is_err() {
                    let _ = tell.try_send(Cause::Closed);
                }
            },
            self.log(slot, "stdout", stdout, &ended),
            self.log(slot, "stderr", stderr, &ended),
        );
        self.conclude(&slot.set.program, process, cause)
    }

    async fn write(
        &self,
        mut to: Sender,
        mut orders: mpsc::Receiver<Order>,
        ended: &CancellationToken,
    ) -> std::io::Result<()> {
        let write = async {
            while let Some(order) = orders.recv().await {
                for part in order {
                    to.write_all(&part).await?;
                }
            }
            Ok(())
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => Ok(()),
            written = write => written,
        }
    }

    /// Copies what the process prints to the log, with its job where it can have but one.
    async fn log(
        &self,
        slot: &KeptSlot,
        stream: &'static str,
        mut pipe: Pipe<impl tokio::io::AsyncRead + std::os::fd::AsFd + Unpin>,
        ended: &CancellationToken,
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
        while let Some(chunk) = pipe.next(ended).await {
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
            Cause::NotReady(limit) => {
                format!("{name} did not say that it is ready within {} ms, and was ended", limit.as_millis())
            }
            Cause::Forced => format!("{name} was ended, for a job of it did not stop"),
        };
        let _ = self.end.set(ProgramEnd { told: told.clone(), ..exit });
        let mut jobs = self.jobs.lock();
        jobs.has_ended = true;
        jobs.routes.clear();
        match cause {
            Cause::Left => SessionEnd::Left,
            _ => {
                let was_stopped = self.kill.is_cancelled() || self.terminate.is_cancelled();
                let told = quoting(told, &tail, program.stderr_tail);
                SessionEnd::Failed { told, has_worked: was_stopped || self.answered() > 0 }
            }
        }
    }

    /// Opens the way of a job's events. `None` where the process has ended.
    pub(super) fn add(&self, cx: &Context) -> Option<(u64, mpsc::Receiver<JobEvent>)> {
        let (events, received) = mpsc::channel(EVENTS);
        let mut jobs = self.jobs.lock();
        if jobs.has_ended {
            return None;
        }
        if self.places == 1 {
            *self.tail.lock() = Tail::new(self.stderr_tail);
        }
        jobs.last += 1;
        let id = jobs.last;
        jobs.routes.insert(id, Route { events, cx: cx.clone() });
        Some((id, received))
    }

    /// Where the events of a job go.
    pub(super) fn route(&self, id: &str) -> Option<mpsc::Sender<JobEvent>> {
        let jobs = self.jobs.lock();
        Some(jobs.routes.get(&id.parse().ok()?)?.events.clone())
    }

    /// The same, for the last time.
    pub(super) fn answer(&self, id: &str) -> Option<mpsc::Sender<JobEvent>> {
        let route = self.jobs.lock().routes.remove(&id.parse().ok()?)?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        Some(route.events)
    }

    /// Ends the process of a job that has no answer.
    pub(super) fn forget(&self, id: u64) {
        // An answer that its job has not read counts, too.
        if self.jobs.lock().routes.remove(&id).is_some() {
            self.close();
            self.kill.cancel();
        }
    }

    pub(super) fn send(&self, order: Order) {
        let sent = self.orders.lock().as_ref().map(|orders| orders.try_send(order));
        debug_assert!(!matches!(sent, Some(Err(mpsc::error::TrySendError::Full(_)))), "there is room for each job");
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
