//! `waterwheel jobs` with a verb: detached jobs, which outlive their calls.

mod acts;
mod filter;
mod groups;

use std::time::{Duration, SystemTime};

use acts::{DeleteArgs, OneOrManyArgs, PurgeArgs};
use clap::{Args, Subcommand};
use filter::FilterArgs;
use groups::GroupCommand;
use tokio::time::{Instant, sleep};
use tonic::{Code, Response, Status};

use super::{
    access::{ReadArgs, ServerArgs},
    connect::{ANSWER_TIMEOUT, CallArgs, Target},
    console::{BAD, Console, FAINT, GOOD, STRONG, WARN, paint},
    failure::{Exit, Failure},
    flags::{JobArgs, any_duration, duration_in, message},
    output::{Format, fitted, message_json, percent, pluralized, row, sanitized, short_duration},
};
use crate::{
    detached::wall_clock,
    proto::{
        CreateJobRequest, DetachedJob, GetJobRequest, GroupJobsRequest, JobGroup, JobOptions, JobProgress,
        JobServiceListJobsRequest, JobState, RetryPolicy, WaitJobRequest, WatchJobRequest, WatchJobResponse,
        job_options::Start, watch_job_response::Event,
    },
};

/// Longest `--expire-in`.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// Time between two attempts to reach the server.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub(super) enum DetachedCommand {
    /// Create a detached job, and print its id once it is durable.
    #[command(after_help = "Example:\n  waterwheel jobs create sha256 \"hello waterwheel\" --id greeting-1")]
    Create(Box<CreateArgs>),
    /// List detached jobs, the newest first.
    #[command(after_help = "Example:\n  waterwheel jobs list --state failed")]
    List(ListArgs),
    /// Count detached jobs by kind, outcome and error, so that many failures are read as few.
    ///
    /// In an error, `#` stands for ids, numbers and addresses.
    ///
    /// The subcommands are about groups of jobs, for each of which another job waits.
    #[command(after_help = "Example:\n  waterwheel jobs group --state failed", args_conflicts_with_subcommands = true)]
    Group {
        #[command(subcommand)]
        action: Option<GroupCommand>,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        server: ReadArgs,
    },
    /// Show a detached job with its attempts.
    #[command(after_help = "Example:\n  waterwheel jobs get $ENDED")]
    Get {
        /// Id of the job.
        id: String,
        #[command(flatten)]
        server: ReadArgs,
    },
    /// Wait for the end of a detached job, and print its output. Ctrl-C leaves the job alone.
    #[command(after_help = "Example:\n  waterwheel jobs wait $ENDED")]
    Wait(OneArgs),
    /// Follow a detached job to its end: its output as it is made, its states, and its progress.
    ///
    /// If the connection breaks, it connects again for up to 10 s, and continues where it was.
    #[command(after_help = "Example:\n  waterwheel jobs watch $ENDED")]
    Watch(WatchArgs),
    /// Cancel a detached job, or all that match and have not ended.
    #[command(
        after_help = "Example:\n  waterwheel jobs cancel $DETACHED\n  waterwheel jobs cancel --kind sleep --dry-run"
    )]
    Cancel(OneOrManyArgs),
    /// Run a detached job again that has ended, or all that match and failed, expired or were cancelled.
    #[command(
        after_help = "Example:\n  waterwheel jobs retry $ENDED\n  waterwheel jobs retry --kind sleep --reason \"bank is back\""
    )]
    Retry(OneOrManyArgs),
    /// Remove a detached job that has ended.
    #[command(after_help = "Example:\n  waterwheel jobs delete $ENDED")]
    Delete(DeleteArgs),
    /// Remove all detached jobs that have ended and match.
    #[command(after_help = "Example:\n  waterwheel jobs purge --state succeeded")]
    Purge(PurgeArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Id of the job; the same id is the same job [default: drawn by the server].
    #[arg(long, visible_alias = "job-id", value_name = "ID", default_value = "", hide_default_value = true)]
    id: String,
    /// Start it this long after its creation.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    delay: Option<Duration>,
    /// Stop waiting and trying this long after its creation [default: never].
    #[arg(long, value_name = "DURATION", value_parser = duration_in(Duration::ZERO..=YEAR))]
    expire_in: Option<Duration>,
    /// Maximum number of attempts [default: those of the kind].
    #[arg(long, value_name = "NUMBER", default_value = "0", hide_default_value = true)]
    attempts: u32,
    /// Keep its result this long [default: as the kind says].
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    retain: Option<Duration>,
    /// Id of an open group that it joins.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    group: String,
    /// Wait for its end, and print its output.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    /// Id of the job.
    id: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// Id of the job.
    id: String,
    /// Show what came after this sequence number, which JSON output has with each event.
    #[arg(long, value_name = "SEQUENCE", default_value = "0", hide_default_value = true)]
    from: u64,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Maximum number of jobs to show.
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    server: ReadArgs,
}

