//! `waterwheel jobs` with a verb: detached jobs, which outlive their calls.

mod watch;

use std::time::Duration;

use clap::{Args, Subcommand};
use tonic::Code;

use super::{
    call::{Call, CallArgs},
    connect::{Connection, ServerArgs},
    console::{BAD, Console, FAINT, GOOD, STRONG, WARN, paint},
    exit::Exit,
    failure::Failure,
    job::{JobArgs, message, one_of},
    output::{
        Format, OutputArgs, counted, json, plain,
        table::{Align, fitted},
    },
};
use crate::proto::{
    CreateJobRequest, DeleteJobRequest, DetachedJob, DetachedJobFilter, GetJobRequest, JobOptions,
    JobServiceCancelJobRequest, JobServiceListJobsRequest, JobState, PurgeJobsRequest, RetryJobRequest, WaitJobRequest,
    job_options::Start, job_service_client::JobServiceClient,
};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Subcommand)]
pub(super) enum DetachedCommand {
    /// Create a detached job, and print its id once it is durable.
    #[command(after_help = "Example:\n  waterwheel jobs create sha256 \"hello waterwheel\" --id greeting-1")]
    Create(CreateArgs),
    /// List detached jobs, the newest first.
    #[command(after_help = "Example:\n  waterwheel jobs list --state failed")]
    List(ListArgs),
    /// Show a detached job with its attempts.
    #[command(after_help = "Example:\n  waterwheel jobs get $ENDED")]
    Get(OneArgs),
    /// Wait for the end of a detached job, and print its output. Ctrl-C leaves the job alone.
    #[command(after_help = "Example:\n  waterwheel jobs wait $ENDED")]
    Wait(OneArgs),
    /// Follow a detached job to its end: its output as it is made, its states, and its progress.
    ///
    /// Where the server goes away, it asks again for up to 10 s, and goes on where it was.
    #[command(after_help = "Example:\n  waterwheel jobs watch $ENDED")]
    Watch(WatchArgs),
    /// Cancel a detached job.
    #[command(after_help = "Example:\n  waterwheel jobs cancel $DETACHED")]
    Cancel(OneArgs),
    /// Run a detached job again that has ended, such as one that failed.
    #[command(after_help = "Example:\n  waterwheel jobs retry $ENDED")]
    Retry(OneArgs),
    /// Remove a detached job that has ended.
    #[command(after_help = "Example:\n  waterwheel jobs delete $ENDED")]
    Delete(OneArgs),
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
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    delay: Option<Duration>,
    /// Wait for its end, and print its output.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    to: ToArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    /// Id of the job.
    id: String,
    #[command(flatten)]
    to: ToArgs,
}

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// Id of the job.
    id: String,
    /// Show what came after this sequence number, which JSON output has with each event.
    #[arg(long, value_name = "SEQUENCE", default_value = "0", hide_default_value = true)]
    from: u64,
    #[command(flatten)]
    to: ToArgs,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Most jobs to show.
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    to: ToArgs,
}

#[derive(Debug, Args)]
pub(super) struct PurgeArgs {
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    to: ToArgs,
}

#[derive(Debug, Args)]
struct FilterArgs {
    /// Only jobs in these states, separated by commas [default: all].
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = one_of([
        ("scheduled", JobState::Scheduled, "It waits for a time"),
        ("ready", JobState::Ready, "It waits for a worker"),
        ("blocked", JobState::Blocked, "It waits for its ordering key"),
        ("running", JobState::Running, "It runs"),
        ("succeeded", JobState::Succeeded, "It has its result"),
        ("failed", JobState::Failed, "It is a dead letter"),
        ("cancelled", JobState::Cancelled, "It was cancelled"),
        ("expired", JobState::Expired, "Its time was over"),
    ]))]
    state: Vec<JobState>,
    /// Only jobs of this kind.
    #[arg(long, value_name = "KIND", default_value = "", hide_default_value = true)]
    kind: String,
    /// Only jobs of this tenant; "" is the default one.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

/// The server, and the form of the output.
#[derive(Debug, Args)]
struct ToArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A connection for one command.
struct Asker<'a> {
    to: &'a ToArgs,
    call: Call,
    client: JobServiceClient<Connection>,
}

