//! What is wrong, in words for people, and since when.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use tracing::{info, warn};

/// A problem is reported once it has lasted for so long.
const ON_AFTER: Duration = Duration::from_secs(5);
/// A problem is over once it has not been seen for so long.
const OFF_AFTER: Duration = Duration::from_secs(30);
/// Problems whose refusals and failed starts look like problems of their own.
const LEAVE_TRACES: [&str; 2] = ["flood", "program_cannot_start"];
/// Maximum number of reported problems.
const MAX_PROBLEMS: usize = 32;

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing fails yet.
    Warning,
    /// Jobs fail or are refused.
    Error,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// What it is.
    pub key: String,
    /// How bad it is.
    pub level: Level,
    /// What it is about: `pool/NAME`, `kind/NAME`, `program/NAME` or `store`; empty for the process.
    pub subject: String,
    /// Pool of the subject; empty for the process and the store.
    pub pool: String,
    /// One sentence, without a full stop.
    pub title: String,
    /// The figures, beside the usual ones.
    pub detail: String,
    /// What to do.
    pub todo: String,
    /// Jobs per second that fail, are refused or expire because of it.
    pub hurt: f64,
    /// When it began.
    pub since: Instant,
}

/// The problems that are seen, with hysteresis.
#[derive(Debug, Default)]
pub(super) struct Board(BTreeMap<[String; 3], Seen>);

#[derive(Debug)]
struct Seen {
    problem: Problem,
    last: Instant,
    is_reported: bool,
}

impl Board {
    /// Notes what is wrong now. Logs problems that begin or end.
    pub(super) fn update(&mut self, now: Instant, found: Vec<Problem>) {
        let key_of = |problem: &Problem| [problem.key.clone(), problem.subject.clone(), problem.pool.clone()];
        let keys: BTreeSet<_> = found.iter().map(key_of).collect();
        // The windows still hold what such a problem did that is just over: another one of its subject is no news yet.
        let fades = |(key, seen): (&[String; 3], &Seen)| {
            let is_over = seen.is_reported && !keys.contains(key);
            (is_over && LEAVE_TRACES.contains(&&*key[0])).then(|| key[1..].to_vec())
        };
        let fading: BTreeSet<_> = self.0.iter().filter_map(fades).collect();
        for problem in found {
            let key = key_of(&problem);
            if !self.0.contains_key(&key) && fading.contains(&key[1..]) {
                continue;
            }
            let since = problem.since;
            let seen = self.0.entry(key).or_insert(Seen { problem: problem.clone(), last: now, is_reported: false });
            let since = seen.problem.since.min(since);
            (seen.problem, seen.last) = (Problem { since, ..problem }, now);
            if !seen.is_reported && now.saturating_duration_since(since) >= ON_AFTER {
                seen.is_reported = true;
                let Problem { key, subject, pool, title, detail, todo, .. } = &seen.problem;
                warn!(problem = key, subject, pool, detail, todo, "a problem began: {title}");
            }
        }
        self.0.retain(|_, seen| {
            let is_kept = seen.last == now || (seen.is_reported && now - seen.last < OFF_AFTER);
            if !is_kept && seen.is_reported {
                let Problem { key, subject, pool, title, .. } = &seen.problem;
                info!(problem = key, subject, pool, "a problem is over: {title}");
            }
            is_kept
        });
    }

    /// The reported problems, the most harmful first.
    pub(super) fn reported(&self) -> Vec<Problem> {
        let mut all: Vec<_> = self.0.values().filter(|seen| seen.is_reported).map(|seen| &seen.problem).collect();
        all.sort_by(|a, b| b.level.cmp(&a.level).then(b.hurt.total_cmp(&a.hurt)));
        all.into_iter().take(MAX_PROBLEMS).cloned().collect()
    }
}
