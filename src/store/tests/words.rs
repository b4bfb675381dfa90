//! How scripts write jobs, states and answers.

use std::time::Duration;

use super::{TestClock, language::Words};
use crate::{
    model::{Criticality, Job},
    store::{Change, Fired, JobState, NewJob, Start, StoreError, Submitted, Timestamp},
};

/// `a`, or `a:key=x:class=0:delay=5:expire=9:kind=k:payload=p:retain=60`. Times are seconds from now.
pub(super) fn job(word: &str, clock: &TestClock) -> NewJob {
    let (id, rest) = word.split_once(':').unwrap_or((word, ""));
    let words = Words::of(rest, ':');
    let mut job = Job::new(words.text("kind", "k"), words.text("payload", id).to_owned());
    job.ordering_key = words.text("key", "").to_owned();
    job.tenant = words.text("tenant", "").to_owned();
    job.criticality = Criticality::BY_IMPORTANCE[words.number("class", 1) as usize];
    if let Some(value) = words.find("label") {
        job.labels.insert("team.x".to_owned(), value.to_owned());
    }
    let mut new = NewJob::new(id, words.text("pool", "p"), job);
    if let Some(delay) = words.find("delay") {
        new.start = Start::After(seconds(delay));
    }
    if let Some(time) = words.find("at") {
        new.start = Start::At(later(clock, time));
    }
    new.expire_at = words.find("expire").map(|time| later(clock, time));
    new.retain_for = Duration::from_secs(words.number("retain", 60));
    new.retain_dead_for = Duration::from_secs(words.number("retain", 60) * 2);
    new
}

pub(super) fn seconds(text: &str) -> Duration {
    Duration::from_secs(text.parse().expect("a number of seconds"))
}

pub(super) fn later(clock: &TestClock, text: &str) -> Timestamp {
    (clock.clock())().plus(seconds(text))
}

pub(super) fn submitted(answer: &Submitted) -> String {
    match answer {
        Submitted::Created => "created".to_owned(),
        Submitted::Leased(_) => "leased".to_owned(),
        Submitted::Existing(job) => format!("existing:{}", state(job.state)),
        Submitted::Conflict => "conflict".to_owned(),
        Submitted::Full => "full".to_owned(),
    }
}

pub(super) fn change(answer: Change) -> String {
    match answer {
        Change::WrongState(found) => format!("wrong:{}", state(found)),
        other => format!("{other:?}").to_lowercase(),
    }
}

pub(super) fn fired(answer: Fired) -> String {
    format!("{answer:?}").to_lowercase()
}

pub(super) fn state(state: JobState) -> String {
    format!("{state:?}").to_lowercase()
}

pub(super) fn failed(error: &StoreError) -> String {
    match error {
        StoreError::SessionLost => "lost".to_owned(),
        StoreError::InvalidPageToken => "bad page".to_owned(),
        other => format!("failed: {other}"),
    }
}
