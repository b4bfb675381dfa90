//! `waterwheel bench`: a closed-loop load over real gRPC, and the paired comparison with a bare tonic echo.

use std::{
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};
use serde::Serialize;
use tokio::{
    net::lookup_host,
    signal::unix::{SignalKind, signal},
};

use self::{
    child::{Flavour, StartError},
    compare::Comparison,
    load::{LoadError, Plan},
    report::{ComparisonReport, LoadReport, Machine},
};
use crate::proto::Job;

pub mod bare;
mod call;
mod child;
mod client;
mod compare;
mod load;
mod process;
mod report;
mod submit;
mod submit_many;
mod tally;

/// The default of `--payload`, in bytes.
const PAYLOAD: &str = "64";
/// The largest payload, in bytes, that `--payload` takes.
const MAX_PAYLOAD: u64 = 64 << 20;

/// Loads a server with calls and prints throughput, latencies, errors and CPU time per request.
///
/// The load is a closed loop: each connection keeps a fixed number of calls in flight and sends the next when a reply
/// comes. With --compare-bare it needs no server: it starts waterwheel and a bare tonic echo, loads them in short
/// bursts in turn, and prints what waterwheel costs as a ratio of the bare echo.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:
  waterwheel bench echo --duration 5s")]
pub struct BenchArgs {
    /// Kind of the jobs.
    #[arg(default_value = "echo")]
    kind: String,
    /// The server to load, as HOST:PORT; without TLS.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_SERVER", default_value = "127.0.0.1:7070")]
    server: String,
    /// Process whose CPU time is the server's. Without it, the process that listens on a loopback ADDR.
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
    /// Deadline of each call. A submit-many call lasts as long as the load and has none.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = positive)]
    deadline: Duration,
    /// Threads of the load generator.
    #[arg(long, value_name = "N", default_value = "2", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    client_threads: usize,
    /// Start waterwheel and a bare tonic echo, and compare them.
    #[arg(long, conflicts_with_all = ["kind", "server", "server_pid", "rpc", "duration", "warm_up"])]
    compare_bare: bool,
    /// Compare two bare tonic echoes: the ratios show the noise of this machine.
    #[arg(long, hide = true, requires = "compare_bare")]
    compare_control: bool,
    /// Rounds of the comparison. In each, every server gets a burst.
    #[arg(long, value_name = "N", default_value = "20", requires = "compare_bare", value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    rounds: usize,
    /// Measured time of each burst of the comparison; a fifth more goes before it.
    #[arg(long, value_name = "TIME", default_value = "500ms", requires = "compare_bare", value_parser = positive)]
    burst: Duration,
    /// Another build of waterwheel to serve the bare echo, such as one with cargo's default release profile.
    #[arg(long, value_name = "PATH", requires = "compare_bare")]
    bare_executable: Option<PathBuf>,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Serves a bare tonic echo until standard input ends.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:
  waterwheel bare-echo --listen 127.0.0.1:7080")]
pub struct BareEchoArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: std::net::SocketAddr,
}

/// A method that takes jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rpc {
    /// One call per job.
    Submit,
    /// One call per connection.
    SubmitMany,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server's name means nothing.
    #[error("cannot resolve {server}: {cause}; pass HOST:PORT")]
    Resolve {
        /// What was given.
        server: String,
        /// What the system says.
        cause: io::Error,
    },
    /// The load did not run.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A server of the comparison did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Calls failed in the comparison.
    #[error("{count} calls of {} failed with {reason}, so the comparison says nothing; try fewer --in-flight", rpc.method())]
    Failures {
        /// The method.
        rpc: Rpc,
        /// How many.
        count: u64,
        /// The most common reason.
        reason: String,
    },
    /// A burst of the comparison had no reply.
    #[error("no reply to {} within a burst; try a longer --burst", rpc.method())]
    NoReply {
        /// The method.
        rpc: Rpc,
    },
    /// A signal ended the run.
    #[error("interrupted; nothing was measured")]
    Interrupted,
    /// This program's file, or standard output.
    #[error("cannot find this program or write the report: {0}")]
    Io(#[from] io::Error),
}

/// Runs the load or the comparison and writes its report to `out`.
///
/// SIGINT and SIGTERM end it early; the servers that it started end with it, as they do when the future is dropped.
///
/// # Errors
/// See [`BenchError`]. Failed calls of a load are no error; its report counts them.
pub async fn run(args: BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        ended = measure(args, out) => ended,
        _ = interrupt.recv() => Err(BenchError::Interrupted),
        _ = terminate.recv() => Err(BenchError::Interrupted),
    }
}

/// Serves the bare echo; see [`bare::serve`]. It makes a runtime of its own, so it must not be called on one.
///
/// # Errors
/// Where the address cannot be bound or the runtime not be made.
pub fn run_bare_echo(args: &BareEchoArgs) -> io::Result<()> {
    bare::serve(args.listen)
}

async fn measure(args: BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let machine = Machine::this();
    if args.compare_bare {
        let comparison = args.comparison()?;
        let rounds = compare::run(&comparison).await?;
        let report = ComparisonReport::new(machine, &comparison, &rounds);
        match args.output {
            Output::Text => report.write(out)?,
            Output::Json => json(out, &report)?,
        }
    } else {
        let plan = args.plan().await?;
        let measurement = load::run(&plan).await?;
        let report = LoadReport::new(machine, &plan, &measurement);
        match args.output {
            Output::Text => report.write(out)?,
            Output::Json => json(out, &report)?,
        }
    }
    Ok(())
}

fn json(out: &mut dyn Write, report: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
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
    async fn plan(&self) -> Result<Plan, BenchError> {
        let unresolved = |cause| BenchError::Resolve { server: self.server.clone(), cause };
        let host = self.server.strip_prefix("http://").unwrap_or(&self.server);
        let server = lookup_host(host).await.map_err(unresolved)?.next();
        let server = server.ok_or_else(|| unresolved(io::ErrorKind::NotFound.into()))?;
        let server_pid = self.server_pid.or_else(|| process::listening_on(server));
        Ok(Plan { server, server_pid, ..self.load() })
    }

    fn comparison(&self) -> Result<Comparison, BenchError> {
        let executable = std::env::current_exe()?;
        Ok(Comparison {
            plan: self.load(),
            rounds: self.rounds,
            burst: self.burst,
            bare_executable: self.bare_executable.clone().unwrap_or_else(|| executable.clone()),
            executable,
            subject: if self.compare_control { Flavour::Bare } else { Flavour::Waterwheel },
        })
    }

    /// The load without its server.
    fn load(&self) -> Plan {
        Plan {
            server: ([127, 0, 0, 1], 0).into(),
            server_pid: None,
            rpc: self.rpc,
            job: Job { kind: self.kind.clone(), payload: vec![b'w'; self.payload].into(), ..Job::default() },
            connections: self.connections,
            in_flight: self.in_flight,
            client_threads: self.client_threads,
            deadline: self.deadline,
            warm_up: self.warm_up,
            window: self.duration,
        }
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write it as 500ms, 10s or 2m")),
    }
}
