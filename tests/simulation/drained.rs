//! Checks of a drain: it sends GOAWAY to its peers, stops starting jobs in time, and ends when nothing runs.

use crate::{
    oracle::SLACK,
    record::{Events, Life, LifeEnd},
    server::{FINISH, LINGER, NOTICE},
    wire::PUBLIC,
};

/// Faults of the drain that ended a life.
pub(crate) fn faults(number: usize, life: &Life, events: &Events) -> Vec<String> {
    let LifeEnd::Drained { receipt, at } = &life.end else { return Vec::new() };
    let begin = at.saturating_sub(receipt.elapsed);
    let mut faults = Vec::new();
    let ran = events.attempts.iter().filter(|attempt| attempt.life == number);
    let busy = ran.map(|attempt| attempt.end_at).max().unwrap_or_default();
    let (shut, idle) = (begin + NOTICE + SLACK, busy.max(begin + NOTICE) + SLACK);
    if *at > idle + LINGER {
        faults.push(format!("its drain ended at {at:?}, but nothing ran since {busy:?}"));
    }
    for connection in events.connections.iter().filter(|connection| connection.life == number) {
        let is_left = connection.end.is_none_or(|end| end > shut);
        // The operators' listener is open as long as jobs run.
        let by = if connection.port == PUBLIC { shut } else { idle };
        let is_owed = is_left && connection.has_begun && !connection.has_failed;
        if is_owed && connection.goaway.is_none_or(|goaway| goaway > by) {
            faults.push(format!("it drained from {begin:?}, and did not send GOAWAY: {connection:?}"));
        }
    }
    let stop = begin + NOTICE + FINISH + SLACK;
    for attempt in events.attempts.iter().filter(|attempt| attempt.life == number && attempt.begin > stop) {
        faults.push(format!("it drained from {begin:?}, and started a job when it stopped others: {attempt:?}"));
    }
    faults
}
