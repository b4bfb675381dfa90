use tokio::sync::{mpsc, oneshot};

use super::{handle::Admitted, shell::Shell};
use crate::{
    handler::{CancelToken, Event, OutputSink, StopReason},
    model::{Completed, Job, JobError, JobId},
};
use std::sync::Arc;

/// Chunks that a handler may be ahead of its reader.
const AHEAD: usize = 8;

/// A running job whose output is read as it is made. Dropping it cancels the job.
#[derive(Debug)]
pub struct JobStream {
    job: JobId,
    worker: u32,
    events: mpsc::Receiver<Event>,
    end: oneshot::Receiver<Result<Completed, JobError>>,
    outcome: Option<Result<Completed, JobError>>,
    cancel: CancelToken,
}

/// What a [`JobStream`] gives.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamItem {
    /// A chunk, or progress.
    Event(Event),
    /// The job completed; its output holds what the handler returned besides the chunks. The last item.
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

    /// The next item; `None` after the last one. A failure cuts the events that were not read. Cancel safe.
    ///
    /// # Errors
    /// How the job failed.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, JobError> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next) as a poll.
    ///
    /// # Errors
    /// How the job failed.
    pub fn poll_next(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<Option<StreamItem>, JobError>> {
        use std::task::{Poll, ready};
        if self.outcome.is_none() && !self.end.is_terminated() {
            if let Poll::Ready(Ok(outcome)) = std::pin::Pin::new(&mut self.end).poll(cx) {
                // Whatever was not read of a failed job is not worth the time that is left.
                self.outcome = Some(Ok(outcome?));
            }
        }
        if let Some(event) = ready!(self.poll_event(cx)) {
            return Poll::Ready(Ok(Some(StreamItem::Event(event))));
        }
        Poll::Ready(Ok(self.outcome.take().transpose()?.map(StreamItem::Completed)))
    }

    fn poll_event(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Event>> {
        use std::task::Poll;
        match self.events.poll_recv(cx) {
            Poll::Ready(event) => Poll::Ready(event),
            // Clones of the job's context keep the channel open after its end.
            Poll::Pending if self.outcome.is_some() => Poll::Ready(None),
            Poll::Pending if self.end.is_terminated() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for JobStream {
    fn drop(&mut self) {
        self.cancel.cancel(StopReason::Caller);
    }
}

pub(super) async fn stream(shell: &Arc<Shell>, kind: usize, job: Job) -> Result<JobStream, JobError> {
    let (sender, events) = mpsc::channel(AHEAD);
    // Only a limit of the kind itself bounds a stream: nothing of it is held here.
    let limit = shell.kinds[kind].get_options().max_output.unwrap_or(usize::MAX);
    let admitted = Admitted::admit(shell, kind, job, OutputSink::stream(limit, sender))?;
    let cx = admitted.context().clone();
    let attached = admitted.begin().await?;
    let (done, end) = oneshot::channel();
    shell.tasks.spawn(async move {
        // A reader that left does not look at the end.
        let _ = done.send(attached.finish().await);
    });
    Ok(JobStream {
        job: cx.job(),
        worker: cx.start().map_or(0, |start| start.worker),
        events,
        end,
        outcome: None,
        cancel: cx.cancel_token().clone(),
    })
}
