//! Measures what one tenant loses while another one attacks the store of detached jobs.
//!
//! `cargo bench --bench neighbours` fills a store with ended and ready jobs of the attacker. It measures calls of its
//! neighbour alone, and again while the attacker lists, purges, watches, creates, cancels and retries on many
//! connections. Both have tokens. The store is a file in a temporary directory, or with `-- --store postgres://…` in a
//! database.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a bench is its own composition root: its tasks end with the process, and it prints for people"
)]

mod attacker;
#[path = "../overload/child.rs"]
mod child;
mod neighbour;
mod tenant;

use std::{error::Error, fs, process::ExitCode, time::Duration};

use clap::Parser;
use tempfile::TempDir;
use tokio::time::Instant;

use self::{child::Server, neighbour::Times};

type Failure = Box<dyn Error + Send + Sync>;

/// Compares the calls of a tenant alone with those beside an attacker.
#[derive(Debug, Clone, Parser)]
struct NeighboursArgs {
    /// Ended jobs of the attacker in the store.
    #[arg(long, value_name = "N", default_value = "1000000")]
    ended: usize,
    /// Ready jobs of the attacker in the store.
    #[arg(long, value_name = "N", default_value = "10000")]
    ready: usize,
    /// Connections of the attacker.
    #[arg(long, value_name = "N", default_value = "16")]
    connections: usize,
    /// How long to attack. The neighbour alone is measured for a sixth of it.
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Serving threads.
    #[arg(long, value_name = "N", default_value = "1")]
    threads: usize,
    /// URL of a database. Its tables are not removed. [default: a file in a temporary directory]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&NeighboursArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &NeighboursArgs) -> Result<(), Failure> {
    let (place, issuer) = (tempfile::tempdir()?, tenant::Issuer::new()?);
    let server = serve(args, &place, &issuer).await?;
    let [attacker, victim] = [issuer.tenant("attacker", &server)?, issuer.tenant("victim", &server)?];
    let begin = Instant::now();
    attacker::fill(&attacker, args.ended, args.ready).await?;
    println!("{} ended and {} ready jobs after {:.0} s", args.ended, args.ready, begin.elapsed().as_secs_f64());
    let held = neighbour::hold(&victim).await?;
    let alone = neighbour::call(&victim, args.duration / 6).await?;
    let before = resident(server.pid)?;
    let (beside, attack) = tokio::join!(
        neighbour::call(&victim, args.duration),
        attacker::attack(&attacker, args.connections, args.duration, &server)
    );
    let (beside, attack) = (beside?, attack?);
    for (name, [alone, beside]) in Times::names().into_iter().zip(alone.pairs(&beside)) {
        println!("{name:<10} p99 {alone:>8.2} ms alone, {beside:>8.2} ms beside the attacker: {:.1}", beside / alone);
    }
    println!("memory     {before:>8.0} MiB before, {:.0} MiB at most", attack.most_mib);
    for (call, count) in &attack.calls {
        println!("attacker   {count:>8} {call}");
    }
    neighbour::still_runs(&victim, &held).await
}

/// Starts a server with a rule for both tenants.
async fn serve(args: &NeighboursArgs, place: &TempDir, issuer: &tenant::Issuer) -> Result<Server, Failure> {
    let store = match &args.store {
        Some(url) => format!("url = {url:?}"),
        None => format!("path = {:?}", place.path().join("jobs.db")),
    };
    let keys = place.path().join("jwks.json");
    fs::write(&keys, issuer.keys()?)?;
    let config = format!(
        "server = {{ listen = \"127.0.0.1:0\", ops_listen = \"127.0.0.1:0\", threads = {} }}\n\
         telemetry.log = \"warn\"\n[store]\n{store}\n\
         [auth.jwt]\njwks = {keys:?}\nissuer = \"bench\"\naudience = [\"waterwheel\"]\n\
         [auth.rule.all]\nprincipals = [\"jwt:*\"]\nrpcs = {:?}\n\
         [pool.cpu]\nworkers = 8\nqueue.jobs = 4096\nwhen_full = \"wait\"\n[kind.echo]\npool = \"cpu\"\nbuiltin = \"echo\"\n\
         [pool.held]\nworkers = 4\n[kind.sleep]\npool = \"held\"\nbuiltin = \"sleep\"\n\
         [pool.full]\nworkers = 1\n[kind.block]\npool = \"full\"\nbuiltin = \"sleep\"\n",
        args.threads,
        tenant::RPCS,
    );
    let file = place.path().join("waterwheel.toml");
    fs::write(&file, config)?;
    Server::start(&["serve".into(), "--config".into(), file.display().to_string()]).await
}

/// Memory of a process in MiB.
fn resident(pid: u32) -> Result<f64, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS in the status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}
