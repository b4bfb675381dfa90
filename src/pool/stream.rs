//! A running job whose output is read while it is made.

use std::{
    pin::Pin,
    task::{Context as TaskContext, Poll, ready},
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{outcome::failure, shard::Shared, submission::Admitted};
use crate::{
    handler::{CancelToken, Context, Event, OutputSink, StopReason},
    model::{Completed, Job, JobError, JobId, Outcome},
};

/// Chunks that a handler may be ahead of its reader.
const AHEAD: usize = 8;

/// A running job whose output is read while it is made. Dropping it cancels the job.
#[derive(Debug)]
pub struct JobStream {
    job: JobId,
    worker: u32,
    events: mpsc::Receiver<Event>,
    end: StreamEnd,
    cancel: CancelToken,
}

/// What is known of the outcome.
#[derive(Debug)]
enum StreamEnd {
    /// Nothing yet.
    Open(oneshot::Receiver<Result<Completed, JobError>>),
    /// The job completed; events may be left to read.
    Known(Completed),
    /// The outcome was returned.
    Given,
}

/// An item of a [`JobStream`].
#[derive(Debug, Clone, PartialEq)]
pub enum StreamItem {
    /// A chunk, or progress.
    Event(Event),
    /// The job completed; its output is what the handler returned besides the chunks. The last item.
    Completed(Completed),
}

impl JobStream {
    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job
    }

    /// Worker that runs the job.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// The next item; `None` after the last one. After a failure, unread events are dropped. Cancel safe.
    ///
    /// # Errors
    /// The failure of the job.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, JobError> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next) as a poll function.
    ///
    /// # Errors
    /// The failure of the job.
    pub fn poll_next(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Option<StreamItem>, JobError>> {
        if let StreamEnd::Open(end) = &mut self.end
            && let Poll::Ready(outcome) = Pin::new(end).poll(cx)
        {
            // Clones of the job's context would keep the channel open. Its contents stay readable.
            self.events.close();
            self.end = StreamEnd::Given;
            // Unread events of a failed job are not worth the remaining time.
            self.end = StreamEnd::Known(outcome.expect("the job's task sends an outcome, even where it is dropped")?);
        }
        if matches!(self.end, StreamEnd::Given) {
            return Poll::Ready(Ok(None));
        }
        if let Some(event) = ready!(self.events.poll_recv(cx)) {
            return Poll::Ready(Ok(Some(StreamItem::Event(event))));
        }
        match std::mem::replace(&mut self.end, StreamEnd::Given) {
            StreamEnd::Known(completed) => Poll::Ready(Ok(Some(StreamItem::Completed(completed)))),
            // The last writer is gone, and the outcome, which wakes this task, is on its way.
            open => {
                self.end = open;
                Poll::Pending
            }
        }
    }
}

impl Drop for JobStream {
    fn drop(&mut self) {
        self.cancel.cancel(StopReason::Caller);
    }
}

pub(super) async fn stream(inner: &Shared, kind: usize, job: Box<Job>) -> Result<JobStream, JobError> {
    let (sender, events) = mpsc::channel(AHEAD);
    // Only a limit of the kind bounds a stream, because the server holds only a few chunks of it.
    let limit = inner.kinds[kind].get_options().max_output.unwrap_or(usize::MAX);
    let admitted = Admitted::admit(inner, kind, job, OutputSink::stream(limit, sender))?;
    let cx = admitted.context().clone();
    let attached = admitted.begin().await?;
    let (done, end) = oneshot::channel();
    let reporter = Reporter { inner: inner.clone(), cx: cx.clone(), done: Some(done) };
    inner.tasks.spawn(async move { reporter.report(attached.await) });
    Ok(JobStream { job: cx.job(), worker: cx.worker(), events, end: StreamEnd::Open(end), cancel: cx.cancel_token() })
}

/// Sends the outcome of a stream's job. If its task is dropped with its runtime, the job is cancelled.
struct Reporter {
    inner: Shared,
    cx: Context,
    done: Option<oneshot::Sender<Result<Completed, JobError>>>,
}

impl Reporter {
    fn report(mut self, outcome: Result<Completed, JobError>) {
        if let Some(done) = self.done.take() {
            // The reader may be gone.
            let _ = done.send(outcome);
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            let run = self.cx.ran(Instant::now());
            let _ = done.send(Err(failure(&self.inner, &self.cx, Outcome::Cancelled, run, None).into()));
        }
    }
}
