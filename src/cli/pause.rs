//! `waterwheel pause`.

use clap::Args;

use super::{console::Console, exit::Exit, failure::Failure, steer::SteerArgs};
use crate::proto::PauseRequest;

const EXAMPLE: &str = "\
Example:
  waterwheel pause cpu";

/// Stop starting jobs of a pool until "waterwheel resume".
///
/// Jobs are accepted and queued, but not started. Running jobs continue, and deadlines still apply.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct PauseArgs {
    /// Name of the pool.
    pool: String,
    #[command(flatten)]
    pub(super) steer: SteerArgs,
}

pub(super) async fn run(args: PauseArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let PauseArgs { pool, steer } = args;
    let request = PauseRequest { pool, reason: steer.reason.clone() };
    let answer = steer.operator.ask(request, async |mut admin, request| admin.pause(request).await).await?;
    steer.show(answer.pool, console).await
}
