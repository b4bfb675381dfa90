//! An open loop over real gRPC, with loads below and far above the capacity of a server.
//!
//! `cargo bench --bench overload` starts a server and measures its capacity in a closed loop. Then jobs arrive at
//! random times that do not depend on earlier answers, and latencies count from those times. So a server that stalls
//! cannot hide that by delaying its load (coordinated omission).

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a bench is its own composition root: its tasks end with the process, and it prints for people"
)]

mod arrivals;
mod calls;
mod child;
#[path = "../compare/process.rs"]
mod process;
mod report;

use std::{error::Error, fs, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use self::{
    arrivals::{Load, Retry},
    calls::{Calls, Tally},
    child::Server,
    process::Usage,
    report::{Capacity, Report, Step},
};

type Failure = Box<dyn Error + Send + Sync>;

/// Time before each measured window, at the same load.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time between two samples of the server's memory.
const MEMORY_SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Deadline of the jobs that measure the capacity.
const PATIENT: Duration = Duration::from_secs(60);

/// Loads a server of its own with up to ten times its capacity, and prints the useful part of its workers' time.
///
/// It measures the capacity first, in a closed loop. Then jobs arrive in an open loop, at times that are drawn in
/// advance. Latencies count from those times, so a slow server does not reduce its own load. Useful is the worker time
/// of jobs that were answered by their deadline, divided by the lesser of requested and total worker time. Both count
/// only within the measured window.
#[derive(Debug, Clone, Parser)]
pub(crate) struct OverloadArgs {
    /// What the jobs do.
    #[arg(long, value_enum, default_value_t = Work::Sleep)]
    work: Work,
    /// Loads, as multiples of the measured capacity.
    #[arg(long = "load", value_name = "TIMES", value_delimiter = ',', default_value = "0.7,1,1.5,2,4,10", value_parser = times)]
    loads: Vec<f64>,
    /// How long to measure each load, and the capacity.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive)]
    duration: Duration,
    /// Deadline of the jobs.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive)]
    deadline: Duration,
    /// Workers of the pool. [default: 8 for sleep, 1 for gzip]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Mean service time of sleep, which is exponential.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = positive)]
    mean: Duration,
    /// Size of the payload of gzip in bytes.
    #[arg(long, value_name = "BYTES", default_value = "262144", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    payload: u32,
    /// What refused callers do, within their deadline and up to five attempts: never retry; obey the retry delay of the
    /// server; or ignore it and retry with their own back-off.
    #[arg(long, value_name = "HOW", default_value = "never", value_parser = arrivals::read_retry)]
    retry: Retry,
    /// Draw the criticality of each job from all classes but CRITICAL_PLUS, which needs a rule. CRITICAL is drawn
    /// instead.
    #[arg(long)]
    classes: bool,
    /// Number of connections.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Seed of the arrivals and service times.
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// The work of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// Sleeps without using CPU, so server and load generator do not compete for it.
    Sleep,
    /// Compresses, which uses a core for each worker. The network and the load generator need the remaining cores.
    Gzip,
}

impl Work {
    /// Pool and kind of the built-in configuration.
    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Sleep => ("io", "sleep"),
            Self::Gzip => ("cpu", "gzip"),
        }
    }
}

impl OverloadArgs {
    fn workers(&self) -> u16 {
        self.workers.unwrap_or(match self.work {
            Work::Sleep => 8,
            Work::Gzip => 1,
        })
    }

    /// Arrivals at `times` times `rate` jobs per second, for the warm-up and the window.
    fn arrivals(&self, times: f64, rate: f64) -> Load {
        Load {
            per_second: times * rate,
            lasts: WARM_UP + self.duration,
            deadline: self.deadline,
            classes: self.classes,
            retry: self.retry,
            seed: self.seed,
        }
    }
}

