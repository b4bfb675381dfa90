//! Messages from the threads of blocking workers to serving threads, in batches.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context as TaskContext, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};

use super::{inner::PoolInner, outcome::JobResult, queued_job::Signal, shard::serving_shard};
use crate::phase::Phase;

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
