//! `waterwheel sim`. `src/sim.rs` has the simulation itself.

use std::{ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, ValueEnum};

use super::{
    console::Console,
    failure::{Exit, Failure},
    output::{Format, pluralized, setting},
    sim_report::{Figures, json, row, table},
    values::{duration_in, number_in},
};
use crate::{
    file,
    model::Criticality,
    sim::{self, Disturbance, Load, PassedOver, Pattern, Recording, RecordingError, Retry, Service, Source},
};

/// Largest log that is replayed, in bytes.
const MAX_LOG: u64 = 1 << 30;
/// Bounds of virtual times. For shorter jobs, one second would have more jobs than a run can have.
const MIN_TIME: Duration = Duration::from_nanos(1);
const MIN_MEAN: Duration = Duration::from_micros(1);
const MAX_TIME: Duration = Duration::from_secs(86_400);
/// Duration of the load after the main one.
const AFTER: Duration = Duration::from_secs(5);
/// Most jobs of all runs together, and of one run, which keeps them in memory at about 200 bytes each.
const MAX_JOBS: f64 = 50e6;
const MAX_JOBS_OF_A_RUN: f64 = 10e6;
/// Longest virtual time of one run, because the tally keeps each tenth of a second.
const MAX_RUN: Duration = Duration::from_secs(8 * 24 * 3600);
/// Bounds of loads and other factors.
const TIMES: RangeInclusive<f64> = 0.01..=100.0;

/// Simulate a pool under load, on virtual time.
///
/// Runs the scheduler of the server with random arrivals, and prints for each load: the useful share (worker time of jobs
/// that ended in time, divided by all worker time, or by the demand if that is less); the share of accepted jobs that
/// missed their deadline; the share of refused jobs; the 99th percentile of the wait; the time until nearly all jobs are
/// served again after the load falls; and the submissions per job.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel sim --load 2 --seeds 2 --duration 5s")]
pub(super) struct SimArgs {
    /// Loads, as multiples of the workers' capacity; for a replay, of the recorded rate. From 0.01 to 100.
    /// [default: 0.7,1,2,4,10; of a replay: 1]
    #[arg(long = "load", value_name = "TIMES", value_delimiter = ',', value_parser = number_in(TIMES))]
    loads: Vec<f64>,
    /// Distribution of service times.
    #[arg(long = "service", value_name = "SPREAD", value_delimiter = ',', default_value = "exponential,lognormal")]
    services: Vec<Service>,
    /// Distribution of arrivals.
    #[arg(long = "arrivals", value_name = "PATTERN", value_delimiter = ',', default_value = "poisson")]
    patterns: Vec<Pattern>,
    /// Number of seeds; the figures are means.
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Virtual time in which jobs arrive.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration_in(MIN_TIME..=MAX_TIME))]
    duration: Duration,
    /// Load after that time, for five seconds, to measure the recovery. [default: 0.7]
    #[arg(long, value_name = "TIMES", value_parser = number_in(TIMES), conflicts_with_all = ["slow", "lose", "replay"])]
    then: Option<f64>,
    /// Mean service time, from 1us on.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration_in(MIN_MEAN..=MAX_TIME))]
    mean: Duration,
    /// Deadline of the jobs.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration_in(MIN_TIME..=MAX_TIME))]
    deadline: Duration,
    /// Spread the deadlines from half to one and a half.
    #[arg(long)]
    spread: bool,
    /// Number of workers.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Number of tenants, with equal shares of the load.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    tenants: u16,
    /// Add one tenant that alone sends this multiple of the workers' capacity, and print the results of the others, which
    /// share --load.
    #[arg(long, value_name = "TIMES", value_parser = number_in(TIMES))]
    flood: Option<f64>,
    /// Draw the criticality of each job from the four classes.
    #[arg(long)]
    classes: bool,
    /// What refused callers do, up to five attempts within their deadline.
    #[arg(long, value_name = "HOW", default_value = "never")]
    retry: Retry,
    /// Capacity of the queue.
    #[arg(long, value_name = "JOBS", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    queue: u32,
    /// Factor by which jobs take longer in the second third of the time.
    #[arg(long, value_name = "TIMES", value_parser = number_in(TIMES))]
    slow: Option<f64>,
    /// Number of workers that are stuck in the second third of the time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    lose: Option<u16>,
    /// Replay the jobs of a log: standard error of a server with --log waterwheel::pool=debug, in a file. Limits of
    /// kinds, and their keys, are not replayed.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["services", "patterns", "duration", "mean", "deadline", "spread", "tenants", "flood", "classes"])]
    replay: Option<PathBuf>,
    /// The pool to replay, if the log has several.
    #[arg(long, value_name = "POOL", requires = "replay")]
    pool: Option<String>,
}

