//! Reads the log of a server, to replay its jobs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, UNIX_EPOCH},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;

use super::load::{Arrival, Load};
use crate::model::{Criticality, WhenFull};

/// A little more than the longest run or budget that a server can have.
const MAX_LOGGED: Duration = Duration::from_secs(8 * 24 * 3600);

/// The jobs in the log of a server that ran with `waterwheel serve --log waterwheel::pool=debug`.
///
/// The line `job arrived` has the time, the budget, the tenant, the ordering key and the run timeout of a job. The line
/// at its end has the run time. A job that was refused or cut off has no run time. One is drawn from the completed jobs
/// of its kind that ran at least as long.
#[derive(Debug)]
pub(crate) struct Recording {
    jobs: Vec<Recorded>,
    /// Number of tenants.
    tenants: usize,
    /// Measured run times of each kind, ascending.
    kinds: Vec<Vec<Duration>>,
    /// Lines that no server wrote, or that lack their end or a field of their message.
    skipped: usize,
}

/// A job that arrived at `arrival.at` since an origin. Its service time is not known yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded {
    pub(super) arrival: Arrival,
    pub(super) run: Run,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Took(Duration),
    /// The job was cut off after this time, or never ran.
    MoreThan(Duration),
}

/// Why a log cannot be replayed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordingError {
    #[error("no line of the log is from a server: those are JSON objects with a timestamp and a message")]
    Foreign,
    #[error("the log has no line \"job arrived\"{}", pool.as_ref().map(|pool| format!(" of the pool {pool:?}")).unwrap_or_default())]
    Empty { pool: Option<String> },
    #[error("the log has jobs of several pools: {}", .0.join(", "))]
    Pools(Vec<String>),
    #[error("no job of the log completed, so the service times are unknown")]
    NothingCompleted,
}

impl RecordingError {
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::Foreign => "pass standard error of \"waterwheel serve\", written to a file",
            Self::Empty { .. } => "log with --log waterwheel::pool=debug, to a file",
            Self::Pools(_) => "choose one with --pool",
            Self::NothingCompleted => "log until some jobs have completed",
        }
    }
}

/// The parsed fields of a line.
#[derive(Deserialize)]
struct Line {
    timestamp: String,
    message: String,
    job: Option<String>,
    pool: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    tenant: String,
    criticality: Option<String>,
    budget_ms: Option<f64>,
    ordering_key_hash: Option<String>,
    run_timeout_ms: Option<f64>,
    run_ms: Option<f64>,
}

/// The jobs of a log that is being read.
#[derive(Default)]
struct Findings {
    jobs: BTreeMap<String, Recorded>,
    pools: BTreeSet<String>,
    tenants: Names,
    kinds: Names,
    keys: Names,
}

/// Names, numbered in order of appearance.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Recording {
    /// Reads a log. Lines about other things than jobs are skipped; lines that no server wrote are counted.
    pub(crate) fn read(log: &str, pool: Option<&str>) -> Result<Self, RecordingError> {
        let mut findings = Findings::default();
        let mut skipped = 0;
        let mut is_foreign = !log.trim().is_empty();
        for text in log.lines().filter(|text| !text.trim().is_empty()) {
            let line = serde_json::from_str::<Line>(text).ok();
            is_foreign &= line.is_none();
            skipped += usize::from(line.and_then(|line| findings.take(line, pool)).is_none());
        }
        if is_foreign {
            return Err(RecordingError::Foreign);
        }
        if findings.pools.len() > 1 {
            return Err(RecordingError::Pools(findings.pools.into_iter().collect()));
        }
        if findings.jobs.is_empty() {
            return Err(RecordingError::Empty { pool: pool.map(str::to_owned) });
        }
        findings.recording(skipped).ok_or(RecordingError::NothingCompleted)
    }

    /// `None` if no job completed.
    pub(super) fn of(mut jobs: Vec<Recorded>, tenants: usize, kinds: usize, skipped: usize) -> Option<Self> {
        jobs.sort_by_key(|job| job.arrival.at);
        let mut kinds = vec![Vec::new(); kinds];
        let mut all = Vec::new();
        for job in &jobs {
            if let Run::Took(took) = job.run {
                kinds[job.arrival.kind].push(took);
                all.push(took);
            }
        }
        for runs in &mut kinds {
            // A kind without a completed job takes as long as the other kinds.
            if runs.is_empty() {
                runs.clone_from(&all);
            }
            runs.sort_unstable();
        }
        (!all.is_empty()).then_some(Self { jobs, tenants, kinds, skipped })
    }

    pub(super) fn tenants(&self) -> usize {
        self.tenants
    }

    pub(super) fn kinds(&self) -> usize {
        self.kinds.len()
    }

    /// Time from the first arrival to a little after the last.
    pub(crate) fn lasts(&self) -> Duration {
        self.jobs.last().map_or(Duration::ZERO, |last| self.since_first(last)) + Duration::from_millis(1)
    }

    fn since_first(&self, job: &Recorded) -> Duration {
        self.jobs.first().map_or(Duration::ZERO, |first| job.arrival.at.saturating_sub(first.arrival.at))
    }

    /// Number of jobs, and of those whose service time was measured.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.jobs.len(), self.jobs.iter().filter(|job| matches!(job.run, Run::Took(_))).count())
    }

    /// Number of lines that no server wrote, or that are not whole.
    pub(crate) fn skipped(&self) -> usize {
        self.skipped
    }

    /// The jobs as they arrived, `load.times` times as fast.
    pub(super) fn arrivals<'a>(&'a self, load: &'a Load) -> impl Iterator<Item = Arrival> + 'a {
        let mut dice = StdRng::seed_from_u64(load.seed);
        self.jobs.iter().map(move |job| {
            let at = self.since_first(job).div_f64(load.times);
            let slower = load.slow.filter(|slow| slow.holds(at)).map_or(1.0, |slow| slow.what);
            let service = match job.run {
                Run::Took(took) => took,
                Run::MoreThan(least) => self.draw(job.arrival.kind, least, &mut dice),
            };
            Arrival { at, service: service.mul_f64(slower), ..job.arrival }
        })
    }

    /// A measured service time of the kind that is at least `least`; `least` itself if there is none.
    fn draw(&self, kind: usize, least: Duration, dice: &mut StdRng) -> Duration {
        let runs = &self.kinds[kind];
        let longer = &runs[runs.partition_point(|run| *run < least)..];
        if longer.is_empty() { least } else { longer[dice.random_range(0..longer.len())] }
    }
}

