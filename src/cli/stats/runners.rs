//! Programs, attached workers and detached jobs, as text.

use std::fmt::Write;

use crate::{
    cli::{
        console::{BAD, FAINT, WARN, paint},
        output::{
            bytes, duration, plain, rough,
            table::{Align, table},
        },
    },
    proto::{AttachedWorkerStats, DetachedStats, KindStats, ProcessState, ProgramStats},
};

/// A line for each program, and one for how its last process failed.
pub(super) fn programs(programs: &[ProgramStats]) -> Vec<String> {
    programs.iter().flat_map(program).collect()
}

fn program(program: &ProgramStats) -> Vec<String> {
    let ProgramStats { name, processes, starts, failures, last_failure } = program;
    let (jobs, memory) = processes.iter().fold((0, 0), |sum, it| (sum.0 + it.jobs, sum.1 + it.memory_bytes));
    let mut line = format!("program {}  ", plain(name));
    for state in
        [ProcessState::Starting, ProcessState::Idle, ProcessState::Busy, ProcessState::Leaving, ProcessState::Failing]
    {
        let count = processes.iter().filter(|process| process.state() == state).count();
        let word = state.as_str_name().trim_start_matches("PROCESS_STATE_").to_ascii_lowercase();
        let text = format!("{count} {word}");
        match (count, state) {
            (0, _) => continue,
            (_, ProcessState::Failing) => line.push_str(&paint(BAD, text)),
            _ => line.push_str(&text),
        }
        line.push_str("  ");
    }
    write!(line, "{jobs} jobs  {}  {starts} started", bytes(memory)).expect("a string takes all");
    let failure =
        (*failures > 0).then(|| paint(WARN, format!("{failures} failed, the last one: {}", plain(last_failure))));
    [line].into_iter().chain(failure.map(|failure| format!("  {failure}"))).collect()
}

/// A table of the workers that are attached.
pub(super) fn attached(workers: &[AttachedWorkerStats]) -> Vec<String> {
    use Align::{Left, Right};
    if workers.is_empty() {
        return Vec::new();
    }
    let heading = ["attached", "peer", "slots", "running", "jobs", ""].map(|cell| paint(FAINT, cell)).to_vec();
    let rows = workers.iter().map(|worker| {
        let AttachedWorkerStats { name, peer, concurrency, running, abandoned, jobs, leaving, labels: _ } = worker;
        let note = match (leaving, abandoned) {
            (true, _) => paint(WARN, "leaving"),
            (false, 0) => String::new(),
            (false, given_up) => paint(WARN, format!("{given_up} ignored a cancel")),
        };
        vec![plain(name), plain(peer), concurrency.to_string(), running.to_string(), jobs.to_string(), note]
    });
    let rows: Vec<_> = [heading].into_iter().chain(rows).collect();
    table(&[Left, Left, Right, Right, Right, Left], &rows)
}

/// Heading of [`detached_rows`].
pub(super) const DETACHED: [&str; 7] = ["detached", "scheduled", "ready", "blocked", "running", "dead", "oldest ready"];

/// A line for each kind with detached jobs.
pub(super) fn detached(kinds: &[KindStats]) -> Vec<String> {
    let mut rows: Vec<_> = detached_rows(kinds).map(Vec::from).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    for row in rows.iter_mut().filter(|row| row[5] != "0") {
        row[5] = paint(WARN, &row[5]);
    }
    rows.insert(0, DETACHED.map(|cell| paint(FAINT, cell)).to_vec());
    let right = [Align::Right; 6];
    table(&[&[Align::Left], &right[..]].concat(), &rows)
}

/// The cells of each kind with detached jobs.
pub(super) fn detached_rows(kinds: &[KindStats]) -> impl Iterator<Item = [String; 7]> {
    kinds.iter().filter_map(|kind| {
        let jobs = kind.detached.filter(|it| *it != DetachedStats::default())?;
        let DetachedStats { scheduled, ready, blocked, running, dead, oldest_ready_age } = jobs;
        let oldest = oldest_ready_age.map_or_else(|| "-".to_owned(), |age| rough(duration(Some(&age))));
        let [scheduled, ready, blocked, running, dead] =
            [scheduled, ready, blocked, running, dead].map(|count| count.to_string());
        Some([plain(&kind.name), scheduled, ready, blocked, running, dead, oldest])
    })
}
