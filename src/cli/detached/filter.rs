//! The flags that select detached jobs.

use std::time::{Duration, SystemTime};

use clap::Args;

use crate::{
    cli::flags::{any_duration, label, one_of},
    detached::wall_clock,
    proto::{DetachedJobFilter, JobState},
};

#[derive(Debug, Args)]
pub(in crate::cli) struct FilterArgs {
    /// Only jobs in these states, separated by commas [default: all].
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = one_of([
        ("scheduled", JobState::Scheduled, "It waits for a time"),
        ("ready", JobState::Ready, "It waits for a worker"),
        ("blocked", JobState::Blocked, "It waits for its ordering key"),
        ("running", JobState::Running, "It runs"),
        ("succeeded", JobState::Succeeded, "It has its result"),
        ("failed", JobState::Failed, "It is a dead letter"),
        ("cancelled", JobState::Cancelled, "It was cancelled"),
        ("expired", JobState::Expired, "Its time was over"),
    ]))]
    state: Vec<JobState>,
    /// Only jobs of this kind.
    #[arg(long, value_name = "KIND", default_value = "", hide_default_value = true)]
    kind: String,
    /// Only jobs of this tenant; "" is the default one.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only jobs with this label.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Option<(String, String)>,
    /// Only jobs that the call with this id created.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
    /// Only jobs that were created at least this long ago.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    older_than: Option<Duration>,
    /// Only jobs that were created at most this long ago.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    newer_than: Option<Duration>,
    /// Only jobs that ended at least this long ago.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    ended_older_than: Option<Duration>,
    /// Only jobs that ended at most this long ago.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    ended_newer_than: Option<Duration>,
    /// Only jobs whose last attempt ended so, such as HANDLER_FAILED; "" is without an attempt.
    #[arg(long, value_name = "NAME")]
    outcome: Option<String>,
    /// Only jobs whose last attempt had this error, as `jobs group` shows it or with its ids and numbers.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only jobs of this group.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    group: String,
}

impl FilterArgs {
    pub(super) fn into_filter(self) -> DetachedJobFilter {
        let Self { state, kind, tenant, label, request_id, outcome, error: message, group, .. } = self;
        let states = state.into_iter().map(i32::from).collect();
        let (label_key, label_value) = label.unwrap_or_default();
        let ago = |time: Duration| SystemTime::from(wall_clock()()).checked_sub(time).map(Into::into);
        DetachedJobFilter {
            states,
            kind,
            tenant,
            label_key,
            label_value,
            created_from: self.newer_than.and_then(ago),
            created_before: self.older_than.and_then(ago),
            request_id,
            outcome,
            message,
            ended_from: self.ended_newer_than.and_then(ago),
            ended_before: self.ended_older_than.and_then(ago),
            all: false,
            group,
        }
    }
}