pub(super) async fn run(command: DetachedCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    match command {
        DetachedCommand::Create(args) => return create(*args, console).await,
        DetachedCommand::List(args) => list(args, console).await?,
        DetachedCommand::Get { id, server } => {
            let request = GetJobRequest { job_id: id, with_payload: false };
            let answer = server.ask(async |server| server.jobs().get_job(request).await).await?;
            console.message(&answer.job.unwrap_or_default(), text).await?;
        }
        DetachedCommand::Wait(OneArgs { id, server }) => return await_end(&server, id, console).await,
        DetachedCommand::Watch(args) => return watch(args, console).await,
        DetachedCommand::Group { action: Some(action), .. } => groups::run(action, console).await?,
        DetachedCommand::Group { action: None, filter, server } => group(filter, &server, console).await?,
        DetachedCommand::Cancel(args) => acts::cancel(args, console).await?,
        DetachedCommand::Retry(args) => acts::retry(args, console).await?,
        DetachedCommand::Delete(args) => acts::delete(args, console).await?,
        DetachedCommand::Purge(args) => acts::purge(args, console).await?,
    }
    Ok(Exit::Done)
}

async fn create(args: CreateArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let CreateArgs { job, id, delay, expire_in, attempts, retain, group, wait, server } = args;
    let options = JobOptions {
        start: delay.map(|delay| Start::Delay(message(delay))),
        expire_time: expire_in.map(|after| (SystemTime::from(wall_clock()()) + after).into()),
        retry: Some(RetryPolicy { max_attempts: attempts, ..RetryPolicy::default() }),
        retain_for: retain.map(message),
        group,
    };
    let request = CreateJobRequest { job: Some(job.into_job().await?), job_id: id, options: Some(options) };
    let created = server.ask(async |server| server.jobs().create_job(request).await).await?;
    if wait {
        return await_end(&server, created.job_id, console).await;
    }
    console.message(&created, |created| sanitized(&created.job_id)).await?;
    Ok(Exit::Done)
}

async fn list(args: ListArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let ListArgs { filter, limit, server } = args;
    let filter = Some(filter.into_filter());
    let mut request = JobServiceListJobsRequest { filter, page_size: limit, ..JobServiceListJobsRequest::default() };
    // A page has no job if none of those that the server looked at matches.
    let answer = loop {
        let answer = server.ask(async |server| server.jobs().list_jobs(request.clone()).await).await?;
        if !answer.jobs.is_empty() || answer.next_page_token.is_empty() {
            break answer;
        }
        request.page_token = answer.next_page_token;
    };
    let heads = ["job", "state", ">age", ">tries", "kind", "tenant", "message"];
    let now = wall_clock()().into();
    let rows = answer.jobs.iter().map(|job| cells(job, now)).collect();
    let lines = fitted(&heads, rows, &[6, 5, 4], console.out.width());
    let more = if answer.next_page_token.is_empty() { "" } else { ", and there are more" };
    let summary = format!("{}{more}, the newest first", pluralized(answer.jobs.len(), "job"));
    Ok(console.list(&answer, &lines, &summary).await?)
}

async fn group(filter: FilterArgs, server: &ReadArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let request = GroupJobsRequest { filter: Some(filter.into_filter()) };
    let answer = server.ask(async |server| server.jobs().group_jobs(request).await).await?;
    let cells = |group: &JobGroup| {
        let JobGroup { count, kind, outcome, message, tenant_count, .. } = group;
        row![count, paint(STRONG, sanitized(kind)), sanitized(outcome), tenant_count, sanitized(message)]
    };
    let heads = [">jobs", "kind", "outcome", ">tenants", "error"];
    let lines = fitted(&heads, answer.groups.iter().map(cells).collect(), &[4], console.out.width());
    let jobs = answer.others + answer.groups.iter().map(|group| group.count).sum::<u64>();
    let cut = if answer.is_cut { "; older ones were not counted" } else { "" };
    let summary = format!("{} in {}{cut}", pluralized(jobs, "job"), pluralized(answer.groups.len(), "group"));
    Ok(console.list(&answer, &lines, &summary).await?)
}

fn cells(job: &DetachedJob, now: SystemTime) -> Vec<String> {
    let work = job.job.clone().unwrap_or_default();
    let created = job.create_time.and_then(|time| SystemTime::try_from(time).ok());
    let age = created.and_then(|created| now.duration_since(created).ok()).unwrap_or_default();
    let tries = job.attempts.last().map_or(0, |attempt| attempt.number);
    // Of the last failure.
    let message = job.attempts.iter().rev().find(|attempt| !attempt.message.is_empty());
    let message = message.and_then(|attempt| attempt.message.lines().next()).unwrap_or_default();
    let [id, kind, tenant, message] = [job.job_id.as_str(), &work.kind, &work.tenant, message].map(sanitized);
    row![paint(STRONG, id), state(job), short_duration(age), tries, kind, tenant, message]
}

