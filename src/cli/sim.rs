//! `waterwheel sim`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;

use super::{
    console::Console,
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs, counted, json, setting},
};
use crate::{
    file,
    model::Criticality,
    sim::{self, Load, PassedOver, Pattern, Recording, RecordingError, Retry, Service, Source, Spell},
};

mod report;
mod size;

use report::{Row, Table};
pub(super) use size::TooMuch;

const EXAMPLE: &str = "\
Example:
  waterwheel sim --load 2 --seeds 2 --duration 5s";

/// Largest log that is replayed, in bytes.
const MAX_LOG: u64 = 1 << 30;
/// Longest virtual time of anything.
const MAX_TIME: Duration = Duration::from_secs(86_400);
/// Duration of the load after the main one.
const AFTER: Duration = Duration::from_secs(5);

/// Simulate a pool under load, on virtual time.
///
/// Runs the pool's own machine against seeded arrivals, and prints how much of the workers' time went to jobs that ended
/// in time, as a share of what could have been had; how many of the accepted jobs did not end in time; what the 99th of
/// a hundred served jobs waited; and how long after the load fell nearly all were served again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct SimArgs {
    /// Loads, as multiples of what the workers can do; of a replay, of the rate that was recorded. From 0.01 to 100.
    /// [default: 0.7,1,2,4,10; of a replay: 1]
    #[arg(long = "load", value_name = "TIMES", value_delimiter = ',', value_parser = times)]
    loads: Vec<f64>,
    /// How service times are spread: exponential, lognormal (with a coefficient of variation of 2), bimodal (one in ten
    /// takes ten times as long) or heavy-tailed (Pareto 1.5).
    #[arg(long = "service", value_name = "SPREAD", value_delimiter = ',', default_value = "exponential,lognormal", value_parser = service)]
    services: Vec<Service>,
    /// How arrivals are spread: poisson, on-off (each for half a second on average) or bursts (of 16 on average).
    #[arg(long = "arrivals", value_name = "PATTERN", value_delimiter = ',', default_value = "poisson", value_parser = pattern)]
    patterns: Vec<Pattern>,
    /// Number of seeds; the figures are means.
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Virtual time in which jobs arrive.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive)]
    duration: Duration,
    /// The load after that, for five seconds, to measure the recovery. [default: 0.7]
    #[arg(long, value_name = "TIMES", value_parser = times, conflicts_with_all = ["slow", "lose", "replay"])]
    then: Option<f64>,
    /// Mean service time, from 1us on.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = mean)]
    mean: Duration,
    /// Deadline of the jobs.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive)]
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
    /// Add one tenant that alone sends so many times what the workers can do, and print the results of the others, which
    /// share --load.
    #[arg(long, value_name = "TIMES", value_parser = times)]
    flood: Option<f64>,
    /// Draw the criticality of each job from the four classes.
    #[arg(long)]
    classes: bool,
    /// What refused callers do, up to five attempts within their deadline: never retry; obey the retry time of the
    /// refusal; obey it with gRPC's retry throttling; or ignore it, with a back-off of their own.
    #[arg(long, value_name = "HOW", default_value = "never", value_parser = retry)]
    retry: Retry,
    /// Most jobs in the queue.
    #[arg(long, value_name = "JOBS", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    queue: u32,
    /// Factor by which jobs take longer in the second third of the time.
    #[arg(long, value_name = "TIMES", value_parser = times)]
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
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// One load without its seed, and its name.
struct Case {
    load: Load,
    /// The load without what floods it.
    times: f64,
    flood: Option<f64>,
    service: &'static str,
    arrivals: &'static str,
}

impl SimArgs {
    fn cases(&self, recording: Option<&Arc<Recording>>) -> Vec<Case> {
        let default: &[f64] = if recording.is_some() { &[1.0] } else { &[0.7, 1.0, 2.0, 4.0, 10.0] };
        let loads = if self.loads.is_empty() { default } else { &self.loads };
        if let Some(recording) = recording {
            let case = |times| {
                let load = self.load(Source::Recorded(Arc::clone(recording)), times);
                Case { load, times, flood: None, service: "recorded", arrivals: "recorded" }
            };
            return loads.iter().copied().map(case).collect();
        }
        let mut cases = Vec::new();
        for service in self.services.iter().copied() {
            for pattern in self.patterns.iter().copied() {
                for times in loads.iter().copied() {
                    let load = self.load(Source::Drawn { pattern, mean: self.mean, service }, times);
                    let (service, arrivals) = (service.name(), pattern.name());
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
            slow: self.slow.map(|what| Spell { from, until, what }),
            lost: self.lose.map(|what| Spell { from, until, what: usize::from(what.min(self.workers)) }),
            seed: 0,
        }
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
    args.check(cases.iter().map(|case| &case.load))?;
    if let Some(note) = recording.as_deref().and_then(|recording| passed_over(recording.passed_over())) {
        console.err.line(&note).await?;
    }
    if let Some(recording) = recording.as_deref().filter(|_| args.output.format == Format::Text) {
        let (jobs, measured) = recording.counts();
        let lasts = setting(Duration::from_millis(u64::try_from(recording.lasts().as_millis()).unwrap_or(u64::MAX)));
        console
            .out
            .text(&format!(
                "{jobs} jobs in {lasts}; {measured} of them completed, and lend the others their service times\n"
            ))
            .await?;
    }
    let mut table = Table::new(args.flood.is_some());
    for case in cases {
        let mut rows = Vec::new();
        for seed in 0..args.seeds {
            let outcome = sim::run(&Load { seed, ..case.load.clone() });
            let row = Row::new(&case, seed, &outcome);
            if args.output.format == Format::Json {
                console.out.text(&format!("{}\n", json::line(&row))).await?;
            }
            rows.push(row);
            // So that Ctrl-C is heard.
            tokio::task::yield_now().await;
        }
        table.add(&rows);
    }
    if args.output.format == Format::Text {
        console.out.text(&table.to_string()).await?;
    }
    Ok(Exit::Done)
}

/// The parts of a log that were left out, if any.
fn passed_over(PassedOver { lines, first, is_cut }: PassedOver) -> Option<String> {
    let cut = "its last line has no end";
    let others = first.map(|first| {
        let (lines, are) = (counted(lines, "line"), if lines == 1 { "is" } else { "are" });
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

fn service(text: &str) -> Result<Service, String> {
    choose(text, Service::ALL, Service::name)
}

fn pattern(text: &str) -> Result<Pattern, String> {
    choose(text, Pattern::ALL, Pattern::name)
}

fn retry(text: &str) -> Result<Retry, String> {
    choose(text, Retry::ALL, Retry::name)
}

fn choose<T: Copy, const N: usize>(text: &str, all: [T; N], name: fn(T) -> &'static str) -> Result<T, String> {
    let found = all.into_iter().find(|choice| name(*choice) == text);
    found.ok_or_else(|| format!("choose from {}", all.map(name).join(", ")))
}

fn positive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be more than zero".to_owned()),
        Ok(duration) if duration > MAX_TIME => Err("must be at most a day".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// Where jobs take less, a second is more of them than a run can have.
fn mean(text: &str) -> Result<Duration, String> {
    let mean = positive(text)?;
    if mean < Duration::from_micros(1) { Err("must be at least 1us".to_owned()) } else { Ok(mean) }
}

fn times(text: &str) -> Result<f64, String> {
    let times: f64 = text.parse().map_err(|_| "must be a number, such as 2 or 0.7".to_owned())?;
    if (0.01..=100.0).contains(&times) { Ok(times) } else { Err("must be from 0.01 to 100".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
