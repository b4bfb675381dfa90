//! `waterwheel cancel`.

use clap::Args;

use super::{
    console::{Console, STRONG, paint},
    exit::Exit,
    failure::Failure,
    output::{Format, json, plain},
    steer::SteerArgs,
};
use crate::proto::{CancelJobRequest, CancelJobResponse, JobStage};

const EXAMPLE: &str = "\
Example:
  waterwheel cancel $JOB";

/// Cancel a job, queued or running, as its operator.
///
/// A queued job ends at once. A running job is asked to stop, and forced after the grace. Its caller gets
/// CANCELLED_BY_OPERATOR. "waterwheel jobs" lists the jobs. If several jobs have the request id, nothing is cancelled,
/// and their ids are printed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct CancelArgs {
    /// Id of the job, or the request id of its call.
    job: String,
    #[command(flatten)]
    pub(super) steer: SteerArgs,
}

pub(super) async fn run(args: CancelArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let CancelArgs { job, steer } = args;
    let request = CancelJobRequest { job_id: job, reason: steer.reason.clone() };
    let answer = steer.operator.ask(request, async |mut admin, request| admin.cancel_job(request).await).await?;
    let line = match steer.operator.format() {
        Format::Text => text(&answer),
        Format::Json => json::message(&answer)?,
    };
    console.out.line(&line).await?;
    Ok(Exit::Done)
}

fn text(answer: &CancelJobResponse) -> String {
    let how = match answer.stage() {
        JobStage::Waiting => "it waited for capacity, and did not start",
        JobStage::Queued => "it was queued, and did not start",
        JobStage::Running => "it runs, and is asked to stop",
        JobStage::Completed | JobStage::Failed | JobStage::Unspecified => "",
    };
    format!("cancelled {} of pool {}: {how}", paint(STRONG, plain(&answer.job_id)), plain(&answer.pool))
}