/// One load without its seed, and its name.
pub(super) struct Case {
    pub(super) load: Load,
    /// The load without the flooding tenant.
    pub(super) times: f64,
    pub(super) flood: Option<f64>,
    pub(super) service: String,
    pub(super) arrivals: String,
}

impl SimArgs {
    fn cases(&self, recording: Option<&Arc<Recording>>) -> Vec<Case> {
        let default: &[f64] = if recording.is_some() { &[1.0] } else { &[0.7, 1.0, 2.0, 4.0, 10.0] };
        let loads = if self.loads.is_empty() { default } else { &self.loads };
        if let Some(recording) = recording {
            let case = |times| {
                let load = self.load(Source::Recorded(Arc::clone(recording)), times);
                Case { load, times, flood: None, service: "recorded".to_owned(), arrivals: "recorded".to_owned() }
            };
            return loads.iter().copied().map(case).collect();
        }
        let mut cases = Vec::new();
        for service in self.services.iter().copied() {
            for pattern in self.patterns.iter().copied() {
                for times in loads.iter().copied() {
                    let load = self.load(Source::Drawn { pattern, mean: self.mean, service }, times);
                    let (service, arrivals) = (name(&service), name(&pattern));
                    cases.push(Case { load, times, flood: self.flood, service, arrivals });
                }
            }
        }
        cases
    }

    fn load(&self, source: Source, times: f64) -> Load {
        let class = (!self.classes).then_some(Criticality::Critical);
        let lasts = match &source {
            Source::Drawn { .. } => self.duration,
            Source::Recorded(recording) => recording.lasts().div_f64(times),
        };
        let is_even = self.slow.is_none() && self.lose.is_none() && self.replay.is_none();
        let (from, until) = (lasts / 3, lasts * 2 / 3);
        let others = usize::from(self.tenants);
        let flood = self.flood.map(|flood| (flood, class));
        let tenants = flood.into_iter().chain(std::iter::repeat_n((times / others as f64, class), others)).collect();
        Load {
            workers: usize::from(self.workers),
            source,
            times: times + self.flood.unwrap_or_default(),
            lasts,
            then: is_even.then(|| (self.then.unwrap_or(0.7), AFTER)),
            deadline: self.deadline,
            spread: self.spread,
            tenants,
            retry: self.retry,
            queue: usize::try_from(self.queue).unwrap_or(usize::MAX),
            slow: self.slow.map(|what| Disturbance { from, until, what }),
            lost: self.lose.map(|what| Disturbance { from, until, what: usize::from(what.min(self.workers)) }),
            seed: 0,
        }
    }

    /// Refuses simulations that would take too much time or memory.
    fn check(&self, cases: &[Case]) -> Result<(), Failure> {
        let (help_of_one, help_of_all) = match self.replay {
            Some(_) => ("replay a part of the log", "lower --seeds, or the number of loads"),
            None => (
                "lower --duration, --load, --flood or --workers, or raise --mean",
                "lower --duration, --load, --flood, --workers or --seeds, or raise --mean",
            ),
        };
        for Case { load, .. } in cases {
            let (jobs, lasts) = (jobs_of(load), load.end());
            if jobs > MAX_JOBS_OF_A_RUN {
                let max = count(MAX_JOBS_OF_A_RUN);
                let what =
                    format!("one run would simulate {} jobs; at most {max} are simulated at a time", count(jobs));
                return Err(Failure::usage(what, help_of_one));
            }
            if lasts > MAX_RUN {
                let what = format!("one run would last {}; at most {} are simulated", setting(lasts), setting(MAX_RUN));
                return Err(Failure::usage(what, "raise --load, or replay a part of the log"));
            }
        }
        let jobs = cases.iter().map(|case| jobs_of(&case.load)).sum::<f64>() * self.seeds as f64;
        if jobs > MAX_JOBS {
            let (runs, max) = (pluralized(cases.len() as u64 * self.seeds, "run"), count(MAX_JOBS));
            let what = format!("that would simulate {} jobs in {runs}; at most {max} are simulated", count(jobs));
            return Err(Failure::usage(what, help_of_all));
        }
        Ok(())
    }

    fn recording(&self) -> Result<Option<Arc<Recording>>, Failure> {
        let Some(path) = &self.replay else { return Ok(None) };
        let log = file::read(path, MAX_LOG).map_err(|fault| RecordingError::Unread { path: path.clone(), fault })?;
        // Lines that are not UTF-8 are not from the server, and are counted as such.
        let log = String::from_utf8_lossy(&log);
        Ok(Some(Arc::new(Recording::read(&log, self.pool.as_deref())?)))
    }
}

