//! `waterwheel sim`, and its results as a table and as JSON. `src/sim.rs` has the simulation itself.

use std::{ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use super::{
    access::read,
    console::Console,
    failure::{Exit, Failure},
    flags::{duration_in, number_in},
    output::{Format, name, pluralized, setting, short_duration, table},
};
use crate::{
    model::Criticality,
    sim::{
        self, Disturbance, LaterLoad, Load, Outcome, Pattern, Recording, Retry, Served, Service, Source, quantile_of,
    },
};

/// Largest log that is replayed, in bytes.
const MAX_LOG: u64 = 1 << 30;
/// Bounds of virtual times. For shorter jobs, one second would have more jobs than a run can have.
const MIN_TIME: Duration = Duration::from_nanos(1);
const MIN_MEAN: Duration = Duration::from_micros(1);
const MAX_TIME: Duration = Duration::from_secs(86_400);
/// Duration of the load after the main one.
const AFTER: Duration = Duration::from_secs(5);
/// Maximum number of jobs of all runs together, and of one run, which keeps them in memory at about 200 bytes each.
const MAX_JOBS: f64 = 50e6;
const MAX_JOBS_OF_A_RUN: f64 = 10e6;
/// Longest virtual time of one run, because the tally keeps each tenth of a second.
const MAX_RUN: Duration = Duration::from_secs(8 * 24 * 3600);
/// Bounds of loads and other factors.
const TIMES: RangeInclusive<f64> = 0.01..=100.0;
/// Columns of the table. `tries` are submissions per job.
const HEADS: [&str; 9] =
    ["service", "arrivals", ">load", ">useful", ">missed", ">refused", ">wait p99", ">recovery", ">tries"];
/// Further columns of `--flood`, for the tenants that do not flood the workers.
const OTHERS: [&str; 2] = [">others served", ">others p99"];

/// Simulate a pool under load, on virtual time.
///
/// Runs the scheduler of the server with random arrivals, and prints for each load: the useful share (worker time of
/// jobs that ended in time, divided by all worker time, or by the demand if that is less); the share of accepted jobs
/// that missed their deadline; the share of refused jobs; the 99th percentile of the wait; the time until nearly all
/// jobs are served again after the load falls; and the submissions per job.
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
    /// Number of workers.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Number of tenants, with equal shares of the load.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    tenants: u16,
    /// Add one tenant that alone sends this multiple of the workers' capacity, and print the results of the others,
    /// which share --load.
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
    #[arg(long, value_name = "FILE", conflicts_with_all = ["services", "patterns", "duration", "mean", "deadline", "tenants", "flood", "classes"])]
    replay: Option<PathBuf>,
    /// The pool to replay, if the log has several.
    #[arg(long, value_name = "POOL", requires = "replay")]
    pool: Option<String>,
}

/// A row of the table: a load, of which the seed is still to be set.
struct Case {
    load: Load,
    /// `load.times` without the flooding tenant.
    times: f64,
}

impl SimArgs {
    fn cases(&self, recording: Option<&Arc<Recording>>) -> Vec<Case> {
        let mean = self.mean;
        let drawn = self
            .services
            .iter()
            .flat_map(|&service| self.patterns.iter().map(move |&pattern| Source::Drawn { pattern, mean, service }));
        let (sources, default): (Vec<Source>, &[f64]) = match recording {
            Some(recording) => (vec![Source::Recorded(Arc::clone(recording))], &[1.0]),
            None => (drawn.collect(), &[0.7, 1.0, 2.0, 4.0, 10.0]),
        };
        let loads = if self.loads.is_empty() { default } else { &self.loads };
        let case = |source: &Source, times| Case { load: self.load(source.clone(), times), times };
        sources.iter().flat_map(|source| loads.iter().map(move |&times| case(source, times))).collect()
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
            then: is_even.then(|| LaterLoad { times: self.then.unwrap_or(0.7), lasts: AFTER }),
            deadline: self.deadline,
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
        let help = match self.replay {
            Some(_) => "replay a part of the log, or lower --seeds, or the number of loads",
            None => "lower --duration, --load, --flood, --workers or --seeds, or raise --mean",
        };
        let most = cases.iter().map(|case| jobs_of(&case.load)).fold(0.0, f64::max);
        let longest = cases.iter().map(|case| case.load.end()).max().unwrap_or_default();
        let all = cases.iter().map(|case| jobs_of(&case.load)).sum::<f64>() * self.seeds as f64;
        let runs = pluralized(cases.len() as u64 * self.seeds, "run");
        let what = if most > MAX_JOBS_OF_A_RUN {
            let max = large(MAX_JOBS_OF_A_RUN);
            format!("one run would simulate {} jobs; at most {max} are simulated at a time", large(most))
        } else if longest > MAX_RUN {
            format!("one run would last {}; at most {} are simulated", setting(longest), setting(MAX_RUN))
        } else if all > MAX_JOBS {
            format!("that would simulate {} jobs in {runs}; at most {} are simulated", large(all), large(MAX_JOBS))
        } else {
            return Ok(());
        };
        Err(Failure::usage(what, help))
    }