impl Findings {
    /// Reads one line; `None` if it lacks a field of its message.
    fn take(&mut self, line: Line, pool: Option<&str>) -> Option<()> {
        let ended = ["job completed", "job failed", "job did not complete"].contains(&line.message.as_str());
        if line.message != "job arrived" && !ended {
            return Some(());
        }
        let (job, its_pool) = (line.job.clone()?, line.pool.clone()?);
        if pool.is_some_and(|pool| pool != its_pool) {
            return Some(());
        }
        if !ended {
            let arrived = self.arrived(line)?;
            self.jobs.insert(job, arrived);
            self.pools.insert(its_pool);
        } else if let Some(job) = self.jobs.get_mut(&job) {
            let took = line.run_ms.and_then(milliseconds)?;
            job.run = if line.message == "job completed" { Run::Took(took) } else { Run::MoreThan(took) };
        }
        Some(())
    }

    fn arrived(&mut self, line: Line) -> Option<Recorded> {
        let class = Criticality::NAMES.iter().position(|name| Some(*name) == line.criticality.as_deref())?;
        let arrival = Arrival {
            at: humantime::parse_rfc3339(&line.timestamp).ok()?.duration_since(UNIX_EPOCH).ok()?,
            service: Duration::ZERO,
            deadline: milliseconds(line.budget_ms?)?,
            kind: self.kinds.number(line.kind?),
            tenant: self.tenants.number(line.tenant),
            class: Criticality::BY_IMPORTANCE[class],
            ordering_key: line.ordering_key_hash.map(|key| self.keys.number(key)),
            limit_key: None,
            run_timeout: line.run_timeout_ms.and_then(milliseconds),
            when_full: WhenFull::Reject,
            is_stored: false,
        };
        Some(Recorded { arrival, run: Run::MoreThan(Duration::ZERO) })
    }

    /// `None` if no job completed.
    fn recording(self, skipped: usize) -> Option<Recording> {
        let jobs = self.jobs.into_values().collect();
        Recording::of(jobs, self.tenants.0.len(), self.kinds.0.len(), skipped)
    }
}

impl Names {
    fn number(&mut self, name: String) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
}

