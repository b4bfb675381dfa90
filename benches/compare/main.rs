//! Compares waterwheel with servers that do the same work without its guarantees, in one run.
//!
//! `cargo bench --bench compare` starts waterwheel and a bare tonic server of the same build with default settings. If
//! Go is installed, it also starts a grpc-go server with a pool of goroutines. Each regime loads them alternately in
//! short bursts, so that disturbances of the machine affect all of them, and compares burst with burst.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a bench is its own composition root: its tasks end with the process, and it prints for people"
)]

mod burst;
mod closed;
mod process;
mod proxy;
mod regime;
mod report;
mod server;

use std::{error::Error, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};

use self::{
    burst::Burst,
    regime::{Load, REGIMES, Regime, Side},
    report::Report,
    server::Server,
};

/// The allocator of the program, so that the bare server uses the same one.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn Error + Send + Sync>;

/// Compares waterwheel with a bare tonic server and a grpc-go server in the same run.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Rounds of each regime. In each round every server gets a burst.
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Measured time of a burst, after a warm-up of a fifth of it. Delayed uploads get up to four times as much.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    burst: Duration,
    /// Prefixes of the names of the regimes to run. [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
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

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Serves the bare tonic side until standard input ends.
    #[command(hide = true)]
    ServeBare,
    /// Loads a server, and prints the measurements.
    #[command(hide = true)]
    Load(closed::LoadArgs),
}

/// One burst on each side, close in time, in the order of the sides of the regime.
type Round = Vec<Burst>;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = tokio::runtime::Runtime::new().map_err(Failure::from).and_then(|runtime| {
        runtime.block_on(async {
            match args.command.clone() {
                Some(Command::ServeBare) => server::serve_bare().await.map_err(Failure::from),
                Some(Command::Load(load)) => closed::run(load).await,
                None => run(&args).await,
            }
        })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<(), Failure> {
    let is_wanted =
        |regime: &&Regime| args.only.is_empty() || args.only.iter().any(|only| regime.name.starts_with(only.as_str()));
    let wanted: Vec<_> = REGIMES.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        let names: Vec<_> = REGIMES.iter().map(|regime| regime.name).collect();
        return Err(format!("--only names no regime; there are {}", names.join(", ")).into());
    }
    let go = server::build_go().await.inspect_err(|missing| eprintln!("compare: grpc-go is left out: {missing}")).ok();
    let mut measured = Vec::new();
    for regime in wanted {
        eprintln!("compare: {}", regime.what);
        measured.push((regime, rounds(args, regime, go.as_ref()).await?));
    }
    let report = Report::new(args.rounds, args.burst, go.is_some(), &measured);
    match args.output {
        Output::Text => print!("{report}"),
        Output::Json => println!("{}", serde_json::to_string(&report)?),
    }
    Ok(())
}

/// Runs the rounds of a regime. An additional round before the first warms the servers up, and does not count.
async fn rounds(args: &Args, regime: &Regime, go: Option<&PathBuf>) -> Result<Vec<Round>, Failure> {
    let sides: Vec<Side> = regime.sides().into_iter().filter(|side| *side != Side::Go || go.is_some()).collect();
    let mut servers = Vec::new();
    for side in &sides {
        servers.push(Server::start(*side, go).await?);
    }
    let mut rounds = Vec::new();
    for number in 0..=args.rounds {
        let mut bursts: Vec<Option<Burst>> = vec![None; sides.len()];
        let forth = number % 2 == 0;
        for step in 0..sides.len() {
            let place = if forth { step } else { sides.len() - 1 - step };
            if matches!(regime.load, Load::Volley { .. }) {
                // Each volley gets a new process, because the peak memory is that of the whole process.
                servers[place] = Server::start(sides[place], go).await?;
            }
            bursts[place] = Some(burst::run(regime, sides[place], &servers[place], args.burst).await?);
        }
        if number > 0 {
            rounds.push(bursts.into_iter().flatten().collect());
        }
    }
    Ok(rounds)
}