    fn recording(&self) -> Result<Option<Arc<Recording>>, Failure> {
        let Some(path) = &self.replay else { return Ok(None) };
        let log = read(path, MAX_LOG)?;
        // Lines that are not UTF-8 are not from the server, and are counted as such.
        let log = String::from_utf8_lossy(&log);
        Ok(Some(Arc::new(Recording::read(&log, self.pool.as_deref())?)))
    }
}

pub(super) async fn run(args: SimArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let recording = args.recording()?;
    let cases = args.cases(recording.as_ref());
    args.check(&cases)?;
    if let Some(recording) = &recording {
        describe(recording, console).await?;
    }
    let mut rows = Vec::new();
    for case in cases {
        let mut figures = Vec::new();
        for seed in 0..args.seeds {
            let of_seed = self::figures(&case, args.flood, seed, &sim::run(&Load { seed, ..case.load.clone() }));
            if console.format == Format::Json {
                console.out.line(&of_seed.to_string()).await?;
            }
            figures.push(of_seed);
            // Lets Ctrl-C be noticed.
            tokio::task::yield_now().await;
        }
        rows.push(row(&figures));
    }
    if console.format == Format::Text {
        let others = args.flood.map_or(&[][..], |_| &OTHERS);
        console.out.line(&table(&[&HEADS, others].concat(), rows).join("\n")).await?;
    }
    Ok(Exit::Done)
}

async fn describe(recording: &Recording, console: &mut Console<'_>) -> Result<(), Failure> {
    if recording.skipped() > 0 {
        let lines = pluralized(recording.skipped(), "line");
        let note = format!("note: left out of the log: {lines} without a whole message of the server");
        console.err.line(&note).await?;
    }
    if console.format == Format::Text {
        let (jobs, measured) = recording.counts();
        let lasts = short_duration(recording.lasts());
        let line =
            format!("{jobs} jobs in {lasts}; {measured} of them completed, and lend the others their service times");
        console.out.line(&line).await?;
    }
    Ok(())
}

/// Means over the seeds of a case.
fn row(seeds: &[Value]) -> Vec<String> {
    let name = |name: &str| seeds[0][name].as_str().unwrap_or_default().to_owned();
    let of = |name: &str| mean(seeds, |figures| figures[name].as_f64());
    let ratio = |part: &str, whole: &str| {
        mean(seeds, |figures| Some(figures[part].as_f64()? / figures[whole].as_f64()?.max(1.0)))
    };
    // The longest recovery, if all runs recovered.
    let recoveries: Option<Vec<f64>> = seeds.iter().map(|figures| figures["recovery_ms"].as_f64()).collect();
    let recovery = recoveries.map(|all| all.into_iter().fold(0.0, f64::max));
    let mut row = vec![
        name("service"),
        name("arrivals"),
        format!("{}x", seeds[0]["load"].as_f64().unwrap_or_default()),
        // Unknown if nothing could be served.
        percent(of("useful_share")),
        percent(of("admitted_then_missed")),
        percent(ratio("refused", "attempts")),
        milliseconds(of("wait_p99_ms")),
        milliseconds(recovery),
        format!("{:.2}", ratio("attempts", "arrived").unwrap_or_default()),
    ];
    if !seeds[0]["flood"].is_null() {
        row.extend([percent(of("others_served")), milliseconds(of("others_wait_p99_ms"))]);
    }
    row
}

