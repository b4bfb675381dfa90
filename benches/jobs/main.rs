//! Measures the cost of detached jobs over real gRPC, with a server and a store of its own.
//!
//! `cargo bench --bench jobs` stores jobs in SQLite in a temporary directory, and with `-- --store postgres://…` in a
//! database. It measures jobs per second from end to end, and the time from acceptance to end at half that rate. It
//! also measures memory and speed with a large backlog, and the cost of `Submit` with a store. `-- --peers` instead
//! runs the same jobs with River, Faktory and Celery, and with waterwheel on SQLite and on PostgreSQL.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a bench is its own composition root: its tasks end with the process, and it prints for people"
)]

#[path = "../overload/child.rs"]
mod child;
mod client;
#[path = "../../src/store/tests/cluster.rs"]
mod cluster;
mod peers;
#[path = "../compare/process.rs"]
mod process;

use std::{error::Error, fs, process::ExitCode, time::Duration};

use clap::Parser;
use tempfile::TempDir;
use tokio::time::Instant;

use self::{
    child::Server,
    client::{Batch, Client},
    peers::Figures,
    process::Usage,
};

type Failure = Box<dyn Error + Send + Sync>;

/// Workers of the pool that drains a backlog. All are kept busy until the backlog is complete.
const HELD: usize = 2;

/// Runs detached jobs on a server of its own, and prints their cost.
#[derive(Debug, Clone, Parser)]
struct JobsArgs {
    /// Jobs to run from end to end.
    #[arg(long, value_name = "N", default_value = "100000")]
    jobs: usize,
    /// Jobs of the large backlog.
    #[arg(long, value_name = "N", default_value = "1000000")]
    backlog: usize,
    /// Jobs to run of the large backlog, and of one of twice as many.
    #[arg(long, value_name = "N", default_value = "20000")]
    drained: usize,
    /// Concurrent calls that create jobs, each on its own connection.
    #[arg(long, value_name = "N", default_value = "4")]
    calls: usize,
    /// URL of a database. Its tables are not removed. [default: a file in a temporary directory]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How long to create jobs at half the measured rate.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Jobs of a group, and as many without one.
    #[arg(long, value_name = "N", default_value = "20000")]
    members: usize,
    /// Rounds of a group, and of `Submit` with and without a store.
    #[arg(long, value_name = "N", default_value = "7")]
    rounds: usize,
    /// Rounds of each installed queue, alternating with waterwheel on SQLite and on PostgreSQL.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3")]
    peers: Option<usize>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&JobsArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &JobsArgs) -> Result<(), Failure> {
    if let Some(rounds) = args.peers {
        return peers::compare(args, rounds).await;
    }
    let store = args.store.as_deref();
    let place = Place::new(store)?;
    measure(args, &place.serve(true).await?).await?;
    let small = Place::new(store)?.drain(args, 2 * args.drained).await?;
    let large = Place::new(store)?.drain(args, args.backlog).await?;
    println!("slower by the backlog  {:>8.2}", small / large);
    group(args, &place).await?;
    submit(args, &place).await
}

/// A directory with a configuration and, if it is in a file, the store.
struct Place(TempDir);

impl Place {
    fn new(url: Option<&str>) -> Result<Self, Failure> {
        let dir = tempfile::tempdir()?;
        let store = match url {
            Some(url) => format!("url = {url:?}"),
            None => format!("path = {:?}", dir.path().join("jobs.db")),
        };
        let config = format!(
            "server = {{ listen = \"127.0.0.1:0\", ops_listen = \"127.0.0.1:0\" }}\ntelemetry.log = \"warn\"\n\
             [pool.cpu]\nworkers = 64\nqueue.jobs = 4096\nwhen_full = \"wait\"\n[kind.echo]\npool = \"cpu\"\nbuiltin = \"echo\"\n\
             [pool.io]\nworkers = {HELD}\n[kind.sleep]\npool = \"io\"\nbuiltin = \"sleep\"\n\
             [kind.late]\npool = \"io\"\nbuiltin = \"echo\"\n"
        );
        fs::write(dir.path().join("plain.toml"), &config)?;
        let bounds = "max_jobs = 2000000\nmax_bytes = \"4GiB\"";
        fs::write(dir.path().join("store.toml"), format!("{config}[store]\n{store}\n{bounds}\n"))?;
        Ok(Self(dir))
    }

    async fn serve(&self, has_store: bool) -> Result<Server, Failure> {
        let config = self.0.path().join(if has_store { "store.toml" } else { "plain.toml" });
        Server::start(&["serve".into(), "--config".into(), config.display().to_string()]).await
    }

    /// Runs jobs from a backlog, and prints the memory of the server. Returns the jobs per second.
    async fn drain(&self, args: &JobsArgs, backlog: usize) -> Result<f64, Failure> {
        let server = self.serve(true).await?;
        let mut client = Client::of(&server).await?;
        let before = resident(server.pid)?;
        let mut held = Vec::new();
        for _ in 0..HELD {
            held.push(client.create("sleep", "600000").await?);
        }
        for id in &held {
            client.running(id).await?;
        }
        let prefix = unique(&format!("b{backlog}"), &server);
        let batch = Batch {
            jobs: backlog,
            kind: "late",
            payload: "hello waterwheel",
            prefix: prefix.clone(),
            rate: None,
            group: String::new(),
        };
        client::create(&server, args.calls, &batch).await?;
        let with = resident(server.pid)?;
        let start = Instant::now();
        for id in &held {
            client.cancel(id).await?;
        }
        // The oldest jobs run first, and each call created a part of them.
        for call in 0..args.calls {
            client.ended(&format!("{prefix}-{call}-{}", args.drained / args.calls)).await?;
        }
        let rate = args.drained as f64 / start.elapsed().as_secs_f64();
        println!("backlog of {backlog:>9}   {rate:>8.0} jobs/s drained, {with:.0} MiB ({before:.0} before)");
        Ok(rate)
    }
}