fn main() -> ExitCode {
    let args = OverloadArgs::parse();
    let done = tokio::runtime::Runtime::new().map_err(Failure::from).and_then(|runtime| runtime.block_on(run(&args)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overload: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a server, measures its capacity and each load, and ends it.
async fn run(args: &OverloadArgs) -> Result<(), Failure> {
    let server = start(args).await?;
    let calls = Calls::connect(server.address, args).await?;
    let capacity = measure_capacity(args, &calls).await?;
    let mut steps = Vec::new();
    for times in &args.loads {
        steps.push(step(args, &server, &calls, &capacity, *times).await?);
    }
    let report = Report::new(args, capacity, steps);
    match args.output {
        Output::Text => print!("{report}"),
        Output::Json => println!("{}", serde_json::to_string(&report)?),
    }
    Ok(())
}

async fn start(args: &OverloadArgs) -> Result<Server, Failure> {
    let (pool, _) = args.work.place();
    let keys = [
        "store.memory=true".to_owned(),
        format!("pool.{pool}.workers={}", args.workers()),
        format!("pool.{pool}.queue.jobs=1024"),
        format!("pool.{pool}.when_full=reject"),
    ];
    let dev = ["dev", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"].map(str::to_owned);
    let flags = keys.into_iter().flat_map(|key| ["--set".to_owned(), key]);
    Server::start(&dev.into_iter().chain(flags).collect::<Vec<_>>()).await
}

/// A closed loop with twice as many calls as workers keeps all workers busy.
async fn measure_capacity(args: &OverloadArgs, calls: &Calls) -> Result<Capacity, Failure> {
    let in_flight = 2 * usize::from(args.workers());
    let tally = calls.closed(in_flight, PATIENT, WARM_UP, args.duration).await;
    let seconds = args.duration.as_secs_f64();
    let (jobs, worked) = tally.completed();
    if jobs == 0 {
        let reason = tally.refusals().into_keys().next().unwrap_or_else(|| "no job ended".to_owned());
        return Err(format!("no job ended while the capacity was measured: {reason}; pass a longer --duration").into());
    }
    Ok(Capacity {
        jobs_per_s: jobs as f64 / seconds,
        busy_workers: worked.as_secs_f64() / seconds,
        mean_run_ms: worked.as_secs_f64() * 1e3 / jobs as f64,
    })
}

async fn step(
    args: &OverloadArgs,
    server: &Server,
    calls: &Calls,
    capacity: &Capacity,
    times: f64,
) -> Result<Step, Failure> {
    let load = args.arrivals(times, capacity.jobs_per_s);
    let read = Usage::of;
    let mine = std::process::id();
    let begin = Instant::now();
    let before = (read(server.pid)?, read(mine)?);
    let watch = async {
        let mut most = 0;
        while begin.elapsed() < load.lasts {
            most = most.max(resident_bytes(server.pid).unwrap_or_default());
            sleep(MEMORY_SAMPLE_EVERY).await;
        }
        most
    };
    let (tally, memory_bytes): (Tally, u64) = futures_util::future::join(calls.open(&load, WARM_UP), watch).await;
    let elapsed = begin.elapsed().as_secs_f64();
    let after = (read(server.pid)?, read(mine)?);
    let cores = |after: &Usage, before: &Usage| after.since(before).cpu.as_secs_f64() / elapsed;
    let (server_cores, client_cores) = (cores(&after.0, &before.0), cores(&after.1, &before.1));
    Ok(Step::new(args, capacity, times, &tally, memory_bytes, [server_cores, client_cores]))
}

fn times(text: &str) -> Result<f64, String> {
    let times: f64 = text.parse().map_err(|_| "send a number, such as 2 or 0.7".to_owned())?;
    if (0.01..=100.0).contains(&times) { Ok(times) } else { Err("out of range: from 0.01 to 100".to_owned()) }
}

fn positive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// Resident memory of process `pid` in bytes, if the kernel reports it.
fn resident_bytes(pid: u32) -> Option<u64> {
    resident(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}
