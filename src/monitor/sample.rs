//! The figures of one second, as the pools and the store count them since the start.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use crate::{
    handler::ProcessState,
    pool::{Counts, EndedFailure, Phase, Pool, PoolStats, ProgramStats, Spread, TenantRate, WorkerState},
    store::{Depth, StoreError},
};

/// Longest text of a failure in a sentence.
const MAX_CAUSE: usize = 200;

/// The figures of the process.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    pub(super) pools: Vec<PoolSample>,
    /// Why the store does not answer.
    pub(super) away: Option<Arc<StoreError>>,
    /// In a drain: jobs that will probably be stopped, and the time until then.
    pub(super) drain: Option<(u64, Duration)>,
}

/// The figures of a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolSample {
    pub(super) name: Arc<str>,
    pub(super) counts: Counts,
    pub(super) queued: usize,
    pub(super) paused: Option<Duration>,
    /// Whether an operator drained it.
    pub(super) is_shut: bool,
    /// Who paused or drained it, and why.
    pub(super) operator: Operator,
    pub(super) stuck: usize,
    /// Number of attached workers that take jobs; `None` for a pool with its own workers.
    pub(super) attached: Option<usize>,
    pub(super) kinds: Vec<KindSample>,
    pub(super) programs: Vec<ProgramSample>,
    pub(super) tenants: Vec<TenantRate>,
}

/// Who did something to a pool or the process, and why. Empty texts are unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operator {
    /// The caller.
    pub principal: String,
    /// The reason that it gave.
    pub reason: String,
}

impl fmt::Display for Operator {
    /// What follows on what was done, such as ` by ann: the disk is replaced`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { principal, reason } = self;
        for (link, text) in [(" by ", principal), (": ", reason)] {
            if !text.is_empty() {
                write!(f, "{link}{text}")?;
            }
        }
        Ok(())
    }
}

/// The figures of a kind.
#[derive(Debug, Clone, Default)]
pub(super) struct KindSample {
    pub(super) name: Arc<str>,
    /// Jobs that failed, and jobs that ran.
    pub(super) sums: [u64; 2],
    /// Stored jobs that failed for good; `None` while they are not counted.
    pub(super) dead: Option<u64>,
    pub(super) last_failure: String,
    pub(super) is_limited: bool,
    /// Queue wait and run time; only in some samples.
    pub(super) spreads: Option<[Spread; 2]>,
}

/// The figures of a program.
#[derive(Debug, Clone, Default)]
pub(super) struct ProgramSample {
    pub(super) name: Arc<str>,
    pub(super) failures: u64,
    pub(super) last_failure: String,
    /// Whether a process is ready.
    pub(super) is_ready: bool,
    /// Whether a process waits for its next start.
    pub(super) is_failing: bool,
}

impl PoolSample {
    /// The figures of `pool`. `depths` are the stored jobs by kind, if they are counted.
    pub(super) fn of(pool: &Pool, depths: Option<&HashMap<String, Depth>>, with_spreads: bool) -> Self {
        let PoolStats { name, phase, paused, queued, counts, kinds, programs, attached, workers, .. } = pool.stats();
        let mut spreads: HashMap<_, _> =
            if with_spreads { pool.spreads().into_iter().collect() } else { HashMap::new() };
        let kinds = kinds.into_iter().map(|kind| KindSample {
            sums: [kind.faults.iter().sum(), kind.run_time.count],
            dead: depths.map(|depths| depths.get(&*kind.name).map_or(0, |depth| depth.dead)),
            last_failure: kind.last_failure.and_then(|ended| ended.failure).as_deref().map_or_else(String::new, why),
            is_limited: kind.limit.is_some(),
            spreads: spreads.remove(&kind.name),
            name: kind.name,
        });
        Self {
            kinds: kinds.collect(),
            counts,
            queued,
            paused,
            is_shut: phase >= Phase::Draining && pool.phase() == Phase::Serving,
            operator: Operator::default(),
            stuck: workers.iter().filter(|worker| worker.state == WorkerState::Stuck).count(),
            attached: attached.map(|workers| workers.iter().filter(|worker| !worker.is_leaving).count()),
            programs: programs.into_iter().map(ProgramSample::of).collect(),
            tenants: pool.tenant_rates(),
            name,
        }
    }
}

impl ProgramSample {
    fn of(program: ProgramStats) -> Self {
        let has = |states: &[ProcessState]| program.processes.iter().any(|process| states.contains(&process.state));
        Self {
            is_ready: has(&[ProcessState::Idle, ProcessState::Busy]),
            is_failing: has(&[ProcessState::Failing]),
            failures: program.failures,
            last_failure: cause(&program.last_failure),
            name: program.name,
        }
    }
}

/// The cause of a failure: its message, and the last line of what the program wrote to standard error.
fn why(failure: &EndedFailure) -> String {
    let stderr = failure.program.as_ref().map_or("", |end| &end.stderr);
    match stderr.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => cause(&format!("{}: {line}", failure.message)),
        None => cause(&failure.message),
    }
}

/// The first line of a failure, cut to the length that fits into a sentence.
fn cause(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let cut = &line[..line.floor_char_boundary(MAX_CAUSE)];
    if cut.len() < line.len() { format!("{cut}…") } else { cut.trim_end_matches('.').to_owned() }
}
