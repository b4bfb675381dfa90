//! `waterwheel dev`: a server to try, without a file.

use std::io;

use clap::Args;
use tonic::Request;

use super::{
    config_args::{ConfigArgs, Process},
    exit::Exit,
    output,
    server::{self, Printed},
};
use crate::{
    app::App,
    config::starter,
    net::ListenAddress,
    proto::{Job, JobResult, SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient},
};

const GREETING: &str = "hello waterwheel";

/// Start a server to try, with built-in kinds, and run a first job.
///
/// It needs no file. It serves the kinds sha256, gzip, sleep and echo in the pools cpu and io: callers on
/// 127.0.0.1:7070, operators on 127.0.0.1:7071. A file, variables and flags change that, as they do for "waterwheel
/// serve". Ctrl-C drains it.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  waterwheel dev --max-payload 32MiB")]
pub(super) struct DevArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &DevArgs) -> Exit {
    let args = args.config.clone();
    let load = move || args.load(&Process::current(), Some(starter::dev_file()));
    server::run_server(load, Vec::new(), async |app, config| {
        if server::print(&format!("{}\n{}", server::announcement(app), output::contents(config))) == Printed::No {
            return Ok(());
        }
        // Its own job would need credentials.
        let is_open = config.server.tls.is_none() && config.auth.is_none();
        if is_open && config.kinds.iter().any(|kind| kind.name == "sha256") {
            let first = first_job(app).await.map_err(io::Error::other)?;
            server::print(&report(&first));
        }
        server::print("next:  waterwheel submit sha256 --file README.md      waterwheel stats      Ctrl-C drains");
        Ok(())
    })
}

/// Runs a job as a caller would: over the network.
async fn first_job(app: &App) -> Result<JobResult, Box<dyn std::error::Error + Send + Sync>> {
    let mut client = WorkerPoolServiceClient::connect(url(app.address())).await?;
    let job = Job { kind: "sha256".into(), payload: GREETING.into(), ..Job::default() };
    let response = client.submit(Request::new(SubmitRequest { job: Some(job) })).await?;
    response.into_inner().result.ok_or_else(|| "the service answered without a result".into())
}

fn url(address: &ListenAddress) -> String {
    let Some(mut address) = address.tcp() else { return address.to_string() };
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    format!("http://{address}")
}

fn report(first: &JobResult) -> String {
    let digest = String::from_utf8_lossy(&first.output);
    let waterfall = first.waterfall.unwrap_or_default().parts();
    format!(
        "first job: sha256 of {GREETING:?} → {digest}  queue {} + run {}  job {}",
        output::exact(output::duration(waterfall.queue.as_ref())),
        output::exact(output::duration(waterfall.run.as_ref())),
        first.job_id,
    )
}
