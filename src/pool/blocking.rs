//! The workers' own threads, which run jobs of blocking kinds, and their messages for the serving threads.
//!
//! If the pool has a next job for a worker that ends one, its thread finds that job in its channel at once: it does not
//! park, and no other thread wakes it.

use std::{io, sync::mpsc};

use tokio::{
    runtime::Handle,
    sync::{self, oneshot, watch},
};

use super::{
    inner::PoolInner,
    lease::Signal,
    shard::{serving_shard, work_for_shard},
};
use crate::{model::JobResult, phase::Phase, task::spawn_thread};

/// A worker's own thread. It ends when its last handle is dropped.
#[derive(Clone)]
pub(super) struct Thread(mpsc::SyncSender<Box<dyn FnOnce() + Send>>);

/// Where the outcome of a run goes.
pub(super) struct Done {
    caller: oneshot::Sender<JobResult>,
    reports: Option<Reports>,
}

impl Thread {
    pub(super) fn start(pool: &str, worker: u32, shards: usize) -> io::Result<Self> {
        // One place is enough: the pool grants the worker only when its thread is idle.
        let (sender, receiver) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(1);
        spawn_thread(format!("{pool}-{worker}"), move || {
            work_for_shard(worker as usize % shards);
            while let Ok(run) = receiver.recv() {
                run();
            }
        })?;
        Ok(Self(sender))
    }

    pub(super) fn run(&self, run: Box<dyn FnOnce() + Send>) {
        let taken = self.0.try_send(run).is_ok();
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

    pub(super) fn send(self, ended: JobResult) {
        report(self.reports.as_ref(), Message::Ended(self.caller, ended));
    }
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
