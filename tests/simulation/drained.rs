//! What a drain owes to its peers: a goodbye, and an end of the queue.

use crate::{
    oracle::SLACK,
    record::{Events, Life, LifeEnd},
    server::{FINISH, NOTICE},
    wire::PUBLIC,
};

/// What is wrong with the drain that ended a life.
pub(crate) fn faults(number: usize, life: &Life, events: &Events) -> Vec<String> {
    let LifeEnd::Drained { receipt, at } = &life.end else { return Vec::new() };
    let begin = at.saturating_sub(receipt.elapsed);
    let mut faults = Vec::new();
    let shut = begin + NOTICE + SLACK;
    for connection in events.connections.iter().filter(|connection| connection.life == number) {
        let is_left = connection.end.is_none_or(|end| end > shut);
        let by = if connection.port == PUBLIC { shut } else { *at };
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