/// A server never logs more than [`MAX_LOGGED`], so a line with more is not from a server.
fn milliseconds(count: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(count / 1e3).ok().filter(|duration| *duration <= MAX_LOGGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"{"timestamp":"2026-01-01T00:00:00.000000Z","level":"INFO","target":"x","message":"serving"}
{"timestamp":"2026-01-01T00:00:01.000000Z","message":"job arrived","job":"a","pool":"io","kind":"sleep","tenant":"t1","criticality":"CRITICAL","budget_ms":500}
{"timestamp":"2026-01-01T00:00:01.250000Z","message":"job arrived","job":"b","pool":"io","kind":"sleep","criticality":"SHEDDABLE","budget_ms":2000.5,"refused":"QUEUE_FULL"}
{"timestamp":"2026-01-01T00:00:01.300000Z","message":"job completed","job":"a","pool":"io","run_ms":299.5}

{"timestamp":"2026-01-01T00:00:01.200000Z","message":"job arrived","job":"c","pool":"io","kind":"sleep","tenant":"t1","criticality":"CRITICAL","budget_ms":500}
{"timestamp":"2026-01-01T00:00:01.300000Z","message":"job did not complete","job":"c","pool":"io","run_ms":400}
"#;

    fn replayed(times: f64) -> Vec<Arrival> {
        let recording = Recording::read(LOG, None).unwrap();
        recording.arrivals(&Load { times, ..Load::steady(1.0, 1, super::super::Service::Exponential, 1) }).collect()
    }

    #[test]
    fn a_log_is_replayed_as_it_was() {
        let [a, c, b] = replayed(1.0)[..] else { panic!("three jobs") };
        let ms = Duration::from_millis;
        assert_eq!([a.at, c.at, b.at], [ms(0), ms(200), ms(250)], "in order of arrival");
        assert_eq!([a.service, a.deadline, b.deadline], [ms(299) + ms(1) / 2, ms(500), ms(2000) + ms(1) / 2]);
        assert_eq!((a.class, b.class), (Criticality::Critical, Criticality::Sheddable));
        assert_eq!(((a.tenant, a.kind), (c.tenant, c.kind)), ((b.tenant - 1, 0), (a.tenant, 0)));
        assert_eq!(b.service, a.service, "what was refused takes what others of its kind took");
        assert_eq!(c.service, ms(400), "what was cut off takes no less than it had");
        assert_eq!(replayed(2.0)[2].at, ms(125), "twice as fast");
        assert_eq!(Recording::read(LOG, None).unwrap().counts(), (3, 1));
    }

    #[test]
    fn what_is_no_log_is_refused_with_what_to_do() {
        let of = |log: &str, pool| Recording::read(log, pool).unwrap_err();
        assert_eq!(of("", None), RecordingError::Empty { pool: None });
        assert_eq!(of(LOG, Some("cpu")), RecordingError::Empty { pool: Some("cpu".into()) });
        assert_eq!(of("2026 INFO serving\n{}\n[1]", None), RecordingError::Foreign);
        assert_eq!(of(&LOG.replace("budget_ms", "x"), None), RecordingError::Empty { pool: None });
        assert_eq!(of(&LOG.replacen("io", "cpu", 1), None), RecordingError::Pools(vec!["cpu".into(), "io".into()]));
        assert_eq!(of(&LOG.replace("completed", "failed"), None), RecordingError::NothingCompleted);
    }

    #[test]
    fn what_no_server_wrote_is_skipped_and_counted() {
        let of = |log: &str| Recording::read(log, None).unwrap();
        assert_eq!(of(LOG).skipped(), 0, "blank lines are nothing");
        let lines: Vec<&str> = LOG.lines().collect();
        // The runtime of a container and another program in it, and a job without its budget.
        let others =
            ["2026-01-01T00:00:00Z stderr F started", "{\"level\":\"info\"}", &lines[1].replace("budget_ms", "x")];
        let recording = of(&[&[lines[0]], &others[..], &lines[1..]].concat().join("\n"));
        assert_eq!(recording.counts(), (3, 1));
        assert_eq!(recording.skipped(), 3);
    }

    #[test]
    fn a_last_line_without_its_end_is_left_out() {
        let whole = LOG.trim_end().len();
        for cut in [1, 30, 100] {
            let recording = Recording::read(&LOG[..whole - cut], None).unwrap();
            assert_eq!(recording.counts(), (3, 1), "{cut}");
            assert_eq!(recording.skipped(), 1, "{cut}");
        }
        let recording = Recording::read(LOG.trim_end(), None).unwrap();
        assert_eq!(recording.skipped(), 0, "only its line end is missing");
    }

    #[test]
    fn keys_and_limits_of_runs_are_replayed() {
        let of_one_tenant =
            LOG.replace("\"criticality\":\"SHEDDABLE\"", "\"tenant\":\"t1\",\"criticality\":\"SHEDDABLE\"");
        let log =
            of_one_tenant.replace("\"budget_ms\"", "\"ordering_key_hash\":\"7f\",\"run_timeout_ms\":350,\"budget_ms\"");
        let recording = Recording::read(&log, None).unwrap();
        let load = Load { workers: 3, ..Load::steady(1.0, 1, super::super::Service::Exponential, 1) };
        let [a, c, b] = recording.arrivals(&load).collect::<Vec<_>>()[..] else { panic!("three jobs") };
        assert_eq!([a, b, c].map(|job| job.ordering_key), [Some(0); 3]);
        assert_eq!([a, b, c].map(|job| job.outruns_its_limit()), [false, false, true], "400 ms of 350");
        let source = super::super::Source::Recorded(std::sync::Arc::new(recording));
        let load = Load { source, lasts: Duration::from_secs(1), ..load };
        let outcome = super::super::run(&load);
        let waits = &outcome.tally.waits;
        // The first ran for 299.5 ms from 0 on, and the second of its key came at 200: it waits for the rest.
        assert_eq!(outcome.tally.missed, 1, "the run that is stopped: {:?}", outcome.tally);
        assert!(waits.concat().iter().any(|wait| *wait > 0.0), "one at a time: {waits:?}");
    }
}
