//! `waterwheel bench overload`: an open loop over real gRPC, from less than the capacity to many times as much.
//!
//! Jobs come at instants that were drawn before, whether or not earlier ones are answered, and latencies count from
//! those instants: a server that stalls cannot hide it by holding up its load (coordinated omission).

mod calls;
mod report;
mod retry;

use std::{path::Path, time::Duration};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use self::{
    calls::{Calls, Tally},
    report::{Capacity, Report, Step},
};
use super::{
    BenchError,
    child::Server,
    positive,
    process::{self, Usage},
    report::Machine,
    shown,
};
use crate::{
    cli::{
        console::Console,
        failure::Failure,
        output::{Format, OutputArgs},
    },
    model::Criticality,
    sim::{Load, Pattern, Retry, Service, Source},
};

/// Time before each measured window, at the same load.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time between two looks at the server's memory.
const LOOK: Duration = Duration::from_millis(100);
/// Deadline of the jobs that measure the capacity.
const PATIENT: Duration = Duration::from_secs(60);

/// Loads a server of its own with up to ten times what it can do, and prints what becomes of its workers' time.
///
/// It measures the capacity first, in a closed loop. Then jobs come in an open loop, at instants that are drawn before;
/// latencies count from those instants, so that a slow server does not thin out its own load. Useful is the worker time
/// of jobs that were answered by their deadline, over the lesser of what was asked for and all the time of the workers,
/// each as far as it lies in the time that is measured.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:
  waterwheel bench overload --load 1,2 --duration 1s")]
pub(super) struct OverloadArgs {
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
    /// What refused callers do, within their deadline and up to five attempts: never come back; obey the time that they
    /// are told; or ignore it and come back by a back-off of their own.
    #[arg(long, value_name = "HOW", default_value = "never", value_parser = retry::read)]
    retry: Retry,
    /// Draw the criticality of each job from the classes; CRITICAL_PLUS, which takes a rule, counts as CRITICAL.
    #[arg(long)]
    classes: bool,
    /// Number of connections.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Seed of the arrivals and service times.
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// What keeps a worker busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Work {
    /// It waits, and takes no CPU: server and load do not compete for it, whatever the load.
    Sleep,
    /// It compresses, and takes a core for each worker; what is left must do for the network and the load.
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
    pub(super) fn format(&self) -> Format {
        self.output.output
    }

    fn workers(&self) -> u16 {
        self.workers.unwrap_or(match self.work {
            Work::Sleep => 8,
            Work::Gzip => 1,
        })
    }

    /// Arrivals at so many times `rate` jobs per second, for the warm-up and the window.
    fn arrivals(&self, times: f64, rate: f64) -> Load {
        let workers = usize::from(self.workers());
        // A mean of `workers / rate` makes the load that the simulation would call `times`.
        let mean = Duration::from_secs_f64(workers as f64 / rate);
        Load {
            workers,
            source: Source::Drawn { pattern: Pattern::Poisson, mean, service: Service::Exponential },
            times,
            lasts: WARM_UP + self.duration,
            then: None,
            deadline: self.deadline,
            spread: false,
            tenants: vec![(1.0, (!self.classes).then_some(Criticality::Critical))],
            retry: self.retry,
            queue: 1024,
            slow: None,
            lost: None,
            seed: self.seed,
        }
    }
}

/// Starts a server, measures its capacity and each load, and ends it.
pub(super) async fn run(args: &OverloadArgs, machine: Machine, console: &mut Console<'_>) -> Result<(), Failure> {
    let executable = std::env::current_exe().map_err(BenchError::Executable)?;
    let server = start(args, &executable).await?;
    let calls = Calls::connect(server.address, args).await?;
    let capacity = measure_capacity(args, &calls).await?;
    let mut steps = Vec::new();
    for times in &args.loads {
        steps.push(step(args, &server, &calls, &capacity, *times).await?);
    }
    console.out.text(&shown(args.format(), &Report::new(machine, args, capacity, steps))).await?;
    Ok(())
}

async fn start(args: &OverloadArgs, executable: &Path) -> Result<Server, BenchError> {
    let (pool, _) = args.work.place();
    let keys = [
        format!("pool.{pool}.workers={}", args.workers()),
        format!("pool.{pool}.queue.jobs=1024"),
        format!("pool.{pool}.when_full=reject"),
    ];
    let dev = ["dev", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"].map(str::to_owned);
    let flags = keys.into_iter().flat_map(|key| ["--set".to_owned(), key]);
    Server::start(executable, &dev.into_iter().chain(flags).collect::<Vec<_>>()).await
}

/// A closed loop of twice as many calls as there are workers: all of them are always busy.
async fn measure_capacity(args: &OverloadArgs, calls: &Calls) -> Result<Capacity, BenchError> {
    let in_flight = 2 * usize::from(args.workers());
    let tally = calls.closed(in_flight, PATIENT, WARM_UP, args.duration).await;
    let seconds = args.duration.as_secs_f64();
    let (jobs, worked) = tally.completed();
    if jobs == 0 {
        let reason = tally.refusals().into_keys().next().unwrap_or_else(|| "no job ended".to_owned());
        return Err(BenchError::NoCapacity { reason });
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
) -> Result<Step, BenchError> {
    let load = args.arrivals(times, capacity.jobs_per_s);
    let read = |pid: u32| Usage::of(pid).map_err(|cause| BenchError::Usage { pid, cause });
    let mine = std::process::id();
    let begin = Instant::now();
    let before = (read(server.pid)?, read(mine)?);
    let watch = async {
        let mut most = 0;
        while begin.elapsed() < load.end() {
            most = most.max(process::resident_bytes(server.pid).unwrap_or_default());
            sleep(LOOK).await;
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
