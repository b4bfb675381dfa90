//! The same work with other queues. Each has its own servers on the same cores, and alternates with waterwheel.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde::Deserialize;
use tokio::process::Command;

use crate::{Failure, JobsArgs, Place, cluster::Cluster, measure};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers");
/// Settings of the databases of waterwheel and River: no network, each commit flushed, and no checkpoint during a run.
const SETTINGS: &str = "listen_addresses = ''\nshared_buffers = '256MB'\nmax_wal_size = '4GB'\n";

/// The results of a queue in a round.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Figures {
    pub(crate) jobs: usize,
    pub(crate) accepted_seconds: f64,
    pub(crate) ended_seconds: f64,
    /// Median wait at half the rate at which it ran the jobs.
    ///
    /// With waterwheel, from acceptance to end, as recorded in its store. With the others, from the call that creates a
    /// job to the start of its work, or to its end with Celery.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

enum Queue {
    WaterwheelSqlite,
    WaterwheelPostgres,
    River { program: PathBuf },
    Faktory { program: PathBuf },
    Celery { python: PathBuf },
}

impl Queue {
    fn name(&self) -> &'static str {
        match self {
            Self::WaterwheelSqlite => "waterwheel, SQLite",
            Self::WaterwheelPostgres => "waterwheel, PostgreSQL",
            Self::River { .. } => "River, PostgreSQL",
            Self::Faktory { .. } => "Faktory, Redis",
            Self::Celery { .. } => "Celery, Redis",
        }
    }

    /// Definition of its wait.
    fn wait(&self) -> &'static str {
        match self {
            Self::WaterwheelSqlite | Self::WaterwheelPostgres => "acceptance to end",
            Self::River { .. } | Self::Faktory { .. } => "call to start",
            Self::Celery { .. } => "call to end",
        }
    }

    fn is_own(&self) -> bool {
        matches!(self, Self::WaterwheelSqlite | Self::WaterwheelPostgres)
    }

    async fn run(&self, args: &JobsArgs) -> Result<Figures, Failure> {
        let (database, seconds) = (Database::new(args), args.duration.as_secs_f64().to_string());
        let (all, few) = (args.jobs.to_string(), (args.jobs / 10).to_string());
        let line = match self {
            Self::WaterwheelSqlite => return measure(args, &Place::new(None)?.serve(true).await?).await,
            Self::WaterwheelPostgres => {
                let database = database.await?;
                return measure(args, &Place::new(Some(&database.url))?.serve(true).await?).await;
            }
            Self::River { program } => {
                let database = database.await?;
                output(Command::new(program).args(["river", &database.url, &all, &seconds])).await?
            }
            Self::Faktory { program } => {
                let server = program.with_file_name("faktory");
                output(Command::new(program).arg("faktory").arg(server).args([&few, &seconds])).await?
            }
            Self::Celery { python } => {
                output(Command::new(python).arg(format!("{SOURCES}/celery/peer.py")).args([&few, &seconds])).await?
            }
        };
        Ok(serde_json::from_str(&line)?)
    }
}

/// The database of a round, unless the jobs are in a file or in Redis.
struct Database {
    url: String,
    _cluster: Option<Cluster>,
}

impl Database {
    /// The database of `--store`, or an empty one on a new server.
    async fn new(args: &JobsArgs) -> Result<Self, Failure> {
        if let Some(url) = &args.store {
            return Ok(Self { url: url.clone(), _cluster: None });
        }
        let cluster = Cluster::start().await.ok_or("PostgreSQL is not installed")?;
        cluster.halt().await;
        cluster.put("postgresql.conf", SETTINGS);
        cluster.resume().await;
        Ok(Self { url: cluster.url("postgres"), _cluster: Some(cluster) })
    }
}

