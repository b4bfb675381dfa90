//! Runs jobs of blocking kinds on the workers' own threads. `attempt.rs` runs asynchronous ones.
//!
//! The thread decides the outcome of its job and gives its worker back under one lock of the pool. If the pool has a
//! next job for that worker, the thread finds it in its channel at once: it does not park, and no other thread wakes
//! it. Messages for the serving threads go through [`Reports`](super::reports::Reports).

use std::{io, sync::mpsc};

use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{
    attempt::{entered, is_kept},
    inner::PoolInner,
    lease::Lease,
    outcome::{Fault, JobResult, conclude, judge},
    reports::{Report, Reports},
    shard::work_for_shard,
    trace::attempt_span,
};
use crate::{
    handler::{Contained, Context, Instance, contain},
    model::{HandlerError, Job, Output},
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
