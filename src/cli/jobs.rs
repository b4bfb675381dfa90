//! `waterwheel jobs` and `waterwheel explain`. The subcommands of `jobs` are about detached jobs; see `detached.rs`.

use std::time::Duration;

use clap::Args;

use super::{
    connect::Target,
    console::{BAD, Console, GOOD, STRONG, WARN, paint},
    detached::{self, DetachedCommand},
    failure::{Exit, Failure, indented},
    flags::{any_duration, message, one_of},
    operate::OperatorArgs,
    output::{fitted, pluralized, row, sanitized, seconds, short, short_duration},
};
use crate::proto::{
    Binding, EndedState, ExplainRequest, ExplainResponse, HeldState, JobOrder, JobStage, ListJobsRequest,
    ListJobsResponse, ListedJob, RunningState, StopRequest, StoredState, Waterfall, explain_response::State,
};

/// List queued and running jobs, and the last ones that ended.
///
/// The newest come first. Each pool remembers its last ended jobs; pool.NAME.ended_jobs sets how many.
/// "waterwheel explain" shows more about one of them.
///
/// The subcommands are about detached jobs, which are in the store, and not in this list.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  waterwheel jobs --state failed --older 10s",
    args_conflicts_with_subcommands = true
)]
pub(super) struct JobsArgs {
    #[command(subcommand)]
    action: Option<DetachedCommand>,
    /// Only jobs in these states, separated by commas [default: all].
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = one_of([
        ("waiting", JobStage::Waiting, "Its caller waits for capacity"),
        ("queued", JobStage::Queued, "It is queued"),
        ("running", JobStage::Running, "It runs"),
        ("completed", JobStage::Completed, "It completed"),
        ("failed", JobStage::Failed, "It ended without a result"),
    ]))]
    state: Vec<JobStage>,
    /// Only jobs of this pool.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    /// Only jobs of this kind.
    #[arg(long, value_name = "KIND", default_value = "", hide_default_value = true)]
    kind: String,
    /// Only jobs of this tenant; "" is the default one.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only jobs of the call with this request id.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
    /// Only jobs that are at least this old.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    older: Option<Duration>,
    /// Only jobs that have run for pool.NAME.stale_after or longer.
    #[arg(long)]
    stale: bool,
    /// Show the oldest first.
    #[arg(long)]
    oldest: bool,
    /// Maximum number of jobs to show.
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    operator: OperatorArgs,
}

/// Show the state of a job and what it waits for, or how it ended.
///
/// Each pool remembers its last ended jobs; pool.NAME.ended_jobs sets how many. The store keeps detached jobs.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel explain $JOB")]
pub(super) struct ExplainArgs {
    /// Any id of the job, from an answer, an error, a list or the log; or the request id of its call.
    id: String,
    #[command(flatten)]
    pub(super) operator: OperatorArgs,
}

pub(super) async fn run(args: JobsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let JobsArgs { action, state, pool, kind, tenant, request_id, older, stale, oldest, limit, operator } = args;
    if let Some(action) = action {
        return detached::run(action, console).await;
    }
    let request = ListJobsRequest {
        stages: state.into_iter().map(i32::from).collect(),
        pool,
        kind,
        tenant,
        request_id,
        older: older.map(message),
        order: if oldest { JobOrder::Oldest } else { JobOrder::Newest }.into(),
        limit,
        stale,
    };
    let answer = operator.ask(async |server| server.admin().list_jobs(request).await).await?;
    console.list(&answer, &lines(&answer, console.out.width()), &summary(&answer)).await?;
    Ok(Exit::Done)
}

/// A line for each job, no longer than `width`.
pub(super) fn lines(answer: &ListJobsResponse, width: Option<usize>) -> Vec<String> {
    let heads = ["job", "state", ">age", ">run", "kind", "tenant", "request id", "message"];
    let mut rows: Vec<_> = answer.jobs.iter().map(cells).collect();
    let has_messages = answer.jobs.iter().any(|job| !job.message.is_empty());
    let heads = &heads[..heads.len() - usize::from(!has_messages)];
    rows.iter_mut().for_each(|row| row.truncate(heads.len()));
    // Columns that callers and handlers fill are shortened, the last first.
    fitted(heads, rows, &[7, 6, 5, 4][usize::from(!has_messages)..], width)
}

