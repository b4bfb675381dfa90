//! One job of a worker, which is a long-running process or an attached worker. Both use the same events.

use bytes::Bytes;

use super::{
    Context, StopReason,
    protocol::{Failed, FromWorker},
};
use crate::model::{FailureCode, HandlerError, Output};

/// Reasons of a stop request that the worker itself has caused.
const TOO_LARGE: &str = "OUTPUT_TOO_LARGE";
const UNREADABLE: &str = "UNREADABLE_MESSAGE";

/// An id that no job of a worker has.
pub(super) const NO_JOB: u64 = 0;

/// The id of a job in a message of its worker. Only the server's spelling of an id is one: `007` and `+7`
/// are [`NO_JOB`].
pub(super) fn read_id(id: &str) -> u64 {
    if id.starts_with(['0', '+']) { NO_JOB } else { id.parse().unwrap_or(NO_JOB) }
}

/// An event of a job from its worker. The events end when the worker does.
pub(super) enum JobEvent {
    Piece(Bytes),
    Progress {
        /// `None` if it is the same as before.
        fraction: Option<f64>,
        message: String,
    },
    /// The job completed, with the last piece of its output.
    Done(Output),
    Failed(Failed),
    /// A message that was not read, and ends the job. Unless it is an answer, the worker still runs the job.
    Unread {
        error: HandlerError,
        is_answer: bool,
    },
}

impl JobEvent {
    /// The event of a message with these bytes, and its job id; `None` if the message is not about a job.
    pub(super) fn of(message: FromWorker, bytes: Bytes) -> Option<(String, Self)> {
        match message {
            FromWorker::Ready(_) => None,
            FromWorker::Output { id } => Some((id, Self::Piece(bytes))),
            FromWorker::Progress { id, fraction, message } => Some((id, Self::Progress { fraction, message })),
            FromWorker::Done { id, content_type } => Some((id, Self::Done(Output::typed(bytes, content_type)))),
            FromWorker::Failed(failed) => Some((failed.id.clone(), Self::Failed(failed))),
            FromWorker::Unreadable { id, what, is_answer } => {
                Some((id, Self::Unread { error: HandlerError::new(FailureCode::Unknown, what), is_answer }))
            }
        }
    }

    /// Whether this is the last event.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed(_) | Self::Unread { is_answer: true, .. })
    }
}

/// A job that a worker runs. Dropping it gives the job up, unless it is answered.
pub(super) trait WorkerJob {
    /// The next event; `None` if the worker is gone. Cancel safe.
    async fn next(&mut self) -> Option<JobEvent>;

    /// Asks the worker to stop the job, and waits as long as an answer is possible.
    async fn stop(&mut self, reason: &str, cx: &Context);

    /// A piece of its output was passed on.
    fn passed_on(&self);

    /// The error of a job that the worker answered with a failure.
    fn failed(&self, failed: Failed, cx: &Context) -> HandlerError;

    /// The error of a job whose worker is gone.
    fn lost(&self, cx: &Context) -> HandlerError;
}

/// Passes on the output until the job is answered or must stop.
pub(super) async fn follow(mut job: impl WorkerJob, cx: &Context) -> Result<Output, HandlerError> {
    let mut last_fraction = 0.0;
    loop {
        let event = tokio::select! {
            biased;
            reason = cx.cancelled() => {
                job.stop(reason.name(), cx).await;
                return Err(HandlerError::Stopped);
            }
            event = job.next() => event,
        };
        match event {
            Some(JobEvent::Piece(piece)) => {
                if let Err(error) = cx.write(piece).await {
                    job.stop(cx.stop_reason().map_or(TOO_LARGE, StopReason::name), cx).await;
                    return Err(error);
                }
                job.passed_on();
            }
            Some(JobEvent::Progress { fraction, message }) => {
                last_fraction = fraction.filter(|fraction| fraction.is_finite()).unwrap_or(last_fraction);
                cx.progress(last_fraction, message);
            }
            Some(JobEvent::Done(output)) => return Ok(output),
            Some(JobEvent::Failed(failed)) => return Err(job.failed(failed, cx)),
            Some(JobEvent::Unread { error, is_answer }) => {
                if !is_answer {
                    let is_large = matches!(error, HandlerError::OutputTooLarge { .. });
                    job.stop(if is_large { TOO_LARGE } else { UNREADABLE }, cx).await;
                }
                return Err(error);
            }
            None => return Err(job.lost(cx)),
        }
    }
}
