//! `waterwheel jobs group` with a verb: groups of jobs, for each of which one job waits.

use clap::{Args, Subcommand, ValueEnum};

use super::text;
use crate::{
    cli::{
        access::{ReadArgs, ServerArgs},
        connect::Target,
        console::{Console, STRONG, paint},
        failure::Failure,
        flags::JobArgs,
        output::sanitized,
    },
    proto::{CloseGroupRequest, CreateGroupRequest, GetGroupRequest, GetGroupResponse, GroupCondition, JobOptions},
};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum GroupCommand {
    /// Open a group, and create the job that starts once its members have succeeded. Prints the id of that job.
    ///
    /// Jobs join it by "waterwheel jobs create --group". Close it when all of them are created.
    #[command(after_help = "Example:\n  waterwheel jobs group create nightly sha256 \"all are done\"")]
    Create(Box<CreateGroupArgs>),
    /// Close a group: no more jobs join it.
    #[command(after_help = "Example:\n  waterwheel jobs group close $GROUP")]
    Close {
        /// Id of the group.
        group: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show how many jobs of a group are in each state, and the job that waits for them.
    #[command(after_help = "Example:\n  waterwheel jobs group get $GROUP")]
    Get {
        /// Id of the group.
        group: String,
        #[command(flatten)]
        server: ReadArgs,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct CreateGroupArgs {
    /// Id of the group.
    group: String,
    #[command(flatten)]
    job: JobArgs,
    /// When the job starts.
    #[arg(long, value_name = "CONDITION", default_value = "all-succeeded")]
    when: When,
    /// Id of another open group, which the job joins.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    joins: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum When {
    /// All members have succeeded.
    AllSucceeded,
    /// All members have ended.
    AllEnded,
}

pub(super) async fn run(action: GroupCommand, console: &mut Console<'_>) -> Result<(), Failure> {
    match action {
        GroupCommand::Create(args) => {
            let CreateGroupArgs { group: group_id, job, when, joins: group, server } = *args;
            let when = match when {
                When::AllSucceeded => GroupCondition::AllSucceeded,
                When::AllEnded => GroupCondition::AllEnded,
            };
            let options = Some(JobOptions { group, ..JobOptions::default() });
            let request = CreateGroupRequest { job: Some(job.into_job().await?), group_id, options, when: when.into() };
            let created = server.ask(async |server| server.jobs().create_group(request).await).await?;
            console.message(&created, |created| sanitized(&created.job_id)).await?;
        }
        GroupCommand::Close { group, server } => {
            let request = CloseGroupRequest { group_id: group.clone() };
            let closed = server.ask(async |server| server.jobs().close_group(request).await).await?;
            console.message(&closed, |_| format!("{}: it is closed", sanitized(&group))).await?;
        }
        GroupCommand::Get { group, server } => {
            let request = GetGroupRequest { group_id: group.clone() };
            let found = server.ask(async |server| server.jobs().get_group(request).await).await?;
            console.message(&found, |found| members(&group, found)).await?;
        }
    }
    Ok(())
}

fn members(group: &str, found: &GetGroupResponse) -> String {
    let GetGroupResponse { when: _, closed, active, succeeded, failed, cancelled, expired, job, waits_for } = found;
    let state = if *closed { "closed" } else { "open" };
    let counts = [
        (active, "active"),
        (succeeded, "succeeded"),
        (failed, "failed"),
        (cancelled, "cancelled"),
        (expired, "expired"),
    ];
    let counts = counts.iter().filter(|(count, _)| **count > 0).map(|(count, name)| format!("  {count} {name}"));
    let head = format!("{}  {state}{}", paint(STRONG, sanitized(group)), counts.collect::<String>());
    let waits = if waits_for.is_empty() { String::new() } else { format!("\n  {}", sanitized(waits_for)) };
    format!("{head}\n{}{waits}", text(&job.clone().unwrap_or_default()))
}