fn cells(job: &ListedJob) -> Vec<String> {
    let ListedJob { job_id, request_id, kind, tenant, age, run, detached_job_id, message, .. } = job;
    let run = if run.is_some() { short(*run) } else { "-".to_owned() };
    // The id that the caller was told.
    let id = if detached_job_id.is_empty() { job_id } else { detached_job_id };
    let [id, kind, tenant, request_id, message] = [id, kind, tenant, request_id, message].map(|text| sanitized(text));
    row![paint(STRONG, id), state(job), short(*age), run, kind, tenant, request_id, message]
}

/// State of a job, with the reason if it failed.
fn state(job: &ListedJob) -> String {
    match job.stage() {
        JobStage::Waiting => paint(WARN, "waiting"),
        JobStage::Queued => paint(WARN, "queued"),
        JobStage::Running => paint(GOOD, "running"),
        JobStage::Completed => "completed".to_owned(),
        JobStage::Failed | JobStage::Stored | JobStage::Unspecified => paint(BAD, sanitized(&job.outcome)),
    }
}

pub(super) fn summary(answer: &ListJobsResponse) -> String {
    let shown = answer.jobs.len() as u64;
    let first = if answer.order() == JobOrder::Oldest { "oldest" } else { "newest" };
    match answer.all {
        0 => "no job".to_owned(),
        all if all > shown => format!("{shown} of {all} jobs, the {first} first"),
        all => format!("{}, the {first} first", pluralized(all, "job")),
    }
}

pub(super) async fn explain(args: ExplainArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ExplainArgs { id, operator } = args;
    let request = ExplainRequest { id };
    let answer = operator.ask(async |server| server.admin().explain(request).await).await?;
    console.message(&answer, explained).await?;
    Ok(Exit::Done)
}

fn explained(answer: &ExplainResponse) -> String {
    let ExplainResponse { job_id, pool, kind, state, detached_job_id, detached, .. } = answer;
    let id = if detached_job_id.is_empty() { job_id } else { detached_job_id };
    let pool = if pool.is_empty() { String::new() } else { format!("  pool {}", sanitized(pool)) };
    let head = format!("{}  kind {}{pool}", paint(STRONG, sanitized(id)), sanitized(kind));
    let lines = match state {
        Some(State::Held(held)) => self::held(held),
        Some(State::Running(running)) => self::running(running),
        Some(State::Ended(ended)) => self::ended(ended),
        Some(State::Stored(stored)) => self::stored(stored),
        None => String::new(),
    };
    let detached = detached.as_ref().map(|job| format!("  {}{}\n", detached::state(job), detached::history(job)));
    let detached = detached.unwrap_or_default();
    format!("{head}\n{}{lines}{detached}{}", names(answer), others(answer))
}

/// Its names besides its id.
fn names(answer: &ExplainResponse) -> String {
    let ExplainResponse { job_id, tenant, request_id, principal, runner, trace_id, detached_job_id, .. } = answer;
    // That of other jobs is in the first line.
    let job = if detached_job_id.is_empty() { "" } else { job_id };
    let names = [("tenant", tenant.as_str()), ("caller", principal), ("request id", request_id), ("trace", trace_id)];
    let known = names.into_iter().chain([("in its pool", job), ("in", runner)]).filter(|(_, name)| !name.is_empty());
    let known: Vec<_> = known.map(|(what, name)| format!("{what} {}", sanitized(name))).collect();
    if known.is_empty() { String::new() } else { format!("  {}\n", known.join("  ")) }
}

/// The other jobs of its request id.
fn others(answer: &ExplainResponse) -> String {
    match &sanitized(&answer.other_job_ids.join(", "))[..] {
        "" => String::new(),
        ids => format!("  other jobs of this request id, the newest first: {ids}\n"),
    }
}

fn held(held: &HeldState) -> String {
    let HeldState { position, ahead, expected_start, bound_by: _, age, left, blocker, until } = held;
    let place = match ahead {
        Some(ahead) => format!("queued at {position}, {ahead} ahead"),
        None if held.bound_by() == Binding::Program => "has a worker, and waits for a process".to_owned(),
        None => format!("waits for capacity at {position}"),
    };
    let expected = expected_start.map(|start| format!(", expected to start in {}", short(Some(start))));
    let (place, expected, cause) = (paint(WARN, place), expected.unwrap_or_default(), because(held.bound_by()));
    let link = if blocker.starts_with("by ") { " " } else { ": " };
    let blocker = if blocker.is_empty() { String::new() } else { format!("{link}{}", sanitized(blocker)) };
    let [age, left] = [age, left].map(|time| short(*time));
    let blocker = match until {
        Some(until) if held.bound_by() == Binding::Program => format!("{blocker}; the next starts at {until}"),
        Some(until) => format!(" until {until}"),
        None => blocker,
    };
    format!("  {place}{expected}\n  because {cause}{blocker}\n  arrived {age} ago, {left} left\n")
}