/// `None` if a run has no such figure.
fn mean(seeds: &[Value], figure: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let all: Option<Vec<f64>> = seeds.iter().map(figure).collect();
    all.map(|all| all.iter().sum::<f64>() / all.len() as f64)
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn milliseconds(time: Option<f64>) -> String {
    time.map_or("-".to_owned(), |time| format!("{time:.0}ms"))
}

/// All figures of one run.
fn figures(case: &Case, flood: Option<f64>, seed: u64, outcome: &Outcome) -> Value {
    let Case { load, times } = case;
    let (service, arrivals) = match &load.source {
        Source::Recorded(_) => ("recorded".to_owned(), "recorded".to_owned()),
        Source::Drawn { pattern, service, .. } => (name(service), name(pattern)),
    };
    let tally = &outcome.tally;
    let waits = &tally.waits;
    // The flooding tenant is the first.
    let others_served = flood.map(|_| tally.tenants[1..].iter().sum::<Served>().share().unwrap_or_default());
    json!({
        "load": times,
        "service": service,
        "arrivals": arrivals,
        "tenants": tally.tenants.len(),
        // The load of the flooding tenant alone.
        "flood": flood,
        "workers": load.workers,
        "deadline_ms": load.deadline.as_secs_f64() * 1e3,
        // Time during which jobs arrived.
        "lasts_s": load.lasts.as_secs_f64(),
        "queue": load.queue,
        "retry": name(&load.retry),
        "seed": seed,
        "useful_share": outcome.useful_share,
        "admitted_then_missed": outcome.admitted_then_missed,
        // `null` without a disturbance, or without a recovery.
        "recovery_ms": outcome.recovery.map(|recovery| recovery.as_secs_f64() * 1e3),
        // Jobs, submissions, refused submissions, and accepted jobs.
        "arrived": tally.arrived,
        "attempts": tally.attempts,
        "refused": tally.refused,
        "admitted": tally.admitted,
        "useful_s": tally.useful.as_secs_f64(),
        "wasted_s": tally.wasted.as_secs_f64(),
        "wait_p50_ms": quantile_of(waits, 0.5),
        "wait_p99_ms": quantile_of(waits, 0.99),
        // The longest 99th percentile of any tenant.
        "worst_tenant_wait_p99_ms": waits.chunks(1).map(|tenant| quantile_of(tenant, 0.99)).fold(0.0, f64::max),
        // Jain's index over the tenants' served shares.
        "fairness": outcome.fairness,
        // Served share by class, the most important first; `null` without arrivals.
        "served_by_class": tally.classes.map(Served::share),
        // For all tenants except the flooding one; `null` if no tenant floods.
        "others_served": others_served,
        "others_wait_p99_ms": flood.map(|_| quantile_of(&waits[1..], 0.99)),
    })
}

/// Expected number of jobs of one run.
fn jobs_of(load: &Load) -> f64 {
    let mean = match &load.source {
        Source::Recorded(recording) => return Recording::counts(recording).0 as f64,
        Source::Drawn { mean, .. } => mean.as_secs_f64(),
    };
    let then = load.then.map_or(0.0, |then| then.times * then.lasts.as_secs_f64());
    (load.times * load.lasts.as_secs_f64() + then) * load.workers as f64 / mean
}

/// A large number of jobs, to a tenth of a million or a billion.
fn large(jobs: f64) -> String {
    match jobs {
        jobs if jobs < 1e9 => format!("{} million", (jobs / 1e5).round() / 10.0),
        jobs => format!("{} billion", (jobs / 1e8).round() / 10.0),
    }
}

#[cfg(test)]
#[path = "tests/sim.rs"]
mod tests;
