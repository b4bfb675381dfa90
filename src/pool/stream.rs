//! A running job whose output is streamed.

use std::{
    pin::Pin,
    task::{Context as TaskContext, Poll, ready},
};

use tokio::sync::{mpsc, oneshot};

use super::{inner::Shared, ticket::Ticket};
use crate::{
    handler::{Context, Event, OutputSink, StopReason},
    model::{Completed, Failure, Job, JobError, JobId, JobResult, KindId, Outcome},
};

/// Chunks that a handler may be ahead of its reader.
const BUFFERED_CHUNKS: usize = 8;

/// A running job whose output is streamed. Dropping it cancels the job.
#[derive(Debug)]
pub struct JobStream {
    context: Context,
    events: mpsc::Receiver<Event>,
    end: StreamEnd,
}

/// What is known of the outcome.
#[derive(Debug)]
enum StreamEnd {
    /// Nothing yet.
    Open(oneshot::Receiver<JobResult>),
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
    /// The last item: the job completed. Its output is what the handler returned after the chunks.
    Completed(Completed),
}

impl JobStream {
    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.context.job()
    }

    /// Worker that runs the job.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.context.worker()
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
            // Clones of the job's context keep senders alive. A closed channel can still be read.
            self.events.close();
            self.end = StreamEnd::Given;
            // A failed job drops its unread events, because its time is over.
            self.end = StreamEnd::Known(outcome.unwrap_or_else(|_| Err(self.cut_off()))?);
        }
        if matches!(self.end, StreamEnd::Given) {
            return Poll::Ready(Ok(None));
        }
        if let Some(event) = ready!(self.events.poll_recv(cx)) {
            return Poll::Ready(Ok(Some(StreamItem::Event(event))));
        }
        match std::mem::replace(&mut self.end, StreamEnd::Given) {
            StreamEnd::Known(completed) => Poll::Ready(Ok(Some(StreamItem::Completed(completed)))),
            // The last sender is gone. The outcome is about to arrive, and will wake this task.
            open => {
                self.end = open;
                Poll::Pending
            }
        }
    }

    /// The outcome of a job whose task was dropped with its runtime, which cancels the job.
    fn cut_off(&self) -> JobError {
        JobError::Failed(Failure::of(&self.context, Outcome::Cancelled))
    }
}

impl Drop for JobStream {
    fn drop(&mut self) {
        self.context.stop(StopReason::Caller);
    }
}

pub(super) async fn stream(inner: &Shared, kind: KindId, job: Box<Job>) -> Result<JobStream, JobError> {
    let (sender, events) = mpsc::channel(BUFFERED_CHUNKS);
    // A stream is limited only by its kind, because the server buffers just a few chunks.
    let limit = inner.kind(kind).get_options().max_output.unwrap_or(usize::MAX);
    let ticket = Ticket::admit(inner, kind, job, OutputSink::stream(limit, sender))?;
    let context = ticket.cx.clone();
    let running = ticket.begin().await?;
    let (done, end) = oneshot::channel();
    // The reader may be gone.
    inner.tasks.spawn(async move { drop(done.send(running.await)) });
    Ok(JobStream { context, events, end: StreamEnd::Open(end) })
}