pub(super) fn state(job: &DetachedJob) -> String {
    let name = job.state().as_str_name().trim_start_matches("JOB_STATE_").to_lowercase();
    match job.state() {
        JobState::Succeeded => name,
        JobState::Running => paint(GOOD, name),
        JobState::Failed | JobState::Expired => paint(BAD, name),
        _ => paint(WARN, name),
    }
}

/// Waits for the end of a job. Calls again whenever a call reaches its deadline.
async fn await_end(server: &ServerArgs, job_id: String, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let call = server.call(CallArgs::default()).await?;
    let job = loop {
        let request = WaitJobRequest { job_id: job_id.clone() };
        let answer = call.ask(async |server| server.jobs().wait_job(request).await).await?;
        let job = answer.job.unwrap_or_default();
        if job.state() >= JobState::Succeeded {
            break job;
        }
    };
    if job.state() != JobState::Succeeded || console.format == Format::Json {
        console.message(&job, text).await?;
    } else {
        console.out.output(&job.output).await?;
    }
    Ok(exit_of(job.state()))
}

/// The job with its attempts.
fn text(job: &DetachedJob) -> String {
    let kind = sanitized(&job.job.clone().unwrap_or_default().kind);
    format!("{}  {}  kind {kind}{}", paint(STRONG, sanitized(&job.job_id)), state(job), history(job))
}

/// A line for each attempt of a job, and one for its progress; each begins with a line end.
pub(super) fn history(job: &DetachedJob) -> String {
    let mut text = String::new();
    for attempt in &job.attempts {
        let outcome = match (attempt.outcome.as_str(), attempt.end_time) {
            ("", None) => "runs",
            ("", Some(_)) => "lease lost",
            (outcome, _) => outcome,
        };
        let [worker, outcome, runner] = [attempt.worker.as_str(), outcome, &attempt.runner].map(sanitized);
        let line = format!("\n  attempt {}  {worker}  {outcome}  {runner}", attempt.number);
        text.push_str(line.trim_end());
        if attempt.code != 0 {
            let code = Code::from_i32(attempt.code).description();
            text.push_str(&format!("  {code}: {}", sanitized(&attempt.message)));
        }
    }
    if let Some(JobProgress { fraction, message, time: _ }) = &job.progress {
        text.push_str(format!("\n  progress {}  {}", percent(*fraction), sanitized(message)).trim_end());
    }
    text
}

fn exit_of(end: JobState) -> Exit {
    if end == JobState::Succeeded { Exit::Done } else { Exit::Failed }
}

/// Follows a job over broken connections. Output goes to standard output, everything else to standard error.
async fn watch(args: WatchArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let WatchArgs { id, from, server } = args;
    let call = server.call(CallArgs::default()).await?;
    let mut client = call.connection.jobs();
    let (mut from_sequence, mut heard_at) = (from, Instant::now());
    loop {
        let request = WatchJobRequest { job_id: id.clone(), from_sequence };
        let broken = match client.watch_job(request).await.map(Response::into_inner) {
            Err(status) => status,
            Ok(mut events) => loop {
                match events.message().await {
                    Ok(Some(event)) => {
                        (from_sequence, heard_at) = (event.sequence, Instant::now());
                        if let Some(end) = show(event, console).await? {
                            return Ok(exit_of(end));
                        }
                    }
                    Ok(None) => break Status::unavailable("the server ended the call"),
                    Err(status) => break status,
                }
            },
        };
        if broken.code() != Code::Unavailable || heard_at.elapsed() > ANSWER_TIMEOUT {
            return Err(Failure::of_status(broken, &server.server));
        }
        sleep(AGAIN).await;
    }
}

/// Shows an event. Returns the final state of the job if this is the last event.
async fn show(response: WatchJobResponse, console: &mut Console<'_>) -> Result<Option<JobState>, Failure> {
    let end = match &response.event {
        Some(Event::Job(job)) => Some(job.state()).filter(|state| *state >= JobState::Succeeded),
        _ => None,
    };
    if console.format == Format::Json {
        console.out.line(&message_json(&response)?).await?;
        return Ok(end);
    }
    match response.event {
        Some(Event::Job(job)) => console.err.line(&format!("{}  {}", sanitized(&job.job_id), state(&job))).await?,
        Some(Event::Output(output)) => {
            if output.offset == 0 && output.attempt > 1 {
                let line = format!("the output of attempt {} begins", output.attempt);
                console.err.line(&paint(FAINT, line)).await?;
            }
            console.out.bytes(&output.data).await?;
        }
        Some(Event::Progress(progress)) => {
            let line = format!("{}  {}", percent(progress.fraction), sanitized(&progress.message));
            console.err.line(&paint(FAINT, line.trim_end())).await?;
        }
        None => {}
    }
    Ok(end)
}
