//! `waterwheel advise`: measures a server and advises sizes. The formulas are in `advise/formulas.rs`.

mod formulas;
mod text;

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use self::formulas::{Advice, Goals, advise, arrived};
use super::{
    call::{Call, CallArgs},
    connect::{Connection, ServerArgs},
    console::Console,
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs, duration, json},
};
use crate::proto::{Stats, StatsRequest};

const EXAMPLE: &str = "\
Example:
  waterwheel advise --over 1s";

/// Longest wait for a snapshot.
const PATIENCE: Duration = Duration::from_secs(5);

/// Advise sizes of pools and queues, by what a server measures.
///
/// It takes two snapshots and compares them: how many jobs came, and how long they ran. From these, Little's law gives
/// the busy workers and the queue length; each step is shown. Watch the server under its usual load, at its busiest
/// time.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct AdviseArgs {
    /// Advise on this pool only.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    /// How long to watch the server.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = watched)]
    over: Duration,
    /// Share of the time for which the workers should be busy, from 0.05 to 0.95; the rest is for bursts.
    #[arg(long, value_name = "SHARE", default_value = "0.7", value_parser = share)]
    busy: f64,
    /// Longest that a job should wait in the queue. [default: 20 mean run times, 100ms at the least]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    max_wait: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// The figures of the time that was watched, and the advice for each pool.
#[derive(Debug, Serialize)]
struct Report {
    watched_s: f64,
    busy_goal: f64,
    pools: Vec<Advice>,
    /// Pools in which no job ended.
    idle: Vec<Idle>,
}

/// A pool in which no job ended.
#[derive(Debug, Serialize)]
struct Idle {
    pool: String,
    /// Jobs that arrived.
    arrived: u64,
}

pub(super) async fn run(args: AdviseArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let patient = CallArgs { deadline: Some(PATIENCE), ..CallArgs::none() };
    let (call, connection) = Call::begin(&args.server.server, &args.server.access, patient.clone()).await?;
    let before = snapshot(&args, &call, &connection).await?;
    sleep(args.over).await;
    // Each snapshot has a deadline of its own.
    let (call, connection) = Call::begin(&args.server.server, &args.server.access, patient).await?;
    let after = snapshot(&args, &call, &connection).await?;
    let report = compare(&args, &before, &after)?;
    let shown = match args.output.format {
        Format::Text => text::report(&report),
        Format::Json => format!("{}\n", json::line(&report)),
    };
    console.out.text(&shown).await?;
    Ok(Exit::Done)
}

async fn snapshot(args: &AdviseArgs, call: &Call, connection: &Connection) -> Result<Stats, Failure> {
    let request = call.request(StatsRequest { pool: args.pool.clone() });
    let response = call.wait(connection.worker_pool().stats(request)).await?;
    let missing = || Failure::Incomplete { address: args.server.server.clone(), missing: "snapshot" };
    response.into_inner().stats.ok_or_else(missing)
}

fn compare(args: &AdviseArgs, before: &Stats, after: &Stats) -> Result<Report, Failure> {
    let restarted = || Failure::Restarted { address: args.server.server.clone() };
    let watched = duration(after.uptime.as_ref()).checked_sub(duration(before.uptime.as_ref()));
    let watched = watched.filter(|watched| !watched.is_zero()).ok_or_else(restarted)?;
    let goals = Goals { busy: args.busy, max_wait: args.max_wait };
    let earlier: BTreeMap<&str, _> = before.pools.iter().map(|pool| (pool.name.as_str(), pool)).collect();
    let mut report =
        Report { watched_s: watched.as_secs_f64(), busy_goal: args.busy, pools: Vec::new(), idle: Vec::new() };
    for pool in &after.pools {
        let before = earlier.get(pool.name.as_str()).ok_or_else(restarted)?;
        match advise(before, pool, watched, &goals) {
            Some(advice) => report.pools.push(advice),
            None => report.idle.push(Idle { pool: pool.name.clone(), arrived: arrived(before, pool) }),
        }
    }
    Ok(report)
}

fn watched(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(&time) {
        Ok(time)
    } else {
        Err("must be from 100ms to 1day".to_owned())
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "must be a number, such as 0.7".to_owned())?;
    if (0.05..=0.95).contains(&share) { Ok(share) } else { Err("must be from 0.05 to 0.95".to_owned()) }
}

#[cfg(test)]
mod tests;
