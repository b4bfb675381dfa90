//! A closed loop over raw HTTP/2, in a process of its own. Raw HTTP/2 is cheaper than the servers under load.

mod call;
mod client;
mod load;
mod submit;

use std::{net::SocketAddr, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use waterwheel::proto::Job;

use self::load::Plan;
use crate::Failure;

/// Arguments of a load.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    kind: String,
    #[arg(long)]
    server: SocketAddr,
    #[arg(long)]
    server_pid: u32,
    #[arg(long, value_enum)]
    rpc: Rpc,
    #[arg(long)]
    connections: usize,
    #[arg(long)]
    in_flight: usize,
    #[arg(long)]
    payload: usize,
    #[arg(long, value_parser = humantime::parse_duration)]
    duration: Duration,
    #[arg(long, value_parser = humantime::parse_duration)]
    warm_up: Duration,
    #[arg(long, value_parser = humantime::parse_duration)]
    deadline: Duration,
}

/// An RPC that submits jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rpc {
    Submit,
    SubmitMany,
}

impl Rpc {
    fn method(self) -> &'static str {
        match self {
            Self::Submit => "Submit",
            Self::SubmitMany => "SubmitMany",
        }
    }
}

/// Runs the load, and prints the measurements of its window as JSON.
pub(crate) async fn run(args: LoadArgs) -> Result<(), Failure> {
    let measured = load::run(&Plan {
        server: args.server,
        server_pid: args.server_pid,
        rpc: args.rpc,
        job: Job { kind: args.kind, payload: vec![b'w'; args.payload].into(), ..Job::default() },
        connections: args.connections,
        in_flight: args.in_flight,
        // One client thread can load a server that uses one core.
        client_threads: std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
        deadline: args.deadline,
        warm_up: args.warm_up,
        window: args.duration,
    })
    .await?;
    let at = |quantile: f64| measured.totals.latencies.value_at_quantile(quantile) as f64 / 1e3;
    let errors = measured.totals.errors.iter().map(|(reason, count)| (reason.to_string(), json!(count)));
    let report = json!({
        "throughput_per_s": measured.throughput(),
        "latency_us": { "p50": at(0.5), "p99": at(0.99) },
        "errors": errors.collect::<serde_json::Map<String, Value>>(),
        "unanswered": measured.totals.unanswered,
        "server_cpu_us_per_request": measured.server_cpu_us(),
        "write_syscalls_per_reply": measured.write_syscalls_per_reply(),
    });
    println!("{report}");
    Ok(())
}
