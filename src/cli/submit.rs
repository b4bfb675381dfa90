//! `waterwheel submit`.

use clap::Args;

use super::{
    call::{Call, CallArgs},
    connect::ServerArgs,
    console::Console,
    exit::Exit,
    failure::Failure,
    job::JobArgs,
    output::{self, Format, OutputArgs, json},
};
use crate::proto::SubmitRequest;

const EXAMPLE: &str = "\
Example:
  waterwheel submit sha256 \"hello waterwheel\" --deadline 2s";

/// Run one job and print its output.
///
/// The output goes to standard output exactly as the handler wrote it. Timing goes to standard error.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct SubmitArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    call: CallArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(super) async fn run(args: SubmitArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let format = args.output.format;
    let address = &args.server.server;
    let job = Some(args.job.into_job().await?);
    let (call, connection) = Call::begin(address, &args.server.access, args.call).await?;
    let mut client = connection.worker_pool();
    let request = call.request(SubmitRequest { job });
    let response = call.wait(client.submit(request)).await?.into_inner();
    let result = response.result.ok_or_else(|| Failure::Incomplete { address: address.clone(), missing: "result" })?;
    match format {
        Format::Json => {
            let line = json::message(&result)?;
            console.out.line(&line).await?;
        }
        Format::Text => {
            console.out.bytes(&result.output).await?;
            if console.out.is_terminal() && !result.output.ends_with(b"\n") {
                console.out.bytes(b"\n").await?;
            }
            let waterfall = result.waterfall.unwrap_or_default();
            console.err.line(&output::waterfall(&waterfall)).await?;
            console.err.line(&output::job_id(&result.job_id)).await?;
        }
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests;
