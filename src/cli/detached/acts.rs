//! The commands that cancel, run again or remove detached jobs: one by its id, or all that match.

use clap::Args;
use serde::Serialize;

use super::filter::FilterArgs;
use crate::{
    cli::{
        access::ServerArgs,
        connect::{Call, CallArgs, Target},
        console::Console,
        failure::Failure,
        output::{Format, pluralized, sanitized},
    },
    proto::{
        CancelJobsRequest, DeleteJobRequest, DetachedJobFilter, JobServiceCancelJobRequest, JobServiceListJobsRequest,
        JobState, PurgeJobsRequest, RetryJobRequest, RetryJobsRequest,
    },
};

#[derive(Debug, Args)]
pub(in crate::cli) struct DeleteArgs {
    /// Id of the job.
    id: String,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct OneOrManyArgs {
    /// Id of the job; without it, all jobs that match the flags.
    #[arg(
        required_unless_present_any = ["FilterArgs", "all"],
        conflicts_with_all = ["FilterArgs", "all", "dry_run", "expected"]
    )]
    id: Option<String>,
    /// All jobs.
    #[arg(long, conflicts_with = "FilterArgs")]
    all: bool,
    #[command(flatten)]
    many: ManyArgs,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct PurgeArgs {
    /// All jobs.
    #[arg(long, required_unless_present = "FilterArgs", conflicts_with = "FilterArgs")]
    all: bool,
    #[command(flatten)]
    many: ManyArgs,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(Debug, Args)]
struct ManyArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only count the jobs that match.
    #[arg(long)]
    dry_run: bool,
    /// Do nothing if over a tenth more jobs match, such as more than `--dry-run` has shown.
    #[arg(long, value_name = "NUMBER", default_value = "0", hide_default_value = true)]
    expected: u64,
}

#[derive(Debug, Args)]
struct HowArgs {
    /// Why, for the log of the server.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// What is done with jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Cancel,
    Retry,
    Purge,
}

/// What was done with them.
#[derive(Debug, Default, Serialize)]
struct Sum {
    jobs: u64,
    /// Running jobs that were asked to stop.
    asked_to_stop: u64,
    /// Jobs for which the quota of their tenant or the backlog had no room.
    refused: u64,
}

pub(super) async fn cancel(args: OneOrManyArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let OneOrManyArgs { id, all, many, how: HowArgs { reason, server } } = args;
    let Some(id) = id else { return many.run(Act::Cancel, all, reason, &server, console).await };
    let request = JobServiceCancelJobRequest { job_id: id.clone(), reason };
    let answer = server.ask(async |server| server.jobs().cancel_job(request).await).await?;
    let how = if answer.state() == JobState::Running { "it runs, and is asked to stop" } else { "cancelled" };
    Ok(console.message(&answer, |_| format!("{}: {how}", sanitized(&id))).await?)
}

pub(super) async fn retry(args: OneOrManyArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let OneOrManyArgs { id, all, many, how: HowArgs { reason, server } } = args;
    let Some(id) = id else { return many.run(Act::Retry, all, reason, &server, console).await };
    let request = RetryJobRequest { job_id: id.clone(), reason };
    let answer = server.ask(async |server| server.jobs().retry_job(request).await).await?;
    Ok(console.message(&answer, |_| format!("{}: it runs again", sanitized(&id))).await?)
}

pub(super) async fn delete(args: DeleteArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let DeleteArgs { id, how: HowArgs { reason, server } } = args;
    let request = DeleteJobRequest { job_id: id.clone(), reason };
    let answer = server.ask(async |server| server.jobs().delete_job(request).await).await?;
    Ok(console.message(&answer, |_| format!("{}: removed", sanitized(&id))).await?)
}

pub(super) async fn purge(args: PurgeArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let PurgeArgs { all, many, how: HowArgs { reason, server } } = args;
    many.run(Act::Purge, all, reason, &server, console).await
}

