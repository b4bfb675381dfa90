//! A job that a drain could not finish.

use std::sync::Arc;

use crate::{
    handler::Context,
    model::{JobId, RequestId},
};

/// A job that a drain could not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostJob {
    /// Id of the job.
    pub job: JobId,
    /// Correlation id of its call.
    pub request_id: RequestId,
    /// Kind of the job.
    pub kind: Arc<str>,
    /// Pool that held it.
    pub pool: Arc<str>,
    /// Its stage.
    pub lost_while: LostWhile,
    /// Whether it is a run of a detached job, which its store takes back.
    pub is_detached: bool,
}

/// Stage of a lost job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostWhile {
    /// It had not begun, so another server may run it safely.
    Queued,
    /// It had begun.
    Running,
    /// It had ended, and its result was not stored. Only detached jobs are stored.
    Storing,
}

impl LostJob {
    pub(super) fn new(cx: &Context) -> Self {
        let lost_while = if cx.waited().is_some() { LostWhile::Running } else { LostWhile::Queued };
        Self {
            job: cx.job(),
            request_id: cx.request_id().clone(),
            kind: Arc::clone(cx.kind()),
            pool: Arc::clone(cx.pool()),
            lost_while,
            is_detached: cx.attempt().is_some(),
        }
    }
}
