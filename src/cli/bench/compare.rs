//! The paired comparison: short bursts on two servers in turn, so that what disturbs the machine disturbs both.

use std::{io, path::PathBuf, time::Duration};

use super::{
    BenchError, Rpc,
    child::{Flavour, Server},
    load::{self, Measurement, Plan},
};
use crate::cli::{console::Console, failure::Failure};

/// Takes back what the line of a terminal shows.
const CLEAR_LINE: &str = "\r\x1b[K";

/// What to compare and how often.
#[derive(Debug, Clone)]
pub(super) struct Comparison {
    /// The load of every burst; server, method and window are set for each.
    pub(super) plan: Plan,
    /// Rounds that count.
    pub(super) rounds: usize,
    /// The measured part of each burst.
    pub(super) burst: Duration,
    /// The executable of the bare echo.
    pub(super) bare_executable: PathBuf,
    /// The executable of the subject.
    pub(super) executable: PathBuf,
    /// The server that is compared with the bare echo. [`Flavour::Bare`] makes the control: between two bare echoes
    /// of one build the ratios are one but for noise.
    pub(super) subject: Flavour,
}

/// One burst on each server, close in time.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// `Submit` on the bare echo.
    pub(super) bare: Measurement,
    /// `Submit` on the subject.
    pub(super) submit: Measurement,
    /// `SubmitMany` on the subject.
    pub(super) submit_many: Measurement,
}

/// Minimum, quartiles and maximum.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Spread {
    /// The least.
    pub(super) min: f64,
    /// A quarter is less.
    pub(super) lower_quartile: f64,
    /// Half are less.
    pub(super) median: f64,
    /// Three quarters are less.
    pub(super) upper_quartile: f64,
    /// The greatest.
    pub(super) max: f64,
}

/// Starts both servers, runs the rounds, and ends the servers.
///
/// # Errors
/// A server that does not start, a load that cannot run, or any failed call: figures of bursts with failures say
/// nothing.
pub(super) async fn run(comparison: &Comparison, console: &mut Console<'_>) -> Result<Vec<Round>, Failure> {
    let bare = Server::start(Flavour::Bare, &comparison.bare_executable).await?;
    let subject = Server::start(comparison.subject, &comparison.executable).await?;
    let mut rounds = Vec::with_capacity(comparison.rounds);
    // The round before the first warms both servers up.
    for number in 0..=comparison.rounds {
        show_progress(console, number, comparison.rounds).await?;
        let round = if number % 2 == 0 {
            let bare = burst(comparison, &bare, Rpc::Submit).await?;
            let submit = burst(comparison, &subject, Rpc::Submit).await?;
            let submit_many = burst(comparison, &subject, Rpc::SubmitMany).await?;
            Round { bare, submit, submit_many }
        } else {
            let submit_many = burst(comparison, &subject, Rpc::SubmitMany).await?;
            let submit = burst(comparison, &subject, Rpc::Submit).await?;
            let bare = burst(comparison, &bare, Rpc::Submit).await?;
            Round { bare, submit, submit_many }
        };
        if number > 0 {
            rounds.push(round);
        }
    }
    if console.err.is_terminal() {
        console.err.control(CLEAR_LINE).await?;
    }
    Ok(rounds)
}

async fn show_progress(console: &mut Console<'_>, number: usize, of: usize) -> io::Result<()> {
    if !console.err.is_terminal() {
        return Ok(());
    }
    console.err.control(CLEAR_LINE).await?;
    let what = if number == 0 { "warm-up".to_owned() } else { format!("round {number} of {of}") };
    console.err.text(&what).await
}

async fn burst(comparison: &Comparison, server: &Server, rpc: Rpc) -> Result<Measurement, BenchError> {
    let plan = Plan {
        server: server.address,
        server_pid: Some(server.pid),
        rpc,
        warm_up: comparison.burst / 5,
        window: comparison.burst,
        ..comparison.plan.clone()
    };
    let measurement = load::run(&plan).await?;
    match measurement.totals.errors.iter().next() {
        Some((reason, count)) => Err(BenchError::Failures { rpc, count: *count, reason: reason.to_string() }),
        None if measurement.totals.unanswered > 0 => {
            Err(BenchError::Failures { rpc, count: measurement.totals.unanswered, reason: "UNANSWERED".into() })
        }
        None if measurement.replies == 0 => Err(BenchError::NoReply { rpc }),
        None => Ok(measurement),
    }
}

impl Round {
    /// The subject's CPU time per request over the bare echo's.
    pub(super) fn cpu_ratio(&self) -> Option<f64> {
        Some(self.submit.server_cpu_us()? / self.bare.server_cpu_us()?)
    }

    /// The subject's throughput over the bare echo's.
    pub(super) fn throughput_ratio(&self) -> Option<f64> {
        Some(self.submit.throughput() / self.bare.throughput())
    }

    /// Jobs per CPU second of `SubmitMany` over those of `Submit`, both on the subject.
    pub(super) fn jobs_per_cpu_second_ratio(&self) -> Option<f64> {
        Some(self.submit.server_cpu_us()? / self.submit_many.server_cpu_us()?)
    }
}

impl Spread {
    /// The spread of `values`, none where there are none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let at = |share: f64| quantile(&values, share);
        Some(Self { min, lower_quartile: at(0.25), median: at(0.5), upper_quartile: at(0.75), max })
    }
}

/// Interpolates between the two values around `share` of the sorted `values`.
fn quantile(values: &[f64], share: f64) -> f64 {
    let position = share * (values.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    values[below] + (values[above] - values[below]) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_interpolates_between_values() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        let expected = Spread { min: 1.0, lower_quartile: 1.75, median: 2.5, upper_quartile: 3.25, max: 4.0 };
        assert_eq!(spread, expected);
        assert_eq!(Spread::of([7.0]).unwrap().upper_quartile, 7.0);
        assert_eq!(Spread::of([]), None);
    }
}
