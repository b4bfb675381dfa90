//! Runs jobs of blocking kinds on the workers' own threads. `attempt.rs` runs asynchronous ones.
//!
//! The thread decides the outcome of its job and gives its worker back under one lock of the pool. If the pool has a
//! next job for that worker, the thread finds it in its channel at once: it does not park, and no other thread wakes
//! it. Its messages for the serving threads go through [`Reports`].

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context as TaskContext, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::Instant,
};
use tracing::Span;

use super::{
    attempt::{entered, is_kept},
    inner::PoolInner,
    lease::Lease,
    outcome::{Fault, JobResult, conclude, judge},
    queued_job::Signal,
    shard::{serving_shard, work_for_shard},
    trace::attempt_span,
};
use crate::{
    handler::{Contained, Context, Instance, contain},
    model::{HandlerError, Job, Output},
    phase::Phase,
    task::spawn_thread,
};

/// A worker's own thread. It ends when its last handle is dropped.
#[derive(Clone)]
pub(super) struct Thread(mpsc::SyncSender<Work>);

/// One run of a job, with its worker.
pub(super) struct Work {
    lease: Lease,
    job: Box<Job>,
    kind: usize,
    span: Option<Box<Span>>,
    done: Done,
    // Dropped after the lease: the last clone of the context ends its span, which must not happen under the lock of the
    // pool.
    cx: Context,
}

/// Where the outcome of a run goes.
pub(super) struct Done {
    caller: oneshot::Sender<JobResult>,
    /// Notifies the serving thread of the caller.
    reports: Reports,
}

impl Thread {
    pub(super) fn start(pool: &str, worker: u32, shards: usize) -> io::Result<Self> {
        // One place is enough: the pool grants the worker only when its thread is idle.
        let (sender, receiver) = mpsc::sync_channel::<Work>(1);
        spawn_thread(format!("{pool}-{worker}"), move || {
            work_for_shard(worker as usize % shards);
            while let Ok(work) = receiver.recv() {
                work.run();
            }
        })?;
        Ok(Self(sender))
    }

    pub(super) fn run(&self, work: Work) {
        let taken = self.0.try_send(work).is_ok();
        debug_assert!(taken, "a worker's thread is free while its lease is");
    }
}

impl Done {
    /// An outcome receiver for the calling thread.
    pub(super) fn new(inner: &PoolInner) -> (Self, oneshot::Receiver<JobResult>) {
        let (caller, ended) = oneshot::channel();
        (Self { caller, reports: inner.reports_here() }, ended)
    }

    pub(super) fn reports(&self) -> &Reports {
        &self.reports
    }
}

impl Work {
    pub(super) fn new(lease: Lease, job: Box<Job>, kind: usize, cx: Context, done: Done) -> Self {
        let span = attempt_span(&cx, lease.worker());
        Self { lease, job, kind, span, done, cx }
    }

    fn run(self) {
        let Self { mut lease, job, kind, span, done, cx } = self;
        let result = entered(span.as_deref(), &cx, || run_handler(&mut lease, job, kind, &cx));
        drop(span);
        let ended = cx.span().in_scope(|| conclude(&mut lease, kind, &cx, Instant::now(), result));
        drop(lease);
        // By now the thread holds neither the pool nor the job. The job's span ends with the answer, and the process
        // may exit right after it.
        drop(cx);
        if let Some(ended) = ended {
            done.reports.push(Report::Ended(done.caller, ended));
        }
    }
}

fn run_handler(lease: &mut Lease, job: Box<Job>, kind: usize, cx: &Context) -> Result<Output, Fault> {
    let handler = match lease.take_handler(kind) {
        Some(handler) => handler,
        None => {
            let inner = lease.inner();
            let begun = inner.begin_to_make(kind)?;
            inner.made(kind, &begun, contain(|| inner.kinds[kind].make()))?
        }
    };
    let mut handler = Contained::new(handler);
    let Instance::Blocking(running) = handler.get_mut() else { unreachable!("the kind says that it is blocking") };
    let result = match contain(|| running.handle(job, cx.clone())) {
        Ok(result) => {
            if is_kept(&result) {
                lease.put_back(kind, handler);
            }
            result
        }
        Err(message) => Err(HandlerError::Panicked { message }),
    };
    judge(result, cx, lease.inner())
}

