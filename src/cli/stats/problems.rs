//! What is wrong, in the words of the server, and the last minute beside what is usual.

use std::time::Duration;

use prost_types::Timestamp;

use super::text::distribution;
use crate::{
    cli::{
        console::{BAD, FAINT, GOOD, WARN, paint},
        output::{sanitized, short_duration, table},
    },
    proto::{KindStats, Problem, ProblemLevel, Stats},
};

/// An older judgement is none.
const STALE: Duration = Duration::from_secs(5);

/// Whether something is wrong, and what. Empty if the server does not say.
pub(super) fn problems(stats: &Stats) -> Vec<String> {
    let Some(age) = age(stats, stats.judge_time) else { return Vec::new() };
    if age > STALE {
        return vec![paint(WARN, format!("Not judged for {}", short_duration(age)))];
    }
    let headline = match stats.problems.len() {
        0 => paint(GOOD, "All pools keep up"),
        1 => paint(WARN, "1 thing needs attention"),
        count => paint(WARN, format!("{count} things need attention")),
    };
    [headline].into_iter().chain(stats.problems.iter().flat_map(|problem| lines(stats, problem))).collect()
}

fn lines(stats: &Stats, problem: &Problem) -> [String; 3] {
    let style = if problem.level() == ProblemLevel::Error { BAD } else { WARN };
    let since = age(stats, problem.since).map_or_else(String::new, |age| format!("  for {}", short_duration(age)));
    let title = paint(style, sanitized(&problem.title));
    [
        format!("  {title}{}", paint(FAINT, since)),
        format!("    {}", sanitized(&problem.detail)),
        format!("    {}", sanitized(&problem.todo)),
    ]
}

/// Time since `then`, by the clock of the server.
fn age(stats: &Stats, then: Option<Timestamp>) -> Option<Duration> {
    let nanos = |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let age = nanos(stats.now?) - nanos(then?);
    Some(Duration::from_nanos(u64::try_from(age.max(0)).unwrap_or(u64::MAX)))
}

/// The times of each kind: the last minute, what is usual, and since the start.
pub(super) fn kinds(kinds: &[KindStats]) -> Vec<String> {
    let rows = kinds.iter().flat_map(|kind| {
        let (name, empty) = (sanitized(&kind.name), String::new());
        if kind.recent_run.is_none() {
            return vec![distribution(&name, "queue", kind.queue_wait), distribution("", "run", kind.run_time)];
        }
        let usual = kind.usual_run.map(|usual| distribution(&empty, "usual run", Some(usual)));
        let recent = [
            distribution(&name, "last minute queue", kind.recent_wait),
            distribution(&empty, "last minute run", kind.recent_run),
        ];
        let ever = [
            distribution(&empty, "since start queue", kind.queue_wait),
            distribution(&empty, "since start run", kind.run_time),
        ];
        recent.into_iter().chain(usual).chain(ever).collect()
    });
    table(&["kind", "time", ">count", ">p50", ">p90", ">p99", ">max"], rows.collect())
}