/// Runs each queue once a round, and prints the medians.
pub(crate) async fn compare(args: &JobsArgs, rounds: usize) -> Result<(), Failure> {
    let mut queues = vec![(Queue::WaterwheelSqlite, Vec::new()), (Queue::WaterwheelPostgres, Vec::new())];
    match programs().await {
        Ok(program) => {
            queues.push((Queue::River { program: program.clone() }, Vec::new()));
            queues.push((Queue::Faktory { program }, Vec::new()));
        }
        Err(failure) => eprintln!("SKIPPED: River and Faktory: {failure}"),
    }
    match celery().await {
        Ok(python) => queues.push((Queue::Celery { python }, Vec::new())),
        Err(failure) => eprintln!("SKIPPED: Celery: {failure}"),
    }
    for round in 1..=rounds {
        for (queue, figures) in &mut queues {
            println!("round {round}: {}", queue.name());
            match queue.run(args).await {
                Ok(ran) => figures.push(ran),
                Err(failure) => eprintln!("SKIPPED: {}: {failure}", queue.name()),
            }
        }
    }
    report(&queues)
}

fn report(queues: &[(Queue, Vec<Figures>)]) -> Result<(), Failure> {
    println!("\n| | jobs | accepted, jobs/s | run and kept, jobs/s | p50 and p99 in ms |");
    println!("|---|---|---|---|---|");
    let kept = |ran: &Figures| ran.jobs as f64 / ran.ended_seconds;
    let ran = || queues.iter().filter(|(_, figures)| !figures.is_empty());
    for (queue, figures) in ran() {
        let [accepted, kept] =
            [|ran: &Figures| ran.jobs as f64 / ran.accepted_seconds, kept].map(|of| median(figures, of));
        let [p50, p99] = [|ran: &Figures| ran.p50_ms, |ran: &Figures| ran.p99_ms].map(|of| median(figures, of));
        let wait = queue.wait();
        println!(
            "| {} | {} | {accepted:.0} | {kept:.0} | {p50:.0}, {p99:.0} ({wait}) |",
            queue.name(),
            figures[0].jobs
        );
    }
    println!();
    for (own, own_figures) in ran().filter(|(queue, _)| queue.is_own()) {
        for (peer, figures) in ran().filter(|(queue, _)| !queue.is_own()) {
            let ratio = median(own_figures, kept) / median(figures, kept);
            println!("{} runs and keeps {ratio:.1} times as many as {}", own.name(), peer.name());
        }
    }
    Ok(())
}

fn median(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    let mut all: Vec<f64> = figures.iter().map(of).collect();
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Builds the program that runs River and Faktory, and beside it the server of the latter.
async fn programs() -> Result<PathBuf, Failure> {
    let folder = folder("queues")?;
    let build = ["build", "-o", &format!("{}/", folder.display()), ".", "github.com/contribsys/faktory/cmd/faktory"];
    output(Command::new("go").args(build).current_dir(format!("{SOURCES}/queues"))).await?;
    Ok(folder.join("queues"))
}

/// Installs Celery and returns the Python that finds it.
async fn celery() -> Result<PathBuf, Failure> {
    output(Command::new("redis-server").arg("--version")).await?;
    let folder = folder("celery")?;
    output(Command::new("python3").args(["-m", "venv"]).arg(&folder)).await?;
    let python = folder.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet", "--requirement", &format!("{SOURCES}/celery/requirements.txt")];
    output(Command::new(&python).args(install)).await?;
    Ok(python)
}

fn folder(name: &str) -> io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jobs").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// What a program writes on its standard output, if it succeeds.
async fn output(command: &mut Command) -> Result<String, Failure> {
    let name = command.as_std().get_program().display().to_string();
    let ended = command.stdin(Stdio::null()).kill_on_drop(true).output().await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{name} is not installed").into(),
        _ => Failure::from(error),
    })?;
    if ended.status.success() {
        return Ok(String::from_utf8(ended.stdout)?);
    }
    Err(format!("{name}: {}", String::from_utf8_lossy(&ended.stderr).trim()).into())
}
