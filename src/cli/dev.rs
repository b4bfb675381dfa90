//! `waterwheel dev`: a server to try, without a file.

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::json;
use tonic::Request;

use super::{
    config::{ConfigArgs, sources},
    failure::Exit,
    output,
    serve::{HangUp, announcement, exit_of, print, refuse, serve},
    worker::{WorkerFile, on_path},
};
use crate::{
    app::App,
    config::{Faults, Kind, Store, starter},
    net::ListenAddress,
    proto::{Job, JobResult, SubmitRequest, Waterfall, worker_pool_service_client::WorkerPoolServiceClient},
};

/// The smallest worker; docs/workers.md shows it.
const PYTHON: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/workers/upper.py"));
const GREETING: &str = "hello waterwheel";
/// The default address of the server in all commands.
const USUAL: &str = "http://127.0.0.1:7070";

/// Start a server to try, with built-in kinds, and run a first job.
///
/// It needs no file. It serves the kinds sha256, gzip, sleep and echo in the pools cpu and io, and the kind upper, a
/// worker in Python, where python3 is installed: callers on 127.0.0.1:7070, operators on 127.0.0.1:7071. A file,
/// variables and flags change that, as they do for "waterwheel serve". Ctrl-C drains it, and so does the end of its
/// terminal.
///
/// Without a configuration, detached jobs are in waterwheel.db in the working directory, where the next "waterwheel
/// dev" finds them. "--set store.memory=true" keeps them in memory.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  waterwheel dev --max-payload 32MiB
  waterwheel dev --worker thumb.py")]
pub(super) struct DevArgs {
    /// Serve the kinds of this worker too, a file in Python, Node, Go, Java, Ruby or bash, or a program; start it anew
    /// whenever the file changes.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    worker: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &DevArgs) -> Exit {
    let worker = args.worker.as_deref().map(|path| WorkerFile::find(path).map_err(|fault| unusable(path, fault)));
    let worker = match worker.transpose() {
        Ok(worker) => worker,
        Err(faults) => return refuse(&faults),
    };
    let (args, served) = (args.config.clone(), worker.clone());
    let load = move || {
        let more = match &served {
            Some(worker) => worker.sections(&starter::text()).map_err(|fault| unusable(&worker.path, fault))?,
            None => on_path("python3").map(|python| python_kind(&python)).unwrap_or_default(),
        };
        args.load_dev(sources(), &more)
    };
    let served = serve(HangUp::Drain, load, Vec::new(), async |app, config| {
        if let Some(WorkerFile { path, .. }) = worker {
            app.reload_on_change(path);
        }
        print(&format!("{}\n{}{}", announcement(app), output::contents(config), store_line(&config.store)));
        // The first job would need credentials.
        let is_open = config.server.tls.is_none() && config.auth.is_none();
        if is_open && config.kinds.iter().any(|kind| kind.name == "sha256") {
            let first = first_job(app).await.map_err(io::Error::other)?;
            print(&report(&first));
        }
        let at = match url(app.address()) {
            usual if usual == USUAL => String::new(),
            other => format!(" --server {other}"),
        };
        let kind = config.kinds.iter().find(|kind| kind.name == "sha256").or(config.kinds.first());
        let submit = |kind: &Kind| format!("waterwheel submit {} --file README.md{at}      ", kind.name);
        let submit = kind.map(submit).unwrap_or_default();
        print(&format!("next:  {submit}waterwheel stats{at}      Ctrl-C drains"));
        Ok(())
    });
    exit_of(served)
}

/// A kind in Python, in a pool of its own.
fn python_kind(python: &str) -> String {
    format!(
        "\n[pool.python]\nworkers = 1\nqueue.jobs = 64\n\n[program.upper]\ncommand = {}\n\n\
         [kind.upper]\npool = \"python\"\nprogram = \"upper\"\n",
        json!([python, "-c", PYTHON]),
    )
}

/// The fault of a worker that cannot be served.
fn unusable(path: &Path, fault: String) -> Faults {
    let message = format!("cannot serve the worker `{}`: {fault}", path.display());
    Faults::of(message, "run `waterwheel worker test` on it")
}

/// The line that names the store of detached jobs; empty if there is no store.
fn store_line(store: &Store) -> String {
    match &store.path {
        Some(path) => {
            format!("\nstore  {} (detached jobs)", std::path::absolute(path).as_ref().unwrap_or(path).display())
        }
        None if store.url.is_some() => "\nstore  PostgreSQL (detached jobs)".to_owned(),
        None if store.memory => "\nstore  memory (detached jobs, which end with this server)".to_owned(),
        None => String::new(),
    }
}

/// Runs a job as a caller would: over the network.
async fn first_job(app: &App) -> Result<JobResult, Box<dyn std::error::Error + Send + Sync>> {
    let mut client = WorkerPoolServiceClient::connect(url(app.address())).await?;
    let job = Job { kind: "sha256".into(), payload: GREETING.into(), ..Job::default() };
    let response = client.submit(Request::new(SubmitRequest { job: Some(job) })).await?;
    response.into_inner().result.ok_or_else(|| "the service answered without a result".into())
}

fn url(address: &ListenAddress) -> String {
    match address.tcp() {
        Some(address) if address.ip().is_unspecified() => format!("http://localhost:{}", address.port()),
        Some(address) => format!("http://{address}"),
        None => address.to_string(),
    }
}

fn report(first: &JobResult) -> String {
    let digest = String::from_utf8_lossy(&first.output);
    let Waterfall { queue_seconds, run_seconds, .. } = first.waterfall.unwrap_or_default();
    let [queue, run] = [queue_seconds, run_seconds].map(|time| output::exact(output::seconds(time)));
    format!("first job: sha256 of {GREETING:?} → {digest}  queue {queue} + run {run}  job {}", first.job_id)
}
