//! Statuses of calls for detached jobs.

use std::time::Duration;

use tonic::Status;

use super::{Answer, MAX_JOB_ID, Pushback, invalid_field};
use crate::{
    model::Reason,
    rpc::status_message::shorten,
    store::{JobState, StoreError},
};

/// Time until a store that fails may answer.
const FAILS_FOR: Duration = Duration::from_secs(1);
/// Time until jobs of a full backlog have ended.
const FULL_FOR: Duration = Duration::from_secs(5);

/// A call to a server without a store.
pub(in crate::rpc) fn no_store() -> Status {
    Answer::of(Reason::NoStore).status()
}

/// A call whose store failed.
pub(in crate::rpc) fn store_fails(error: &StoreError) -> Status {
    if *error == StoreError::InvalidPageToken {
        return invalid_field("page_token", &error.to_string());
    }
    let mut answer = Answer::of(Reason::StoreUnavailable);
    if *error == StoreError::DiskFull {
        answer = answer.saying("the disk of the store of detached jobs is full; its operator has to make room");
    }
    Answer { execution: "UNKNOWN", pushback: Pushback::After(FAILS_FOR), ..answer }.status()
}

/// A call that would wait for a store that failed when it was last asked.
pub(in crate::rpc) fn store_is_away() -> Status {
    Answer { pushback: Pushback::After(FAILS_FOR), ..Answer::of(Reason::StoreUnavailable) }.status()
}

/// A job for which the backlog has no room.
pub(in crate::rpc) fn store_full() -> Status {
    Answer { pushback: Pushback::After(FULL_FOR), ..Answer::of(Reason::StoreFull) }.status()
}

/// A job whose id another job has.
pub(in crate::rpc) fn job_exists(job: &str) -> Status {
    Answer::of(Reason::JobExists).never().fact("job", shorten(job, MAX_JOB_ID)).status()
}

/// A call for a detached job that does not exist, or that its caller may not see.
pub(in crate::rpc) fn no_detached_job(job: &str) -> Status {
    let answer = Answer::of(Reason::NotFound).saying("no such detached job; it may have been removed");
    answer.fact("job", shorten(job, MAX_JOB_ID)).status()
}

/// A call that the state of the job does not allow.
pub(in crate::rpc) fn wrong_state(job: &str, state: JobState) -> Status {
    let answer = Answer::of(Reason::WrongState).fact("job", shorten(job, MAX_JOB_ID));
    answer.fact("state", format!("{state:?}").to_uppercase()).status()
}