impl DetachedCommand {
    pub(super) fn format(&self) -> Format {
        let to = match self {
            Self::Create(args) => &args.to,
            Self::List(args) => &args.to,
            Self::Purge(args) => &args.to,
            Self::Watch(args) => &args.to,
            Self::Get(args) | Self::Wait(args) | Self::Cancel(args) | Self::Retry(args) | Self::Delete(args) => {
                &args.to
            }
        };
        to.output.format
    }
}

pub(super) async fn run(command: DetachedCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    match command {
        DetachedCommand::Create(args) => create(args, console).await,
        DetachedCommand::List(args) => list(args, console).await,
        DetachedCommand::Get(OneArgs { id, to }) => {
            let mut asker = Asker::connect(&to).await?;
            let request = asker.call.request(GetJobRequest { job_id: id, with_payload: false });
            let answer = asker.call.wait(asker.client.get_job(request)).await?.into_inner();
            asker.show(&answer.job.unwrap_or_default(), console).await
        }
        DetachedCommand::Wait(OneArgs { id, to }) => Asker::connect(&to).await?.wait(id, console).await,
        DetachedCommand::Watch(args) => watch::watch(args, console).await,
        DetachedCommand::Cancel(OneArgs { id, to }) => {
            let mut asker = Asker::connect(&to).await?;
            let request = asker.call.request(JobServiceCancelJobRequest { job_id: id.clone() });
            let answer = asker.call.wait(asker.client.cancel_job(request)).await?.into_inner();
            let how = if answer.state() == JobState::Running { "it runs, and is asked to stop" } else { "cancelled" };
            asker.say(&answer, format!("{}: {how}", plain(&id)), console).await
        }
        DetachedCommand::Retry(OneArgs { id, to }) => {
            let mut asker = Asker::connect(&to).await?;
            let request = asker.call.request(RetryJobRequest { job_id: id.clone() });
            let answer = asker.call.wait(asker.client.retry_job(request)).await?.into_inner();
            asker.say(&answer, format!("{}: it runs again", plain(&id)), console).await
        }
        DetachedCommand::Delete(OneArgs { id, to }) => {
            let mut asker = Asker::connect(&to).await?;
            let request = asker.call.request(DeleteJobRequest { job_id: id.clone() });
            let answer = asker.call.wait(asker.client.delete_job(request)).await?.into_inner();
            asker.say(&answer, format!("{}: removed", plain(&id)), console).await
        }
        DetachedCommand::Purge(PurgeArgs { filter, to }) => {
            let mut asker = Asker::connect(&to).await?;
            let request = asker.call.request(PurgeJobsRequest { filter: Some(filter.into_filter()) });
            let answer = asker.call.wait(asker.client.purge_jobs(request)).await?.into_inner();
            let removed = counted(usize::try_from(answer.removed).unwrap_or(usize::MAX), "job");
            asker.say(&answer, format!("{removed} removed"), console).await
        }
    }
}

async fn create(args: CreateArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let CreateArgs { job, id, delay, wait, to } = args;
    let options = JobOptions { start: delay.map(|delay| Start::Delay(message(delay))), ..JobOptions::default() };
    let request = CreateJobRequest { job: Some(job.into_job().await?), job_id: id, options: Some(options) };
    let mut asker = Asker::connect(&to).await?;
    let request = asker.call.request(request);
    let created = asker.call.wait(asker.client.create_job(request)).await?.into_inner();
    if wait {
        return asker.wait(created.job_id, console).await;
    }
    asker.say(&created, plain(&created.job_id), console).await
}