/// Messages from the threads of workers to one serving thread, in batches.
///
/// Waking a runtime from another thread takes a system call. So a worker thread wakes only one task there, the reader,
/// and only if the reader is idle. The reader wakes the callers' tasks on their own thread. Without a reader, each
/// message is delivered at once.
#[derive(Clone)]
pub(super) struct Reports(Arc<Inbox>);

// On a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Inbox {
    pending: Mutex<Pending>,
    /// Whether there is a reader. It changes only under the lock.
    is_read: AtomicBool,
}

#[derive(Default)]
struct Pending {
    reports: Vec<Report>,
    /// The reader's waker, while the reader is idle.
    reader: Option<Waker>,
}

/// A message from a worker's thread. Without a reader it is dropped.
pub(super) enum Report {
    /// A queued job began to run.
    Began(oneshot::Sender<Signal>),
    Ended(oneshot::Sender<JobResult>, JobResult),
}

/// Reads until it is dropped. After that, messages are delivered at once.
struct Reader(Reports);

impl Report {
    fn deliver(self) {
        match self {
            Self::Began(waiter) => drop(waiter.send(Signal::Began)),
            Self::Ended(caller, ended) => drop(caller.send(ended)),
        }
    }
}

impl PoolInner {
    /// The channel to the calling thread. A serving thread starts a reader for it.
    pub(super) fn reports_here(&self) -> Reports {
        let Some(reports) = serving_shard().and_then(|shard| self.reports.get(shard)) else {
            return self.unread.clone();
        };
        if !reports.0.is_read.load(Ordering::Relaxed) && Handle::try_current().is_ok() && reports.begin_to_read() {
            self.tasks.spawn(read(Reader(reports.clone()), self.phase.subscribe()));
        }
        reports.clone()
    }
}

impl Reports {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Claims the role of the reader. Returns false if there is one already.
    fn begin_to_read(&self) -> bool {
        let _pending = self.0.pending.lock();
        !self.0.is_read.swap(true, Ordering::Relaxed)
    }

    pub(super) fn push(&self, report: Report) {
        let mut pending = self.0.pending.lock();
        if !self.0.is_read.load(Ordering::Relaxed) {
            drop(pending);
            return report.deliver();
        }
        pending.reports.push(report);
        let reader = pending.reader.take();
        drop(pending);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// Returns when the pool is stopped or gone.
async fn read(reader: Reader, mut phase: watch::Receiver<Phase>) {
    tokio::select! {
        biased;
        () = std::future::poll_fn(|task| reader.poll(task)) => {}
        _ = phase.wait_for(|phase| *phase >= Phase::Stopped) => {}
    }
}

impl Reader {
    fn poll(&self, task: &TaskContext<'_>) -> Poll<()> {
        loop {
            let reports = {
                let mut pending = self.0.0.pending.lock();
                if pending.reports.is_empty() {
                    pending.reader = Some(task.waker().clone());
                    return Poll::Pending;
                }
                std::mem::take(&mut pending.reports)
            };
            reports.into_iter().for_each(Report::deliver);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let reports = {
            let mut pending = self.0.0.pending.lock();
            self.0.0.is_read.store(false, Ordering::Relaxed);
            pending.reader = None;
            std::mem::take(&mut pending.reports)
        };
        reports.into_iter().for_each(Report::deliver);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, task::Wake};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn push(reports: &Reports) -> oneshot::Receiver<Signal> {
        let (sender, ended) = oneshot::channel();
        reports.push(Report::Began(sender));
        ended
    }

    #[test]
    fn a_batch_wakes_its_reader_once_and_none_is_left_without_one() {
        let reports = Reports::new();
        assert!(push(&reports).try_recv().is_ok(), "without a reader it is delivered at once");
        assert!(reports.begin_to_read() && !reports.begin_to_read());
        let reader = Reader(reports.clone());
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let task = TaskContext::from_waker(&waker);
        for batch in 1..=3 {
            assert!(reader.poll(&task).is_pending());
            let mut ended: Vec<_> = (0..5).map(|_| push(&reports)).collect();
            assert!(ended.iter_mut().all(|ended| ended.try_recv().is_err()), "they wait for the reader");
            assert_eq!(wakes.0.load(Ordering::Relaxed), batch);
            assert!(reader.poll(&task).is_pending());
            assert!(ended.iter_mut().all(|ended| ended.try_recv().is_ok()));
        }
        let mut left = push(&reports);
        drop(reader);
        assert!(left.try_recv().is_ok() && push(&reports).try_recv().is_ok());
    }
}
