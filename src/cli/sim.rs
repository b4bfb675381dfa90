//! `waterwheel sim`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{
    console::Console,
    exit::Exit,
    failure::Failure,
    output::{
        Format, OutputArgs,
        table::{Align, table},
    },
};
use crate::{
    model::Criticality,
    sim::{self, Load, Outcome, PolicyName, Service},
};

const EXAMPLE: &str = "\
Example:
  waterwheel sim --load 2 --seeds 2 --duration 5s";

/// Longest virtual time of anything.
const MOST: Duration = Duration::from_secs(86_400);

/// Compare ways to accept jobs under load, on virtual time.
///
/// Runs the pool's own machine, and policies that others use, against the same seeded arrivals, and prints how much of
/// the workers' time went to jobs that ended in time.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct SimArgs {
    /// Policies to compare.
    #[arg(long = "policy", value_name = "POLICY", value_delimiter = ',', default_value = "ours,half-budget,codel-lifo,fifo-expiry,fifo", value_parser = policy)]
    policies: Vec<PolicyName>,
    /// Loads, as multiples of what the workers can do; from 0.01 to 100.
    #[arg(long = "load", value_name = "TIMES", value_delimiter = ',', default_value = "0.7,1,2,4,10", value_parser = times)]
    loads: Vec<f64>,
    /// How service times are spread.
    #[arg(long = "service", value_name = "SPREAD", value_delimiter = ',', default_value = "exponential,lognormal", value_parser = service)]
    services: Vec<Service>,
    /// Number of seeds; the figures are means.
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Virtual time in which jobs arrive.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive)]
    duration: Duration,
    /// Mean service time.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = positive)]
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
    /// Draw the criticality of each job from the four classes.
    #[arg(long)]
    classes: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl SimArgs {
    pub(super) fn format(&self) -> Format {
        self.output.output
    }

    fn load(&self, times: f64, service: Service, seed: u64) -> Load {
        let class = (!self.classes).then_some(Criticality::Critical);
        Load {
            workers: usize::from(self.workers),
            mean: self.mean,
            service,
            phases: vec![(self.duration, times)],
            deadline: self.deadline,
            spread: self.spread,
            tenants: vec![(1.0, class); usize::from(self.tenants)],
            slow: None,
            seed,
        }
    }
}

/// One row, and one line of JSON.
#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    load: f64,
    service: &'static str,
    seed: u64,
    useful_share: f64,
    admitted_then_missed: f64,
    arrived: u64,
    admitted: u64,
    wait_p99_ms: f64,
    served_by_class: [Option<f64>; 4],
}

pub(super) async fn run(args: SimArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let heads = ["service", "load", "policy", "useful", "missed", "wait p99"];
    let mut rows_shown = vec![heads.map(str::to_owned).to_vec()];
    for service in &args.services {
        for times in &args.loads {
            for policy in &args.policies {
                let rows: Vec<Row> = (0..args.seeds)
                    .map(|seed| {
                        row(*policy, *service, *times, seed, &sim::run(*policy, &args.load(*times, *service, seed)))
                    })
                    .collect();
                if args.format() == Format::Json {
                    for row in &rows {
                        let line = serde_json::to_string(row).expect("plain figures");
                        console.out.text(&format!("{line}\n")).await?;
                    }
                } else {
                    rows_shown.push(means(&rows));
                }
            }
        }
    }
    if args.format() == Format::Text {
        let columns = [Align::Left, Align::Right, Align::Left, Align::Right, Align::Right, Align::Right];
        console.out.text(&(table(&columns, &rows_shown).join("\n") + "\n")).await?;
    }
    Ok(Exit::Done)
}

fn row(policy: PolicyName, service: Service, load: f64, seed: u64, outcome: &Outcome) -> Row {
    let share = |(arrived, served): (u64, u64)| (arrived > 0).then(|| served as f64 / arrived as f64);
    let tenants = 0..outcome.tally.tenants.len();
    Row {
        policy: policy.name(),
        load,
        service: service.name(),
        seed,
        useful_share: outcome.useful_share,
        admitted_then_missed: outcome.admitted_then_missed,
        arrived: outcome.tally.arrived,
        admitted: outcome.tally.admitted,
        wait_p99_ms: tenants.map(|tenant| outcome.wait(tenant, 0.99)).fold(0.0, f64::max),
        served_by_class: outcome.tally.classes.map(share),
    }
}

fn means(rows: &[Row]) -> Vec<String> {
    let mean = |figure: fn(&Row) -> f64| rows.iter().map(figure).sum::<f64>() / rows.len() as f64;
    vec![
        rows[0].service.to_owned(),
        format!("{}x", rows[0].load),
        rows[0].policy.to_owned(),
        format!("{:.1} %", mean(|row| row.useful_share) * 100.0),
        format!("{:.1} %", mean(|row| row.admitted_then_missed) * 100.0),
        format!("{:.0}ms", mean(|row| row.wait_p99_ms)),
    ]
}

fn policy(text: &str) -> Result<PolicyName, String> {
    choose(text, PolicyName::ALL, PolicyName::name)
}

fn service(text: &str) -> Result<Service, String> {
    choose(text, Service::ALL, Service::name)
}

fn choose<T: Copy, const N: usize>(text: &str, all: [T; N], name: fn(T) -> &'static str) -> Result<T, String> {
    let found = all.into_iter().find(|choice| name(*choice) == text);
    found.ok_or_else(|| format!("choose from {}", all.map(name).join(", ")))
}

fn positive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be more than zero".to_owned()),
        Ok(duration) if duration > MOST => Err("must be at most a day".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

fn times(text: &str) -> Result<f64, String> {
    let times: f64 = text.parse().map_err(|_| "send a number, such as 2 or 0.7".to_owned())?;
    if (0.01..=100.0).contains(&times) { Ok(times) } else { Err("out of range: from 0.01 to 100".to_owned()) }
}
