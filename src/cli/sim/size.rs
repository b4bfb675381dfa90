//! Bounds the work of a simulation before it starts.

use std::time::Duration;

use thiserror::Error;

use super::SimArgs;
use crate::{
    cli::output::{counted, setting},
    sim::{Load, Recording, Source},
};

/// Most jobs of all runs together, and of one, which keeps them all in memory: about 200 bytes each.
const MAX_JOBS: f64 = 50e6;
const MAX_JOBS_OF_A_RUN: f64 = 10e6;
/// Longest virtual time of one run: the tally keeps each tenth of a second.
const MAX_TIME: Duration = Duration::from_secs(8 * 24 * 3600);

/// Why a simulation is too large.
#[derive(Debug, Error)]
pub(in crate::cli) enum TooMuch {
    #[error("that would simulate {} jobs in {}; at most {} are simulated", count(*.jobs), counted(*.runs, "run"), count(MAX_JOBS))]
    InAll { jobs: f64, runs: usize, is_replay: bool },
    #[error("one run would simulate {} jobs; at most {} are simulated at a time", count(*.jobs), count(MAX_JOBS_OF_A_RUN))]
    AtATime { jobs: f64, is_replay: bool },
    #[error("one run would last {}; at most {} are simulated", setting(*.0), setting(MAX_TIME))]
    Long(Duration),
}

impl TooMuch {
    pub(in crate::cli) fn help(&self) -> &'static str {
        match self {
            Self::InAll { is_replay: true, .. } => "lower --seeds, or the number of loads",
            Self::AtATime { is_replay: true, .. } => "replay a part of the log",
            Self::InAll { .. } => "lower --duration, --load, --flood, --workers or --seeds, or raise --mean",
            Self::AtATime { .. } => "lower --duration, --load, --flood or --workers, or raise --mean",
            Self::Long(_) => "raise --load, or replay a part of the log",
        }
    }
}

impl SimArgs {
    /// Refuses simulations that would take too much time or memory.
    pub(super) fn check<'a>(&self, loads: impl Iterator<Item = &'a Load>) -> Result<(), TooMuch> {
        let runs_of_a_load = usize::try_from(self.seeds).unwrap_or(usize::MAX);
        let is_replay = self.replay.is_some();
        let (mut jobs, mut runs) = (0.0, 0);
        for load in loads {
            let at_a_time = jobs_of(load);
            if at_a_time > MAX_JOBS_OF_A_RUN {
                return Err(TooMuch::AtATime { jobs: at_a_time, is_replay });
            }
            if load.end() > MAX_TIME {
                return Err(TooMuch::Long(load.end()));
            }
            jobs += at_a_time * runs_of_a_load as f64;
            runs += runs_of_a_load;
        }
        if jobs > MAX_JOBS { Err(TooMuch::InAll { jobs, runs, is_replay }) } else { Ok(()) }
    }
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

/// In two or three digits.
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

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: SimArgs,
    }

    fn check(line: &str) -> Result<(), TooMuch> {
        let args = Line::try_parse_from(["sim"].into_iter().chain(line.split_whitespace())).unwrap().args;
        let cases = args.cases(None);
        args.check(cases.iter().map(|case| &case.load))
    }

    #[test]
    fn what_is_too_much_is_refused_with_how_much_it_is() {
        check("").expect("what is done without any flag");
        let of = |line: &str| {
            let refused = check(line).unwrap_err();
            (refused.to_string(), refused.help())
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
        let parse = |mean| Line::try_parse_from(["sim", "--mean", mean]);
        assert!(parse("999ns").unwrap_err().to_string().contains("at least 1us"));
        assert!(parse("1us").is_ok());
    }
}
