//! `waterwheel resume`.

use clap::Args;

use super::{console::Console, exit::Exit, failure::Failure, steer::SteerArgs};
use crate::proto::ResumeRequest;

const EXAMPLE: &str = "\
Example:
  waterwheel resume cpu";

/// Let a pool accept and start jobs again.
///
/// It reverts "waterwheel pause" and "waterwheel drain --pool".
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ResumeArgs {
    /// Name of the pool.
    pool: String,
    #[command(flatten)]
    pub(super) steer: SteerArgs,
}

pub(super) async fn run(args: ResumeArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ResumeArgs { pool, steer } = args;
    let request = ResumeRequest { pool, reason: steer.reason.clone() };
    let answer = steer.operator.ask(request, async |mut admin, request| admin.resume(request).await).await?;
    steer.show(answer.pool, console).await
}
