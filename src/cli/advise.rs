//! `waterwheel advise`: what other numbers of workers would have done to the last jobs of a server.

use clap::Args;

use super::{
    connect::{CallArgs, Target},
    console::Console,
    failure::{Exit, Failure},
    forecast::of_sizes,
    operate::OperatorArgs,
};
use crate::proto::{AdviseRequest, AdviseResponse};

/// Advise how many workers a pool needs, from its last jobs.
///
/// The server replays the jobs that it recorded in its simulator, with fewer and with more workers. It finds the fewest
/// workers with which at most 1 % of the jobs would have been refused or have missed their deadlines. It needs 200 jobs
/// of a pool. They are recorded since the start, at most the last 24 hours.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel advise --pool io")]
pub(super) struct AdviseArgs {
    /// Advise on this pool only.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    #[command(flatten)]
    operator: OperatorArgs,
}

pub(super) async fn run(args: AdviseArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let AdviseArgs { pool, operator } = args;
    // Replays of many jobs take long.
    let call = operator.call(CallArgs::default()).await?;
    let answer = call.ask(async |server| server.admin().advise(AdviseRequest { pool }).await).await?;
    let text = |answer: &AdviseResponse| answer.pools.iter().map(of_sizes).collect::<Vec<_>>().join("\n\n");
    console.message(&answer, text).await?;
    Ok(Exit::Done)
}
