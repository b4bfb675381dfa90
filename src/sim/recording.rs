use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;

use super::load::{Arrival, Load};
use crate::{file::FileFault, model::Criticality};

/// The jobs that a server logged as they came, `waterwheel serve --log waterwheel::pool=debug`.
///
/// The line `job arrived` says when a job came, with what budget, for whom; the line of its end says how long it ran. What
/// a job would have taken that was refused, or cut off, is not known: it is drawn from those of its kind that completed,
/// and took no less.
#[derive(Debug)]
pub(crate) struct Recording {
    jobs: Vec<Recorded>,
    tenants: Vec<String>,
    kinds: Vec<Vec<Duration>>,
}

#[derive(Debug, Clone, Copy)]
struct Recorded {
    at: Duration,
    budget: Duration,
    kind: usize,
    tenant: usize,
    class: Criticality,
    run: Run,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    Took(Duration),
    /// It was cut off then, or never ran.
    MoreThan(Duration),
}

/// Why a log cannot be replayed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordingError {
    #[error("cannot read {}: {fault}", path.display())]
    Unread { path: PathBuf, fault: FileFault },
    #[error("line {0} of the log is none of the server's: not a JSON object, or without what its message promises")]
    Line(usize),
    #[error("the log has no line \"job arrived\"{}", pool.as_ref().map(|pool| format!(" of the pool {pool:?}")).unwrap_or_default())]
    Empty { pool: Option<String> },
    #[error("the log is of several pools: {}", .0.join(", "))]
    Pools(Vec<String>),
    #[error("no job of the log completed, so that nothing is known of how long jobs take")]
    NothingCompleted,
}

impl RecordingError {
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::Unread { .. } => "pass a regular file that this user can read",
            Self::Line(_) => "pass standard error of \"waterwheel serve\", written to a file",
            Self::Empty { .. } => "log with --log waterwheel::pool=debug, to a file",
            Self::Pools(_) => "choose one with --pool",
            Self::NothingCompleted => "log until some jobs have completed",
        }
    }
}

/// What matters of a line of the log.
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
    run_ms: Option<f64>,
}

/// What is found of a job, line by line.
struct Found {
    at: SystemTime,
    budget: Duration,
    kind: String,
    tenant: String,
    class: Criticality,
    run: Run,
}