impl ManyArgs {
    /// Changes all jobs that match, page by page, and shows how many of them are done.
    async fn run(
        self,
        act: Act,
        all: bool,
        reason: String,
        server: &ServerArgs,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let Self { filter, dry_run, expected } = self;
        let mut filter = DetachedJobFilter { all, ..filter.into_filter() };
        if filter.states.is_empty() {
            filter.states = act.states().iter().map(|state| i32::from(*state)).collect();
        }
        let call = server.call(CallArgs::default()).await?;
        // Without the right to list jobs, their number stays unknown.
        let filter = Some(filter);
        let count =
            JobServiceListJobsRequest { filter: filter.clone(), page_size: 1, with_count: true, ..Default::default() };
        let count = call.ask(async |server| server.jobs().list_jobs(count).await).await.ok();
        let total = count.filter(|count| !count.count_is_cut).and_then(|count| count.count);
        let mut sum = Sum::default();
        let mut request = PurgeJobsRequest { filter, dry_run, reason, expected, ..Default::default() };
        loop {
            request.page_token = act.page(&call, request.clone(), &mut sum).await?;
            if request.page_token.is_empty() {
                break;
            }
            if console.format == Format::Text {
                let of = total.map_or_else(String::new, |total| format!(" of {}", thousands(total)));
                let line = format!("{}{of}", thousands(sum.jobs + sum.asked_to_stop + sum.refused));
                let line = if console.err.is_terminal() { format!("\r\x1b[K{line}\r") } else { format!("{line}\n") };
                console.err.bytes(line.as_bytes()).await?;
            }
        }
        Ok(console.report(&sum, || act.text(&sum, dry_run)).await?)
    }
}

impl Act {
    /// The states that it applies to.
    fn states(self) -> &'static [JobState] {
        use JobState::{Blocked, Cancelled, Expired, Failed, Ready, Running, Scheduled, Succeeded};
        match self {
            Self::Cancel => &[Scheduled, Ready, Blocked, Running],
            Self::Retry => &[Failed, Cancelled, Expired],
            Self::Purge => &[Succeeded, Failed, Cancelled, Expired],
        }
    }

    /// Changes a page of jobs, and adds what was done to `sum`. Returns the token of the next page.
    async fn page(self, call: &Call, request: PurgeJobsRequest, sum: &mut Sum) -> Result<String, Failure> {
        let PurgeJobsRequest { filter, dry_run, page_token, reason, expected } = request;
        match self {
            Self::Cancel => {
                let request = CancelJobsRequest { filter, dry_run, page_token, reason, expected };
                let page = call.ask(async |server| server.jobs().cancel_jobs(request).await).await?;
                sum.jobs += page.cancelled;
                sum.asked_to_stop += page.asked_to_stop;
                Ok(page.next_page_token)
            }
            Self::Retry => {
                let request = RetryJobsRequest { filter, dry_run, page_token, reason, expected };
                let page = call.ask(async |server| server.jobs().retry_jobs(request).await).await?;
                sum.jobs += page.retried;
                sum.refused += page.refused;
                Ok(page.next_page_token)
            }
            Self::Purge => {
                let request = PurgeJobsRequest { filter, dry_run, page_token, reason, expected };
                let page = call.ask(async |server| server.jobs().purge_jobs(request).await).await?;
                sum.jobs += page.removed;
                Ok(page.next_page_token)
            }
        }
    }

    fn text(self, sum: &Sum, dry_run: bool) -> String {
        let Sum { jobs, asked_to_stop, refused } = *sum;
        let (jobs, would) = (pluralized(jobs, "job"), if dry_run { "would be " } else { "" });
        match self {
            Self::Cancel => format!("{jobs} {would}cancelled, {asked_to_stop} {would}asked to stop"),
            Self::Retry if dry_run => format!("{jobs} would run again"),
            Self::Retry if refused > 0 => {
                format!("{jobs} run again; no room for {refused}: the quota or the backlog is full")
            }
            Self::Retry => format!("{jobs} run again"),
            Self::Purge => format!("{jobs} {would}removed"),
        }
    }
}

/// A number with a comma before each group of three digits.
fn thousands(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", thousands(number / 1000), number % 1000) }
}
