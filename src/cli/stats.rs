//! `waterwheel stats`.

mod runners;
mod screen;
mod text;
mod watch;

use std::{io, time::Duration};

use clap::Args;

use super::{
    call::{Call, CallArgs},
    connect::{Address, ServerArgs},
    console::Console,
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs, json},
};
use crate::proto::{Stats, StatsRequest, WatchStatsRequest};

const EXAMPLE: &str = "\
Example:
  waterwheel stats --pool cpu";

/// Longest wait for a snapshot.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show the state of the pools: queue, jobs, kinds and workers.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct StatsArgs {
    /// Show this pool only.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    /// Show it again at each interval, until Ctrl-C. On a terminal, it fills the screen until q, with rates, the oldest
    /// jobs and the tenants that ask most.
    #[arg(long)]
    watch: bool,
    /// Time between two snapshots, from 100ms to 60s.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1s",
        requires = "watch",
        value_parser = interval
    )]
    interval: Duration,
    /// Address of the operators' listener, which has the jobs and tenants for --watch on a terminal.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_OPS", default_value = "127.0.0.1:7071")]
    ops: Address,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(super) async fn run(args: StatsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    if args.watch { watch(args, console).await } else { once(args, console).await }
}

async fn once(args: StatsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let format = args.output.format;
    let address = &args.server.server;
    let patient = CallArgs { deadline: Some(PATIENCE), ..CallArgs::none() };
    let (call, connection) = Call::begin(address, &args.server.access, patient).await?;
    let request = call.request(StatsRequest { pool: args.pool });
    let response = call.wait(connection.worker_pool().stats(request)).await?;
    let stats = response
        .into_inner()
        .stats
        .ok_or_else(|| Failure::Incomplete { address: address.clone(), missing: "snapshot" })?;
    console.out.text(&shown(&stats, format)?).await?;
    Ok(Exit::Done)
}

async fn watch(args: StatsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let format = args.output.format;
    let (call, connection) = Call::begin(&args.server.server, &args.server.access, CallArgs::none()).await?;
    let interval_ms = u32::try_from(args.interval.as_millis()).unwrap_or(u32::MAX);
    let request = call.request(WatchStatsRequest { pool: args.pool.clone(), interval_ms });
    let watching = connection.worker_pool().watch_stats(request).await;
    let mut snapshots = call.wait(async { watching }).await?.into_inner();
    if console.out.is_terminal() && format == Format::Text {
        return watch::watch(&args, &call, snapshots).await;
    }
    let mut frames = 0u64;
    while let Some(response) = call.wait(snapshots.message()).await? {
        let Some(stats) = response.stats else {
            continue;
        };
        if frames > 0 && format == Format::Text {
            console.out.text("\n").await?;
        }
        console.out.text(&shown(&stats, format)?).await?;
        frames += 1;
    }
    Ok(Exit::Done)
}

fn shown(stats: &Stats, format: Format) -> io::Result<String> {
    Ok(match format {
        Format::Text => text::snapshot(stats),
        Format::Json => format!("{}\n", json::message(stats)?),
    })
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) {
        Ok(interval)
    } else {
        Err("must be from 100ms to 60s".to_owned())
    }
}

#[cfg(test)]
mod tests;
