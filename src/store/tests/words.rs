//! The words of the scripts.

use std::time::Duration;

use super::TestClock;
use crate::{
    model::{Criticality, Job},
    store::{NewJob, Start, Timestamp},
};

/// The words of a line: `name=value` pairs beside plain words.
#[derive(Debug)]
pub(super) struct Words<'a>(pub(super) Vec<&'a str>);

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str, separator: char) -> Self {
        Self(text.split(separator).filter(|word| !word.is_empty()).collect())
    }

    /// The words that are no pairs.
    pub(super) fn plain(&self) -> Vec<String> {
        self.0.iter().filter(|word| !word.contains('=')).map(|word| (*word).to_owned()).collect()
    }

    /// Words that are jobs, whatever they contain.
    pub(super) fn rest(&self, from: usize) -> impl Iterator<Item = &'a str> {
        self.0[from..].iter().copied()
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find_map(|word| word.split_once('=').filter(|(found, _)| *found == name)).map(|(_, value)| value)
    }

    pub(super) fn text(&self, name: &str, default: &'a str) -> &'a str {
        self.find(name).unwrap_or(default)
    }

    pub(super) fn number(&self, name: &str, default: u64) -> u64 {
        self.find(name).map_or(default, |text| text.parse().expect("a number"))
    }
}

/// `a`, or `a:key=x:limit=y:class=0:delay=5:expire=9:kind=k:payload=p:retain=60:group=g`. Times are seconds from now.
/// `group/g:after=success`, or `after=end`, opens a group.
pub(super) fn job(word: &str, clock: &TestClock) -> NewJob {
    let (id, rest) = word.split_once(':').unwrap_or((word, ""));
    let words = Words::of(rest, ':');
    let mut job = Job::new(words.text("kind", "k"), words.text("payload", id).to_owned());
    job.ordering_key = words.text("key", "").to_owned();
    job.limit_key = words.text("limit", "").to_owned();
    job.tenant = words.text("tenant", "").to_owned();
    job.criticality = Criticality::BY_IMPORTANCE[words.number("class", 1) as usize];
    if let Some(value) = words.find("label") {
        job.labels.insert("team.x".to_owned(), value.to_owned());
    }
    let mut new = NewJob::new(id, words.text("pool", "p"), job);
    if let Some(delay) = words.find("delay") {
        new.start = Start::After(seconds(delay));
    }
    new.group = words.text("group", "").to_owned();
    if let Some(members) = words.find("after") {
        new.start = Start::Group { must_succeed: members == "success" };
    }
    if let Some(time) = words.find("at") {
        new.start = Start::At(later(clock, time));
    }
    new.expire_at = words.find("expire").map(|time| later(clock, time));
    new.policy.has_key_limit = words.find("limit").is_some();
    new.policy.retain_for = Duration::from_secs(words.number("retain", 60));
    new.policy.retain_dead_for = Duration::from_secs(words.number("retain", 60) * 2);
    new
}

pub(super) fn seconds(text: &str) -> Duration {
    Duration::from_secs(text.parse().expect("a number of seconds"))
}

pub(super) fn later(clock: &TestClock, text: &str) -> Timestamp {
    (clock.clock())().plus(seconds(text))
}
