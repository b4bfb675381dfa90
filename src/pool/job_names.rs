//! Names of a job, for lists.

use std::sync::Arc;

use crate::{
    handler::Context,
    model::{AttemptToken, RequestId},
};

/// Names of a job besides its id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobNames {
    /// Correlation id of its call, if there is one.
    pub request_id: Option<RequestId>,
    /// Tenant; `None` for the default one.
    pub tenant: Option<Arc<str>>,
    /// Caller; `None` without authentication.
    pub principal: Option<Arc<str>>,
    /// What ran it, if that was not the server itself.
    pub runner: Option<Box<str>>,
    /// The attempt of a detached job; `None` if a caller waits for the job.
    pub attempt: Option<Arc<AttemptToken>>,
    /// Id of its trace, as 32 hexadecimal digits, if it is traced.
    pub trace_id: Option<Box<str>>,
    /// Whether this server exports that trace.
    pub is_sampled: bool,
}

impl JobNames {
    /// Id of the detached job, if it is an attempt of one.
    #[must_use]
    pub fn detached_job(&self) -> Option<&str> {
        self.attempt.as_deref().map(|attempt| &*attempt.job)
    }

    pub(super) fn of(cx: &Context) -> Self {
        let trace_id = cx.trace_id();
        Self {
            is_sampled: trace_id.is_some() && cx.child_spans(),
            request_id: cx.known_request_id().cloned(),
            tenant: cx.tenant().cloned(),
            principal: cx.principal().cloned(),
            runner: cx.runner().map(|runner| runner.to_string().into()),
            attempt: cx.running_attempt().map(|attempt| Arc::clone(&attempt.token)),
            trace_id,
        }
    }
}
