//! `waterwheel bench`: a closed-loop load over real gRPC.

use std::{fmt, io, thread, time::Duration};

use clap::{Args, Subcommand, ValueEnum, builder::RangedU64ValueParser};
use serde::Serialize;
use tokio::{
    net::lookup_host,
    signal::unix::{SignalKind, signal},
};

use self::{
    load::Plan,
    report::{LoadReport, Machine},
};
use super::{
    access::AccessArgs,
    connect::Address,
    console::Console,
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs, json},
};
use crate::proto::Job;

mod call;
mod child;
mod client;
mod failure;
mod load;
mod overload;
mod process;
mod report;
mod submit;
mod submit_many;
mod tally;

pub(super) use failure::BenchError;

/// The default of `--payload`, in bytes.
const PAYLOAD: &str = "64";
/// The largest payload, in bytes, that `--payload` takes.
const MAX_PAYLOAD: u64 = 64 << 20;

/// Load a server with calls, and measure what they take.
///
/// The load is a closed loop: each connection keeps a fixed number of calls in flight and sends the next when a reply
/// comes.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:
  waterwheel bench echo --duration 5s"
)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// Kind of the jobs.
    #[arg(default_value = "echo")]
    kind: String,
    /// The server to load, as HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_SERVER", default_value = "127.0.0.1:7070", value_parser = network_address)]
    server: Address,
    /// Process of this machine whose CPU time is the server's.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Method to call.
    #[arg(long, value_enum, default_value_t = Rpc::Submit)]
    rpc: Rpc,
    /// Number of connections.
    #[arg(long, value_name = "N", default_value = "8", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    connections: usize,
    /// Calls in flight on each connection; for submit-many, jobs in flight on the one call of each connection.
    #[arg(long, value_name = "N", default_value = "32", value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    in_flight: usize,
    /// Size of each payload in bytes.
    #[arg(long, value_name = "BYTES", default_value = PAYLOAD, value_parser = RangedU64ValueParser::<usize>::new().range(0..=MAX_PAYLOAD))]
    payload: usize,
    /// How long to measure.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive)]
    duration: Duration,
    /// Load before the measurement.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    warm_up: Duration,
    /// Deadline of each call. A submit-many call lasts as long as the load; its deadline is this much later.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = positive)]
    deadline: Duration,
    /// Threads of the load generator. [default: one for every two cores]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    client_threads: Option<usize>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A measurement of its own.
#[derive(Debug, Clone, Subcommand)]
enum BenchCommand {
    Overload(overload::OverloadArgs),
}

/// A method that takes jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rpc {
    /// One call per job.
    Submit,
    /// One call per connection.
    SubmitMany,
}

/// Runs the load and prints its report.
///
/// SIGTERM and SIGHUP end it as SIGINT does. A server that it started ends with the future.
///
/// # Errors
/// See [`BenchError`]. Failed calls of a load are no error; its report counts them.
pub(super) async fn run(args: BenchArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    // All of them before the first server starts: an end without them would leave it behind.
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        ended = measure(&args, console) => ended,
        _ = terminate.recv() => Ok(Exit::Interrupted),
        _ = hang_up.recv() => Ok(Exit::Interrupted),
        _ = interrupt.recv() => Ok(Exit::Interrupted),
    }
}

async fn measure(args: &BenchArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let machine = Machine::this();
    if let Some(BenchCommand::Overload(args)) = &args.command {
        overload::run(args, machine, console).await?;
        return Ok(Exit::Done);
    }
    let plan = args.plan().await?;
    let measurement = load::run(&plan).await?;
    let report = LoadReport::new(machine, &plan, &measurement);
    console.out.text(&shown(args.format(), &report)).await?;
    Ok(if report.has_replies() { Exit::Done } else { Exit::Failed })
}

fn shown(format: Format, report: &(impl Serialize + fmt::Display)) -> String {
    match format {
        Format::Text => report.to_string(),
        Format::Json => format!("{}\n", json::line(report)),
    }
}

impl Rpc {
    /// The name of the method in the contract.
    fn method(self) -> &'static str {
        match self {
            Self::Submit => "Submit",
            Self::SubmitMany => "SubmitMany",
        }
    }
}

impl BenchArgs {
    /// How to print.
    pub(super) fn format(&self) -> Format {
        match &self.command {
            Some(BenchCommand::Overload(args)) => args.format(),
            None => self.output.output,
        }
    }

    async fn plan(&self) -> Result<Plan, BenchError> {
        let unresolved = |cause| BenchError::Resolve { server: self.server.clone(), cause };
        let (Address::Tcp(authority) | Address::Tls(authority)) = &self.server else {
            return Err(unresolved(io::ErrorKind::Unsupported.into()));
        };
        let server = lookup_host(authority.as_str()).await.map_err(unresolved)?.next();
        let server = server.ok_or_else(|| unresolved(io::ErrorKind::NotFound.into()))?;
        let (host, access) = (authority.host().to_owned(), self.access.load(&self.server)?);
        Ok(Plan {
            server,
            host,
            access,
            server_pid: self.server_pid,
            rpc: self.rpc,
            job: Job { kind: self.kind.clone(), payload: vec![b'w'; self.payload].into(), ..Job::default() },
            connections: self.connections,
            in_flight: self.in_flight,
            client_threads: self.client_threads.unwrap_or_else(half_of_the_cores),
            deadline: self.deadline,
            warm_up: self.warm_up,
            window: self.duration,
        })
    }
}

/// A thread that is busy all the time keeps up with servers on as many cores as its own.
fn half_of_the_cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

fn network_address(text: &str) -> Result<Address, String> {
    match text.parse() {
        Ok(address @ (Address::Tcp(_) | Address::Tls(_))) => Ok(address),
        Ok(Address::Unix(_)) => Err("bench loads TCP listeners only; pass HOST:PORT".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write it as 500ms, 10s or 2m")),
    }
}
