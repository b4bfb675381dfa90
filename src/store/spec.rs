//! The part of a job that never changes and that no query needs alone, as JSON in one column.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{NewJob, RetryPolicy, Start};
use crate::model::{Job, Labels};

/// Fields are left out where they have their default, which makes most rows short.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    content_type: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    limit_key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_timeout: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue_timeout: Option<Duration>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<RetryPolicy>,
    /// Seconds that a result and a dead letter are kept.
    retain: (u64, u64),
}

impl Spec {
    pub(super) fn text_of(request: &NewJob) -> String {
        let job = &request.job;
        let spec = Self {
            content_type: job.content_type.clone(),
            limit_key: job.limit_key.clone(),
            request_id: request.request_id.clone(),
            timeout: job.timeout,
            run_timeout: job.run_timeout,
            queue_timeout: job.queue_timeout,
            labels: job.labels.clone(),
            retry: (request.retry != RetryPolicy::default()).then_some(request.retry),
            retain: (request.retain_for.as_secs(), request.retain_dead_for.as_secs()),
        };
        serde_json::to_string(&spec).expect("texts, numbers and a map with text keys are JSON")
    }

    /// Adds its fields to a job of which the other columns are known.
    pub(super) fn complete(self, id: String, pool: String, job: Job) -> NewJob {
        let Self { content_type, limit_key, request_id, timeout, run_timeout, queue_timeout, labels, retry, retain } =
            self;
        NewJob {
            id,
            pool,
            job: Job { content_type, limit_key, timeout, run_timeout, queue_timeout, labels, ..job },
            request_id,
            start: Start::Now,
            expire_at: None,
            retry: retry.unwrap_or_default(),
            retain_for: Duration::from_secs(retain.0),
            retain_dead_for: Duration::from_secs(retain.1),
        }
    }
}