/// Creates jobs as fast as the server takes them, waits until all have ended, and then creates some at half that rate.
async fn measure(args: &JobsArgs, server: &Server) -> Result<Figures, Failure> {
    println!("idle with a store      {:>8.1} MiB", resident(server.pid)?);
    let (start, before) = (Instant::now(), Usage::of(server.pid)?);
    let batch = Batch {
        jobs: args.jobs,
        kind: "echo",
        payload: "hello waterwheel",
        prefix: unique("e", server),
        rate: None,
        group: String::new(),
    };
    client::create(server, args.calls, &batch).await?;
    let accepted_seconds = start.elapsed().as_secs_f64();
    Client::of(server).await?.all_ended("echo").await?;
    let ended_seconds = start.elapsed().as_secs_f64();
    let cpu = Usage::of(server.pid)?.since(&before).cpu.as_secs_f64();
    let jobs = args.jobs as f64;
    println!("accepted               {:>8.0} jobs/s", jobs / accepted_seconds);
    println!("accepted, run and kept {:>8.0} jobs/s, {:.0} us of CPU each", jobs / ended_seconds, cpu / jobs * 1e6);
    let [p50_ms, p99_ms] = from_acceptance_to_end(args, server, jobs / ended_seconds / 2.0).await?;
    Ok(Figures { jobs: args.jobs, accepted_seconds, ended_seconds, p50_ms, p99_ms })
}

/// Creates `rate` jobs per second one by one. Returns the median and the 99th percentile of the time from acceptance to
/// end, in milliseconds.
async fn from_acceptance_to_end(args: &JobsArgs, server: &Server, rate: f64) -> Result<[f64; 2], Failure> {
    let jobs = (rate * args.duration.as_secs_f64()) as usize;
    let prefix = unique("l", server);
    let batch =
        Batch { jobs, kind: "echo", payload: "x", prefix: prefix.clone(), rate: Some(rate), group: String::new() };
    client::create(server, args.calls, &batch).await?;
    let mut client = Client::of(server).await?;
    client.all_ended("echo").await?;
    let mut waits = client.waits(&prefix).await?;
    waits.sort_unstable();
    let [p50, p99] = [0.5, 0.99].map(|quantile| waits[(waits.len() as f64 * quantile) as usize].as_secs_f64() * 1e3);
    println!("acceptance to end      {p50:>8.1} ms p50, {p99:.1} ms p99, at {rate:.0} jobs/s");
    Ok([p50, p99])
}

/// Compares the jobs per second of one group with those of as many jobs without a group, alternately.
async fn group(args: &JobsArgs, place: &Place) -> Result<(), Failure> {
    let server = place.serve(true).await?;
    let mut client = Client::of(&server).await?;
    let mut ratios = Vec::new();
    for round in 0..args.rounds {
        let prefix = unique(&format!("g{round}"), &server);
        let batch = Batch { jobs: args.members, kind: "echo", payload: "x", prefix, rate: None, group: String::new() };
        let start = Instant::now();
        client::create(&server, args.calls, &batch).await?;
        client.all_ended("echo").await?;
        let plain = start.elapsed();
        let group = format!("{}-group", batch.prefix);
        let start = Instant::now();
        let last = client.open_group(&group).await?;
        client::create(&server, args.calls, &Batch { prefix: group.clone(), group: group.clone(), ..batch }).await?;
        client.close_group(&group).await?;
        client.ended(&last).await?;
        ratios.push(plain.as_secs_f64() / start.elapsed().as_secs_f64());
    }
    print_middle("jobs/s of a group, ratio", "of those without", &mut ratios)
}

/// Compares the CPU time of `Submit` with and without a store, alternately.
async fn submit(args: &JobsArgs, place: &Place) -> Result<(), Failure> {
    let servers = [place.serve(false).await?, place.serve(true).await?];
    // A database still has the rest of the backlogs.
    Client::of(&servers[1]).await?.all_ended("late").await?;
    let mut ratios = Vec::new();
    for _ in 0..=args.rounds {
        let mut costs = Vec::new();
        for server in &servers {
            let before = Usage::of(server.pid)?;
            let calls = client::submit_for(server, Duration::from_secs(1)).await?;
            costs.push(Usage::of(server.pid)?.since(&before).cpu.as_secs_f64() / calls as f64);
        }
        ratios.push(costs[1] / costs[0]);
    }
    // The first round warms up.
    ratios.remove(0);
    print_middle("CPU of Submit, ratio   ", "with a store to without", &mut ratios)
}

fn print_middle(what: &str, of: &str, ratios: &mut [f64]) -> Result<(), Failure> {
    ratios.sort_unstable_by(f64::total_cmp);
    let middle = ratios.get(ratios.len() / 2).ok_or("no rounds")?;
    println!("{what}{middle:>8.2} {of} ({:.2} to {:.2})", ratios[0], ratios[ratios.len() - 1]);
    Ok(())
}

/// A prefix of ids that no earlier run has used in the database.
fn unique(what: &str, server: &Server) -> String {
    format!("{what}-{}", server.pid)
}

/// Memory of a process in MiB.
fn resident(pid: u32) -> Result<f64, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS in the status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}