impl Recording {
    /// Reads a log. Lines of other things than jobs are passed over.
    pub(crate) fn read(log: &str, pool: Option<&str>) -> Result<Self, RecordingError> {
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        let mut pools = BTreeSet::new();
        for (index, text) in log.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let broken = RecordingError::Line(index + 1);
            let Ok(line) = serde_json::from_str::<Line>(text) else { return Err(broken) };
            let ended = ["job completed", "job failed", "job did not complete"].contains(&line.message.as_str());
            if line.message != "job arrived" && !ended {
                continue;
            }
            let (Some(job), Some(its_pool)) = (line.job.clone(), line.pool.clone()) else { return Err(broken) };
            if pool.is_some_and(|pool| pool != its_pool) {
                continue;
            }
            if !ended {
                pools.insert(its_pool);
                found.insert(job, Found::of(line).ok_or(broken)?);
            } else if let Some(job) = found.get_mut(&job) {
                let took = line.run_ms.and_then(milliseconds).ok_or(broken)?;
                job.run = if line.message == "job completed" { Run::Took(took) } else { Run::MoreThan(took) };
            }
        }
        if pools.len() > 1 {
            return Err(RecordingError::Pools(pools.into_iter().collect()));
        }
        Self::of(found.into_values().collect())
            .ok_or_else(|| RecordingError::Empty { pool: pool.map(str::to_owned) })?
    }

    fn of(mut found: Vec<Found>) -> Option<Result<Self, RecordingError>> {
        found.sort_by_key(|job| job.at);
        let first = found.first()?.at;
        let (mut tenants, mut kinds) = (Names::default(), Names::default());
        let jobs: Vec<Recorded> = found
            .into_iter()
            .map(|job| Recorded {
                at: job.at.duration_since(first).unwrap_or_default(),
                budget: job.budget,
                kind: kinds.number(job.kind),
                tenant: tenants.number(job.tenant),
                class: job.class,
                run: job.run,
            })
            .collect();
        let mut runs = vec![Vec::new(); kinds.0.len()];
        let mut all = Vec::new();
        for job in &jobs {
            if let Run::Took(took) = job.run {
                runs[job.kind].push(took);
                all.push(took);
            }
        }
        if all.is_empty() {
            return Some(Err(RecordingError::NothingCompleted));
        }
        for runs in &mut runs {
            // Nothing is known of a kind that never completed but what the others take.
            if runs.is_empty() {
                runs.clone_from(&all);
            }
            runs.sort_unstable();
        }
        Some(Ok(Self { jobs, tenants: tenants.0, kinds: runs }))
    }

    pub(super) fn tenants(&self) -> usize {
        self.tenants.len()
    }

    pub(super) fn kinds(&self) -> usize {
        self.kinds.len()
    }

    /// From the first arrival to a little after the last.
    pub(crate) fn lasts(&self) -> Duration {
        self.jobs.last().map_or(Duration::ZERO, |last| last.at) + Duration::from_millis(1)
    }

    /// Jobs, and those whose service time was measured.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.jobs.len(), self.jobs.iter().filter(|job| matches!(job.run, Run::Took(_))).count())
    }

    /// The jobs as they came, so many times faster.
    pub(super) fn arrivals<'a>(&'a self, load: &'a Load) -> impl Iterator<Item = Arrival> + 'a {
        let mut dice = StdRng::seed_from_u64(load.seed);
        self.jobs.iter().map(move |job| {
            let at = job.at.div_f64(load.times);
            let slower = load.slow.filter(|slow| slow.holds(at)).map_or(1.0, |slow| slow.what);
            let service = match job.run {
                Run::Took(took) => took,
                Run::MoreThan(least) => self.draw(job.kind, least, &mut dice),
            };
            let Recorded { budget, kind, tenant, class, .. } = *job;
            Arrival { at, service: service.mul_f64(slower), deadline: budget, kind, tenant, class }
        })
    }

    /// A service time of the kind that is no less than what is known; what is known, where none is.
    fn draw(&self, kind: usize, least: Duration, dice: &mut StdRng) -> Duration {
        let runs = &self.kinds[kind];
        let longer = &runs[runs.partition_point(|run| *run < least)..];
        if longer.is_empty() { least } else { longer[dice.random_range(0..longer.len())] }
    }
}

impl Found {
    fn of(line: Line) -> Option<Self> {
        let class = Criticality::NAMES.iter().position(|name| Some(*name) == line.criticality.as_deref())?;
        Some(Self {
            at: humantime::parse_rfc3339(&line.timestamp).ok()?,
            budget: milliseconds(line.budget_ms?)?,
            kind: line.kind?,
            tenant: line.tenant,
            class: Criticality::BY_IMPORTANCE[class],
            run: Run::MoreThan(Duration::ZERO),
        })
    }
}

/// Names in the order in which they were seen.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn number(&mut self, name: String) -> usize {
        self.0.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.0.push(name);
            self.0.len() - 1
        })
    }
}

fn milliseconds(count: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(count / 1e3).ok()
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
        assert_eq!(of("2026 INFO serving", None), RecordingError::Line(1));
        assert_eq!(of(&LOG.replace("budget_ms", "x"), None), RecordingError::Line(2));
        assert_eq!(of(&LOG.replacen("io", "cpu", 1), None), RecordingError::Pools(vec!["cpu".into(), "io".into()]));
        assert_eq!(of(&LOG.replace("completed", "failed"), None), RecordingError::NothingCompleted);
    }
}
