//! Reads the filter of a call. Each text in it has the length limit of the field that it selects.

use std::time::SystemTime;

use prost_types::Timestamp as ProtoTimestamp;
use tonic::Status;

use super::JobsCall;
use crate::{
    model::{FieldViolation, MAX_KIND, MAX_TENANT, Reason, RequestId, check_label_key, check_label_value, check_text},
    proto::{self, DetachedJobFilter},
    rpc::{convert::job_state, status},
    store::{Filter, JobState, Timestamp, pattern},
};

/// Longest message of an attempt, in bytes.
const MAX_MESSAGE: usize = 4096;

/// The filter of a call, restricted to what its caller may see.
pub(super) async fn read_filter(call: &JobsCall, filter: DetachedJobFilter) -> Result<Filter, Status> {
    let mut faults = Vec::new();
    check(&filter, &mut faults);
    let is_known = |wanted: &JobState| filter.states().any(|sent| sent == job_state(*wanted));
    let states: Vec<_> = JobState::ALL.into_iter().filter(is_known).collect();
    let DetachedJobFilter { kind, tenant, label_key, label_value, request_id, outcome, message, group, .. } = filter;
    let kind = Some(kind).filter(|kind| !kind.is_empty());
    let created_from = read_time("filter.created_from", filter.created_from, &mut faults);
    let created_before = read_time("filter.created_before", filter.created_before, &mut faults);
    let ended_from = read_time("filter.ended_from", filter.ended_from, &mut faults);
    let ended_before = read_time("filter.ended_before", filter.ended_before, &mut faults);
    if !faults.is_empty() {
        return Err(status::unreadable(faults, call.context.request_id()));
    }
    let group = match &*group {
        "" => None,
        group => Some(call.group_job(group).await?.row),
    };
    Ok(Filter {
        states,
        tenant: call.service.access.tenant(call.rpc, &call.context, kind.as_deref(), tenant.as_deref())?,
        kind,
        label: Some((label_key, label_value)).filter(|(key, _)| !key.is_empty()),
        created_from,
        created_before,
        request_id: Some(request_id).filter(|id| !id.is_empty()),
        outcome,
        pattern: message.as_deref().map(pattern),
        ended_from,
        ended_before,
        group,
    })
}

fn check(filter: &DetachedJobFilter, faults: &mut Vec<FieldViolation>) {
    let DetachedJobFilter { states, kind, tenant, label_key, label_value, request_id, outcome, message, .. } = filter;
    let is_state = |sent: &i32| proto::JobState::try_from(*sent).is_ok_and(|it| it != proto::JobState::Unspecified);
    if !states.iter().all(is_state) {
        faults.push(FieldViolation::new("filter.states", "not a state; send values of the enum"));
    }
    check_text("filter.kind", kind, MAX_KIND, faults);
    check_text("filter.tenant", tenant.as_deref().unwrap_or_default(), MAX_TENANT, faults);
    check_label_value("filter.label_value", label_value, faults);
    if !label_key.is_empty() {
        check_label_key("filter.label_key", label_key, faults);
    } else if !label_value.is_empty() {
        faults.push(FieldViolation::new("filter.label_key", "missing; send the label of the value"));
    }
    if !request_id.is_empty() && request_id.parse::<RequestId>().is_err() {
        faults.push(FieldViolation::new("filter.request_id", "send 1 to 128 visible ASCII characters, or nothing"));
    }
    if outcome.as_ref().is_some_and(|outcome| !outcome.is_empty() && Reason::of(outcome).is_none()) {
        faults.push(FieldViolation::new("filter.outcome", "not an outcome; send one of an attempt, or the empty text"));
    }
    if message.as_ref().is_some_and(|message| message.len() > MAX_MESSAGE) {
        faults.push(FieldViolation::new("filter.message", "too long; messages of attempts have at most 4096 bytes"));
    }
}

/// A wall-clock time from 1970 to 9999, which every answer can carry.
pub(super) fn read_time(
    field: &'static str,
    time: Option<ProtoTimestamp>,
    faults: &mut Vec<FieldViolation>,
) -> Option<Timestamp> {
    let range = SystemTime::UNIX_EPOCH..=SystemTime::from(Timestamp::MAX);
    let read = SystemTime::try_from(time?).ok().filter(|time| range.contains(time));
    if read.is_none() {
        faults.push(FieldViolation::new(field, "out of range; send a time from 1970 to 9999"));
    }
    read.map(Timestamp::from)
}