/// What a detached job waits for that no pool of the server has.
fn stored(stored: &StoredState) -> String {
    let StoredState { bound_by: _, blocker, until, detail } = stored;
    let blocker = match stored.bound_by() {
        // The sentence has the value of a limit.
        Binding::OrderingKey if !blocker.is_empty() => format!(": {}", sanitized(blocker)),
        _ => String::new(),
    };
    let ends = if stored.bound_by() == Binding::Program { "; the next starts at" } else { ", until" };
    let until = until.map(|until| format!("{ends} {until}")).unwrap_or_default();
    format!("  {}{blocker}{until}\n", sanitized(detail))
}

fn because(binding: Binding) -> &'static str {
    match binding {
        Binding::Unspecified
        | Binding::StartTime
        | Binding::Group
        | Binding::Kind
        | Binding::Drain
        | Binding::Store
        | Binding::OtherServer
        | Binding::Ended => "of a cause that this client does not know",
        Binding::Pause => "its pool is paused",
        Binding::Room => "the queue is full",
        Binding::Workers => "no worker is free",
        Binding::NoWorker => "it waits for a worker to attach",
        Binding::Tenants => "no worker is free, and tenants that had less worker time go first",
        Binding::OrderingKey => "an earlier job has the same ordering key",
        Binding::LimitConcurrency => "its kind is at its concurrency limit",
        Binding::LimitRate => "its kind is at its rate limit",
        Binding::LimitKeyConcurrency => "its limit key is at its concurrency limit",
        Binding::LimitKeyRate => "its limit key is at its rate limit",
        Binding::LimitHold => "its kind is held by its handler",
        Binding::LimitKeyHold => "its limit key is held by its handler",
        Binding::Program => "the processes of its program keep ending",
    }
}

fn running(running: &RunningState) -> String {
    let RunningState { worker, queue, run, left, stopping: _, stuck, stop } = running;
    let state = match stop {
        Some(_) if *stuck => paint(BAD, "ignored the request to stop"),
        Some(_) => paint(WARN, "asked to stop"),
        None => paint(GOOD, "runs"),
    };
    let [queue, run, left] = [queue, run, left].map(|it| short(*it));
    let mut text = format!("  {state} on worker {worker} for {run}, after {queue} in the queue\n  {left} left\n");
    if let Some(StopRequest { reason, since, grace_left }) = stop {
        let ([since, left], reason) = ([since, grace_left].map(|it| short(*it)), sanitized(reason));
        text.push_str(&format!("  asked {since} ago, because of {reason}; {left} of its grace left\n"));
    }
    text
}

fn ended(ended: &EndedState) -> String {
    let EndedState { outcome, started, rung, waterfall, since, message, program } = ended;
    let style = if outcome == "COMPLETED" { GOOD } else { BAD };
    let waterfall = waterfall.unwrap_or_default();
    let Waterfall { budget_seconds, queue_seconds, run_seconds, left_seconds, worker } = waterfall;
    let [budget, queue, run, left] =
        [budget_seconds, queue_seconds, run_seconds, left_seconds].map(|part| short_duration(seconds(part)));
    let run = match started {
        true => format!("{run} running on worker {worker}"),
        false => "not started".to_owned(),
    };
    let (outcome, since) = (paint(style, sanitized(outcome)), short(*since));
    let message = if message.is_empty() { String::new() } else { format!(": {}", indented(&sanitized(message))) };
    let mut text = format!("  {outcome} {since} ago{message}\n  {budget} budget: {queue} queued, {run}, {left} left\n");
    if !rung.is_empty() {
        text.push_str(&format!("  stop ladder: {}\n", sanitized(rung)));
    }
    if let Some(program) = program.as_ref().filter(|program| !program.stderr.is_empty()) {
        text.push_str(&format!("  its standard error ended in\n    {}\n", indented(&sanitized(&program.stderr))));
    }
    text
}

#[cfg(test)]
#[path = "tests/jobs.rs"]
mod tests;