pub(super) async fn run(args: SimArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let recording = args.recording()?;
    let cases = args.cases(recording.as_ref());
    args.check(&cases)?;
    if let Some(note) = recording.as_deref().and_then(|recording| passed_over(recording.passed_over())) {
        console.err.line(&note).await?;
    }
    if let Some(recording) = recording.as_deref().filter(|_| console.format == Format::Text) {
        let (jobs, measured) = recording.counts();
        let lasts = setting(Duration::from_millis(u64::try_from(recording.lasts().as_millis()).unwrap_or(u64::MAX)));
        let line =
            format!("{jobs} jobs in {lasts}; {measured} of them completed, and lend the others their service times");
        console.out.line(&line).await?;
    }
    let mut rows = Vec::new();
    for case in cases {
        let mut figures = Vec::new();
        for seed in 0..args.seeds {
            let outcome = sim::run(&Load { seed, ..case.load.clone() });
            if console.format == Format::Json {
                console.out.line(&json(&case, seed, &outcome).to_string()).await?;
            }
            figures.push(Figures::new(&case, &outcome));
            // Lets Ctrl-C be noticed.
            tokio::task::yield_now().await;
        }
        rows.push(row(&case, &figures));
    }
    if console.format == Format::Text {
        console.out.line(&table(args.flood.is_some(), rows)).await?;
    }
    Ok(Exit::Done)
}

/// The parts of a log that were left out, if any.
fn passed_over(PassedOver { lines, first, is_cut }: PassedOver) -> Option<String> {
    let cut = "its last line has no end";
    let others = first.map(|first| {
        let (lines, are) = (pluralized(lines, "line"), if lines == 1 { "is" } else { "are" });
        format!("{lines} {are} not from the server, first line {first}")
    });
    let what = match (others, is_cut) {
        (None, false) => return None,
        (Some(others), false) => others,
        (None, true) => cut.to_owned(),
        (Some(others), true) => format!("{others}, and {cut}"),
    };
    Some(format!("note: left out of the log: {what}"))
}

/// Name of a value in its flag.
pub(super) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Expected number of jobs of one run.
fn jobs_of(load: &Load) -> f64 {
    let mean = match &load.source {
        Source::Recorded(recording) => return Recording::counts(recording).0 as f64,
        Source::Drawn { mean, .. } => mean.as_secs_f64(),
    };
    let then = load.then.map_or(0.0, |(times, lasts)| times * lasts.as_secs_f64());
    (load.times * load.lasts.as_secs_f64() + then) * load.workers as f64 / mean
}

/// With two or three digits.
fn count(jobs: f64) -> String {
    match jobs {
        jobs if jobs < 1e9 => format!("{} million", (jobs / 1e5).round() / 10.0),
        jobs => format!("{} billion", (jobs / 1e8).round() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::fake::Line;

    fn check(line: &str) -> Result<(), Failure> {
        let args = Line::<SimArgs>::try_parse_from(["sim"].into_iter().chain(line.split_whitespace())).unwrap().args;
        args.check(&args.cases(None))
    }

    #[test]
    fn what_is_too_much_is_refused_with_how_much_it_is() {
        check("").expect("what is done without any flag");
        let of = |line: &str| {
            let refused = check(line).unwrap_err();
            (refused.to_string(), refused.help().unwrap().to_owned())
        };
        let (error, help) = of("--load 100 --duration 1h --workers 65535 --mean 1us --seeds 1");
        assert!(error.starts_with("one run would simulate 23592829.4 billion jobs; at most 10 million"), "{error}");
        assert!(help.contains("--workers"), "{help}");
        // 8,000 each second for 1,000 s, and once 560 for five; four times.
        let (error, _) = of("--load 1 --duration 1000s --mean 1ms --seeds 7 --service exponential");
        assert_eq!(error, "that would simulate 56.2 million jobs in 7 runs; at most 50 million are simulated");
        check("--load 1 --duration 1000s --mean 1ms --seeds 6 --service exponential").unwrap();
    }

    #[test]
    fn the_shortest_mean_is_a_microsecond() {
        let parse = |mean| Line::<SimArgs>::try_parse_from(["sim", "--mean", mean]);
        assert!(parse("999ns").unwrap_err().to_string().contains("must be from 1us to 1day"));
        assert!(parse("1us").is_ok());
    }

    #[test]
    fn what_is_left_out_of_a_log_is_told_in_one_line() {
        let note = |lines, first, is_cut| passed_over(PassedOver { lines, first, is_cut });
        assert_eq!(note(0, None, false), None);
        assert_eq!(note(0, None, true).as_deref(), Some("note: left out of the log: its last line has no end"));
        let both = "note: left out of the log: 2 lines are not from the server, first line 7, and its last line \
                    has no end";
        assert_eq!(note(2, Some(7), true).as_deref(), Some(both));
    }
}
