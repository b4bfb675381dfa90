//! `waterwheel jobs`. Its subcommands are about detached jobs; see `detached.rs`.

use std::time::Duration;

use clap::Args;

use super::{
    console::{BAD, Console, FAINT, GOOD, STRONG, WARN, paint},
    detached::{self, DetachedCommand},
    failure::{Exit, Failure},
    flags::{any_duration, message, one_of},
    operate::OperatorArgs,
    output::{Align, Format, duration, fitted, message_json, pluralized, sanitized, short_duration},
};
use crate::proto::{JobOrder, JobStage, ListJobsRequest, ListJobsResponse, ListedJob};

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
    /// Show the oldest first.
    #[arg(long)]
    oldest: bool,
    /// Most jobs to show.
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    operator: OperatorArgs,
}

pub(super) async fn run(args: JobsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let JobsArgs { action, state, pool, kind, tenant, request_id, older, oldest, limit, operator } = args;
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
    };
    let answer = operator.ask(request, async |server, request| server.admin().list_jobs(request).await).await?;
    match console.format {
        Format::Json => console.out.line(&message_json(&answer)?).await?,
        Format::Text => {
            console.out.text(&text(&answer, console.out.width())).await?;
            console.err.line(&paint(FAINT, summary(&answer))).await?;
        }
    }
    Ok(Exit::Done)
}

/// A line for each job, no longer than `width`.
fn text(answer: &ListJobsResponse, width: Option<usize>) -> String {
    use Align::{Left, Right};
    let heads = ["job", "state", "age", "run", "kind", "tenant", "request id"];
    let columns = [Left, Left, Right, Right, Left, Left, Left];
    // Columns that callers fill are shortened, the last first.
    let lines = fitted(&heads, &columns, answer.jobs.iter().map(row).collect(), &[6, 5, 4], width);
    lines.into_iter().map(|line| line + "\n").collect()
}

fn row(job: &ListedJob) -> Vec<String> {
    let ListedJob { job_id, request_id, pool: _, kind, tenant, stage: _, age, run, outcome: _ } = job;
    let run = run.as_ref().map_or_else(|| "-".to_owned(), |run| short_duration(duration(Some(run))));
    let age = short_duration(duration(age.as_ref()));
    vec![
        paint(STRONG, sanitized(job_id)),
        state(job),
        age,
        run,
        sanitized(kind),
        sanitized(tenant),
        sanitized(request_id),
    ]
}

/// State of a job, with the reason if it failed.
pub(super) fn state(job: &ListedJob) -> String {
    match job.stage() {
        JobStage::Waiting => paint(WARN, "waiting"),
        JobStage::Queued => paint(WARN, "queued"),
        JobStage::Running => paint(GOOD, "running"),
        JobStage::Completed => "completed".to_owned(),
        JobStage::Failed | JobStage::Unspecified => paint(BAD, sanitized(&job.outcome)),
    }
}

fn summary(answer: &ListJobsResponse) -> String {
    let shown = answer.jobs.len() as u64;
    let first = if answer.order() == JobOrder::Oldest { "oldest" } else { "newest" };
    match answer.all {
        0 => "no job".to_owned(),
        all if all > shown => format!("{shown} of {all} jobs, the {first} first"),
        all => format!("{}, the {first} first", pluralized(all, "job")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(stage: JobStage, kind: &str, tenant: &str, request_id: &str) -> ListedJob {
        ListedJob {
            job_id: "019f0e3b2c4d5e6f-1a3".into(),
            request_id: request_id.into(),
            pool: "cpu".into(),
            kind: kind.into(),
            tenant: tenant.into(),
            stage: stage.into(),
            age: Some("72s".parse().unwrap()),
            run: (stage != JobStage::Queued).then(|| "0.5s".parse().unwrap()),
            outcome: if stage == JobStage::Failed { "HANDLER_FAILED".into() } else { String::new() },
        }
    }

    #[test]
    fn the_table_fits_the_terminal() {
        let jobs = vec![
            listed(JobStage::Queued, "thumbnail-of-a-rather-long-name", "acme", "req-1"),
            listed(
                JobStage::Failed,
                "resize",
                "a tenant with many words \u{1b}[31m",
                "019f0e3b-2c4d-7e6f-8a90-b1c2d3e4f506",
            ),
        ];
        let answer = ListJobsResponse { jobs, all: 7, ..ListJobsResponse::default() };
        let shown = |width| anstream::adapter::strip_str(&text(&answer, width)).to_string();
        assert_eq!(
            shown(Some(80)),
            "job                   state              age    run  kind         tenant  reque…\n\
             019f0e3b2c4d5e6f-1a3  queued          1m 12s      -  thumbnail-…  acme    req-1\n\
             019f0e3b2c4d5e6f-1a3  HANDLER_FAILED  1m 12s  500ms  resize       a ten…  019f0…\n"
        );
        assert!(shown(None).contains("thumbnail-of-a-rather-long-name  acme "), "{}", shown(None));
        assert_eq!(summary(&answer), "2 of 7 jobs, the newest first");
        assert_eq!(text(&ListJobsResponse::default(), Some(80)), "");
    }
}
