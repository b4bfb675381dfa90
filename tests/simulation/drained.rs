//! What a drain owes: a goodbye to its peers, an end of the queue, and an end as soon as nothing runs.

use crate::{
    oracle::SLACK,
    record::{Events, Life, LifeEnd},
    server::{FINISH, LINGER, NOTICE},
    wire::PUBLIC,
};

/// What is wrong with the drain that ended a life.
pub(crate) fn faults(number: usize, life: &Life, events: &Events) -> Vec<String> {
    let LifeEnd::Drained { receipt, at } = &life.end else { return Vec::new() };
    let begin = at.saturating_sub(receipt.elapsed);
    let mut faults = Vec::new();
    let ran = events.attempts.iter().filter(|attempt| attempt.life == number);
    let busy = ran.map(|attempt| attempt.end_at).max().unwrap_or_default();
    let (shut, idle) = (begin + NOTICE + SLACK, busy.max(begin + NOTICE) + SLACK);
    if *at > idle + LINGER {
        faults.push(format!("its drain ended at {at:?}, and nothing ran since {busy:?}"));
    }
    for connection in events.connections.iter().filter(|connection| connection.life == number) {
        let is_left = connection.end.is_none_or(|end| end > shut);
        // Operators are served for as long as anything runs.
        let by = if connection.port == PUBLIC { shut } else { idle };
        let is_owed = is_left && connection.has_begun && !connection.has_failed;
        if is_owed && connection.goodbye.is_none_or(|goodbye| goodbye > by) {
            faults.push(format!("it drained from {begin:?} on, and did not say goodbye: {connection:?}"));
        }
    }
    let stop = begin + NOTICE + FINISH + SLACK;
    for attempt in events.attempts.iter().filter(|attempt| attempt.life == number && attempt.begin > stop) {
        faults
            .push(format!("it drained from {begin:?} on, and began to run a job when it stopped others: {attempt:?}"));
    }
    faults
}