async fn list(args: ListArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ListArgs { filter, limit, to } = args;
    let mut asker = Asker::connect(&to).await?;
    let filter = Some(filter.into_filter());
    let request = JobServiceListJobsRequest { filter, page_size: limit, page_token: String::new() };
    let answer = asker.call.wait(asker.client.list_jobs(asker.call.request(request))).await?.into_inner();
    if to.output.format == Format::Json {
        console.out.line(&json::message(&answer)?).await?;
        return Ok(Exit::Done);
    }
    if !answer.jobs.is_empty() {
        let mut rows = vec![["job", "state", "tries", "kind", "tenant"].map(|cell| paint(FAINT, cell)).to_vec()];
        rows.extend(answer.jobs.iter().map(row));
        let columns = [Align::Left, Align::Left, Align::Right, Align::Left, Align::Left];
        let lines = fitted(&columns, &mut rows, &[4, 3], console.out.width());
        console.out.text(&(lines.join("\n") + "\n")).await?;
    }
    let more = if answer.next_page_token.is_empty() { "" } else { ", and there are more" };
    let summary = format!("{}{more}, the newest first", counted(answer.jobs.len(), "job"));
    console.err.line(&paint(FAINT, summary)).await?;
    Ok(Exit::Done)
}

fn row(job: &DetachedJob) -> Vec<String> {
    let work = job.job.clone().unwrap_or_default();
    let tries = job.attempts.last().map_or(0, |attempt| attempt.number);
    vec![paint(STRONG, plain(&job.job_id)), state(job), tries.to_string(), plain(&work.kind), plain(&work.tenant)]
}

fn state(job: &DetachedJob) -> String {
    let name = job.state().as_str_name().trim_start_matches("JOB_STATE_").to_lowercase();
    match job.state() {
        JobState::Succeeded => name,
        JobState::Running => paint(GOOD, name),
        JobState::Failed | JobState::Expired => paint(BAD, name),
        _ => paint(WARN, name),
    }
}

impl FilterArgs {
    fn into_filter(self) -> DetachedJobFilter {
        let Self { state, kind, tenant } = self;
        let states = state.into_iter().map(i32::from).collect();
        DetachedJobFilter { states, kind, tenant, ..DetachedJobFilter::default() }
    }
}

impl<'a> Asker<'a> {
    async fn connect(to: &'a ToArgs) -> Result<Self, Failure> {
        let patient = CallArgs { deadline: Some(PATIENCE), ..CallArgs::none() };
        let (call, connection) = Call::begin(&to.server.server, &to.server.access, patient).await?;
        Ok(Self { to, call, client: connection.jobs() })
    }

    /// Asks again whenever a call has reached its deadline.
    async fn wait(mut self, id: String, console: &mut Console<'_>) -> Result<Exit, Failure> {
        let job = loop {
            // A wait outlasts the deadline of the other calls.
            let answer = self.client.wait_job(WaitJobRequest { job_id: id.clone() }).await;
            let answer = answer.map_err(|status| Failure::of_status(status, &self.to.server.server))?;
            let job = answer.into_inner().job.unwrap_or_default();
            if job.state() >= JobState::Succeeded {
                break job;
            }
        };
        if job.state() != JobState::Succeeded || self.to.output.format == Format::Json {
            self.show(&job, console).await?;
        } else {
            console.out.bytes(&job.output).await?;
            if console.out.is_terminal() && !job.output.ends_with(b"\n") {
                console.out.bytes(b"\n").await?;
            }
        }
        Ok(if job.state() == JobState::Succeeded { Exit::Done } else { Exit::Failed })
    }

    async fn show(&self, job: &DetachedJob, console: &mut Console<'_>) -> Result<Exit, Failure> {
        let kind = plain(&job.job.clone().unwrap_or_default().kind);
        let mut text = format!("{}  {}  kind {kind}", paint(STRONG, plain(&job.job_id)), state(job));
        for attempt in &job.attempts {
            let outcome = if attempt.outcome.is_empty() { "lease lost" } else { &attempt.outcome };
            let code = Code::from_i32(attempt.code).description();
            let line = format!("\n  attempt {}  {}  {}", attempt.number, plain(&attempt.worker), plain(outcome));
            text.push_str(&line);
            if attempt.code != 0 {
                text.push_str(&format!("  {code}: {}", plain(&attempt.message)));
            }
        }
        self.say(job, text, console).await
    }

    async fn say<M: prost::Name>(&self, answer: &M, text: String, console: &mut Console<'_>) -> Result<Exit, Failure> {
        let line = match self.to.output.format {
            Format::Text => text,
            Format::Json => json::message(answer)?,
        };
        console.out.line(&line).await?;
        Ok(Exit::Done)
    }
}
