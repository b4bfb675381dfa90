//! Runs jobs of blocking kinds on the workers' own threads. `attempt.rs` runs asynchronous ones.
//!
//! The thread decides the outcome of its job and gives its worker back under one lock of the pool. If the pool has a
//! next job for that worker, the thread finds it in its channel at once: it does not park, and no other thread wakes
//! it. Its messages for the serving threads go through [`Reports`].

use std::{io, sync::mpsc};

use tokio::{
    runtime::Handle,
    sync::{self, oneshot, watch},
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
    reports: Option<Reports>,
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

    pub(super) fn reports(&self) -> Option<&Reports> {
        self.reports.as_ref()
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
            report(done.reports.as_ref(), Message::Ended(done.caller, ended));
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

/// The way from the threads of workers to one serving thread.
///
/// Waking a runtime from another thread takes a system call. So a worker thread wakes only one task there, the reader,
/// and only if the reader is idle. The reader wakes the callers' tasks on their own thread.
pub(super) type Reports = sync::mpsc::Sender<Report>;

/// Reports that a reader may be behind. Further ones are delivered at once.
const MAX_REPORTS: usize = 1024;

/// A message from a worker's thread. Dropping it delivers it, so that none is lost without its reader.
pub(super) struct Report(Option<Message>);

pub(super) enum Message {
    /// A queued job began to run.
    Began(oneshot::Sender<Signal>),
    Ended(oneshot::Sender<JobResult>, JobResult),
}

impl Drop for Report {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Message::Began(waiter)) => drop(waiter.send(Signal::Began)),
            Some(Message::Ended(caller, ended)) => drop(caller.send(ended)),
            None => {}
        }
    }
}

/// Passes a message on to its reader. Without a reader, it is delivered at once.
pub(super) fn report(reports: Option<&Reports>, message: Message) {
    let report = Report(Some(message));
    if let Some(reports) = reports {
        // A report that does not fit is dropped with the error.
        drop(reports.try_send(report));
    }
}

impl PoolInner {
    /// The way to the calling thread, if it serves a shard. Starts its reader.
    pub(super) fn reports_here(&self) -> Option<Reports> {
        let mut kept = self.reports.get(serving_shard()?)?.lock();
        if kept.as_ref().is_none_or(Reports::is_closed) {
            Handle::try_current().ok()?;
            let (reports, inbox) = sync::mpsc::channel(MAX_REPORTS);
            self.tasks.spawn(read(inbox, self.phase.subscribe()));
            *kept = Some(reports);
        }
        kept.clone()
    }
}

/// Delivers reports. Returns when the pool is stopped or gone.
async fn read(mut inbox: sync::mpsc::Receiver<Report>, mut phase: watch::Receiver<Phase>) {
    let deliver = async { while inbox.recv().await.is_some() {} };
    tokio::select! {
        biased;
        () = deliver => {}
        _ = phase.wait_for(|phase| *phase >= Phase::Stopped) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_waits_for_its_reader_and_none_is_left_without_one() {
        let send = |reports: Option<&Reports>| {
            let (sender, began) = oneshot::channel();
            report(reports, Message::Began(sender));
            began
        };
        assert!(send(None).try_recv().is_ok(), "without a reader it is delivered at once");
        let (reports, mut inbox) = sync::mpsc::channel(2);
        let [mut first, mut second, mut third] = [(); 3].map(|()| send(Some(&reports)));
        assert!(first.try_recv().is_err() && second.try_recv().is_err(), "they wait for the reader");
        assert!(third.try_recv().is_ok(), "a report that does not fit is delivered at once");
        drop(inbox.try_recv());
        assert!(first.try_recv().is_ok() && second.try_recv().is_err());
        drop(inbox);
        assert!(second.try_recv().is_ok() && send(Some(&reports)).try_recv().is_ok());
    }
}
