//! One job of an attached worker.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::RemoteWorkers;
use crate::{
    handler::{Context, StopReason, process::protocol::Failed},
    model::{HandlerError, Output},
};

/// What a job hears of its worker. The end of the worker is the end of the news.
pub(super) enum JobNews {
    Piece(Bytes),
    Progress {
        fraction: f64,
        message: String,
    },
    Done {
        content_type: String,
        last: Bytes,
    },
    Failed(Failed),
    /// A message of more than `limit` bytes was not read. Where it was an answer, it is the last news.
    TooLarge {
        limit: usize,
        is_answer: bool,
    },
}

/// A job that a worker runs. Dropping it gives the job up, unless it is answered.
pub(super) struct RemoteJob {
    workers: Arc<RemoteWorkers>,
    worker: u64,
    id: u64,
    news: mpsc::Receiver<JobNews>,
    /// Name and peer of the worker.
    shown: Arc<str>,
    is_answered: bool,
}

impl RemoteJob {
    pub(super) fn new(
        workers: Arc<RemoteWorkers>,
        worker: u64,
        id: u64,
        news: mpsc::Receiver<JobNews>,
        shown: Arc<str>,
    ) -> Self {
        Self { workers, worker, id, news, shown, is_answered: false }
    }

    /// Hands the output on until the job is answered, or is to stop.
    pub(super) async fn follow(mut self, cx: &Context) -> Result<Output, HandlerError> {
        loop {
            let news = tokio::select! {
                biased;
                reason = cx.cancelled() => {
                    self.cancel(reason.name());
                    // The pool's stop ladder bounds the wait.
                    while let Some(news) = self.next().await
                        && !self.is_answered
                    {
                        if let JobNews::Piece(_) = news {
                            self.workers.took(self.worker, self.id);
                        }
                    }
                    return Err(HandlerError::Stopped);
                }
                news = self.next() => news,
            };
            match news {
                Some(JobNews::Piece(piece)) => {
                    if let Err(error) = cx.write(piece).await {
                        let reason = cx.cancel_token().reason().map_or("OUTPUT_TOO_LARGE", StopReason::name);
                        self.cancel(reason);
                        return Err(error);
                    }
                    self.workers.took(self.worker, self.id);
                }
                Some(JobNews::Progress { fraction, message }) => cx.progress(fraction, message),
                Some(JobNews::Done { content_type, last }) => return Ok(Output::typed(last, content_type)),
                Some(JobNews::TooLarge { limit, is_answer }) => {
                    if !is_answer {
                        self.cancel("OUTPUT_TOO_LARGE");
                    }
                    return Err(HandlerError::OutputTooLarge { limit });
                }
                Some(JobNews::Failed(failed)) => return Err(failed.error("the worker")),
                None => {
                    return Err(HandlerError::Lost {
                        message: format!("worker {} is not attached any more", self.shown),
                    });
                }
            }
        }
    }

    async fn next(&mut self) -> Option<JobNews> {
        let news = self.news.recv().await;
        self.is_answered = matches!(
            news,
            None | Some(JobNews::Done { .. } | JobNews::Failed(_) | JobNews::TooLarge { is_answer: true, .. })
        );
        news
    }

    fn cancel(&self, reason: &str) {
        self.workers.cancel(self.worker, self.id, reason);
    }
}

impl Drop for RemoteJob {
    fn drop(&mut self) {
        if !self.is_answered {
            self.workers.abandon(self.worker, self.id);
        }
    }
}
