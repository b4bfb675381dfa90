//! `waterwheel pause`, `resume`, `resize`, `cancel`, `reload` and `restart`, and the flags of all commands for
//! operators.

use clap::{Args, builder::UnknownArgumentValueParser};

use super::{
    access::{AccessArgs, Address},
    connect::{CallArgs, Target},
    console::{BAD, Console, FAINT, GOOD, STRONG, WARN, paint},
    failure::{Exit, Failure},
    forecast,
    output::{pluralized, sanitized, short},
};
use crate::proto::{
    CancelJobRequest, CancelJobResponse, CancelledJob, JobStage, PauseRequest, Phase, PoolState, ReloadRequest,
    ReloadResponse, ResizeRequest, RestartRequest, ResumeRequest, SettingChange, SizeStats,
};

const RELOAD_CODES: &str = "\
Exit codes:
  0  the changes were applied; with --dry-run: they can be applied
  1  nothing was changed: the configuration has faults, a program cannot start, or a key needs a restart

Example:
  waterwheel reload --dry-run";

/// Flags for the operators' listener.
#[derive(Debug, Args)]
pub(super) struct OperatorArgs {
    /// Address of the operators' listener: HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH. It speaks no
    /// TLS: https://, --tls, --ca and --cert are for a proxy in front of it.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_OPS", default_value = "127.0.0.1:7071")]
    pub(super) ops: Address,
    /// The error for this flag of the other commands suggests `--ops`.
    #[arg(long, hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("--ops"))]
    pub(super) server: Option<String>,
    #[command(flatten)]
    pub(super) access: AccessArgs,
}

/// Flags of a command that changes something.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// Reason, for the server's log.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) operator: OperatorArgs,
}

// No doc comment: clap would show it as the help of `pause` and `resume`.
#[derive(Debug, Args)]
pub(super) struct PoolArgs {
    /// Name of the pool.
    pool: String,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Set the number of workers of a pool, or its bounds.
///
/// Within bounds, the pool chooses by its load. Surplus workers stop at once if idle, else after their job. A restart
/// returns to the configured number.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel resize cpu 2..16")]
pub(super) struct ResizeArgs {
    /// Name of the pool.
    pool: String,
    /// Number of workers, such as 8, or bounds, such as 2..16.
    #[arg(value_parser = workers)]
    workers: Workers,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Smallest and largest number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Workers {
    min: u32,
    max: u32,
}

/// Cancel a job, or all jobs of a request.
///
/// A job that waits ends at once, also in the store of detached jobs. A running job is asked to stop, and killed after
/// the grace period. Its caller gets CANCELLED_BY_OPERATOR. "waterwheel jobs" lists the jobs.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel cancel $JOB")]
pub(super) struct CancelArgs {
    /// Any id of the job, from an answer, an error, a list or the log; or the request id of its call.
    #[arg(required_unless_present = "request_id")]
    id: Option<String>,
    /// Cancel all jobs of the calls with this request id.
    #[arg(long, value_name = "ID", conflicts_with = "id")]
    request_id: Option<String>,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Reload the configuration of the server.
///
/// SIGHUP does the same; this command prints the changes. All changes are applied, or none. These can be
/// reloaded: pools (without ended_jobs and recorded_jobs), kinds, [auth.rule], [quota] and telemetry.log. If another
/// key changed, it is named, and nothing is applied. A new or changed program must first start a process. No call
/// fails.
#[derive(Debug, Args)]
#[command(after_help = RELOAD_CODES)]
pub(super) struct ReloadArgs {
    /// Print what would change, and what that would have done to the last jobs of the pools; change nothing.
    ///
    /// The server replays the jobs in its simulator, under the settings in use and under the new ones.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

impl Target for OperatorArgs {
    fn address(&self) -> &Address {
        &self.ops
    }

    fn access(&self) -> AccessArgs {
        self.access.clone()
    }
}

pub(super) async fn pause(args: PoolArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let PoolArgs { pool, change: ChangeArgs { reason, operator } } = args;
    let answer = operator.ask(async |server| server.admin().pause(PauseRequest { pool, reason }).await).await?;
    show(answer.pool, &operator, console).await
}

pub(super) async fn resume(args: PoolArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let PoolArgs { pool, change: ChangeArgs { reason, operator } } = args;
    let answer = operator.ask(async |server| server.admin().resume(ResumeRequest { pool, reason }).await).await?;
    show(answer.pool, &operator, console).await
}

pub(super) async fn restart(args: PoolArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let PoolArgs { pool, change: ChangeArgs { reason, operator } } = args;
    let call = operator.call(CallArgs::default()).await?;
    let answer = call.ask(async |server| server.admin().restart(RestartRequest { pool, reason }).await).await?;
    show(answer.pool, &operator, console).await
}

pub(super) async fn resize(args: ResizeArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ResizeArgs { pool, workers: Workers { min, max }, change: ChangeArgs { reason, operator } } = args;
    let request = ResizeRequest { pool, min_workers: min, max_workers: max, reason };
    let answer = operator.ask(async |server| server.admin().resize(request).await).await?;
    show(answer.pool, &operator, console).await
}

pub(super) async fn cancel(args: CancelArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let CancelArgs { id, request_id, change: ChangeArgs { reason, operator } } = args;
    let [id, request_id] = [id, request_id].map(Option::unwrap_or_default);
    let request = CancelJobRequest { id, reason, request_id };
    let answer = operator.ask(async |server| server.admin().cancel_job(request).await).await?;
    console.message(&answer, cancelled).await?;
    Ok(Exit::Done)
}

pub(super) async fn reload(args: ReloadArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ReloadArgs { dry_run, change: ChangeArgs { reason, operator } } = args;
    let request = ReloadRequest { dry_run, reason };
    // New programs may take long to start.
    let call = operator.call(CallArgs::default()).await?;
    let answer = call.ask(async |server| server.admin().reload(request).await).await?;
    console.message(&answer, |answer| reloaded(answer, dry_run)).await?;
    let is_fine = answer.applied || dry_run && refusal(&answer).is_none();
    Ok(if is_fine { Exit::Done } else { Exit::Failed })
}

/// Shows the pool of an answer.
async fn show(pool: Option<PoolState>, operator: &OperatorArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let pool = pool.ok_or_else(|| Failure::incomplete(&operator.ops, "pool"))?;
    console.message(&pool, text).await?;
    Ok(Exit::Done)
}

fn cancelled(answer: &CancelJobResponse) -> String {
    let mut lines: Vec<_> = answer.jobs.iter().map(cancelled_job).collect();
    if answer.all > answer.jobs.len() as u64 {
        lines.push("there are more; run the command again for the others".to_owned());
    }
    if answer.jobs.len() > 1 {
        lines.push(format!("{} cancelled", pluralized(answer.jobs.len(), "job")));
    }
    lines.join("\n")
}

fn cancelled_job(job: &CancelledJob) -> String {
    let how = match job.stage() {
        JobStage::Waiting => "it waited for capacity, and did not start",
        JobStage::Queued => "it was queued, and did not start",
        JobStage::Running => "it runs, and is asked to stop",
        JobStage::Stored => "it waited in the store, and does not start",
        JobStage::Completed | JobStage::Failed | JobStage::Unspecified => "",
    };
    let CancelledJob { job_id, pool, detached_job_id, .. } = job;
    let id = if detached_job_id.is_empty() { job_id } else { detached_job_id };
    let pool = if pool.is_empty() { String::new() } else { format!(" of pool {}", sanitized(pool)) };
    format!("cancelled {}{pool}: {how}", paint(STRONG, sanitized(id)))
}

/// The reason why nothing was applied.
fn refusal(answer: &ReloadResponse) -> Option<&'static str> {
    if !answer.faults.is_empty() {
        return Some("the configuration has faults; nothing was changed");
    }
    let needs_restart = answer.changes.iter().any(|change| change.needs_restart);
    needs_restart.then_some("the marked keys need a restart; nothing was changed")
}

fn reloaded(answer: &ReloadResponse, dry_run: bool) -> String {
    let ReloadResponse { applied: _, changes, faults, forecasts } = answer;
    let change = |SettingChange { key, old_value, new_value, needs_restart }: &SettingChange| {
        let restart = if *needs_restart { paint(BAD, "  needs a restart") } else { String::new() };
        let (key, old) = (paint(STRONG, sanitized(key)), paint(FAINT, sanitized(old_value)));
        format!("{key}: {old} → {}{restart}", sanitized(new_value))
    };
    let end = match refusal(answer) {
        Some(refusal) => paint(BAD, refusal),
        None if changes.is_empty() => "no changes".to_owned(),
        None if dry_run => format!("{} would change", pluralized(changes.len(), "setting")),
        None => format!("{} changed", pluralized(changes.len(), "setting")),
    };
    let faults = faults.lines().map(sanitized);
    let lines = faults.chain(changes.iter().map(change)).chain([end]).chain(forecasts.iter().map(forecast::of_change));
    lines.collect::<Vec<_>>().join("\n")
}

fn workers(text: &str) -> Result<Workers, String> {
    let count = |text: &str| {
        let count = text.trim().parse().ok().filter(|count| (1..=65_536).contains(count));
        count.ok_or_else(|| "must be a number from 1 to 65536, such as 8, or two of them, such as 2..16".to_owned())
    };
    let (min, max) = match text.split_once("..") {
        Some((min, max)) => (count(min)?, count(max)?),
        None => (count(text)?, count(text)?),
    };
    if min > max {
        return Err(format!("{min} is more than {max}; put the smaller one first"));
    }
    Ok(Workers { min, max })
}

/// One line: the state of the pool, its jobs and its size.
fn text(pool: &PoolState) -> String {
    let state = match (pool.phase(), pool.paused) {
        (Phase::Serving, Some(paused)) => paint(WARN, format!("PAUSED for {}", short(Some(paused)))),
        (Phase::Serving, None) => paint(GOOD, "SERVING"),
        (phase, _) => paint(WARN, phase.as_str_name().trim_start_matches("PHASE_")),
    };
    let name = paint(STRONG, format!("pool {}", sanitized(&pool.name)));
    let (PoolState { queued, running, .. }, size) = (pool, size(&pool.size.unwrap_or_default()));
    format!("{name}  {state}  {queued} queued  {running} running  {size}")
}

/// The number of workers of a pool, its bounds, and why it changes or cannot grow.
pub(super) fn size(size: &SizeStats) -> String {
    let SizeStats { min, max, workers, retiring, slowdown, held_back } = *size;
    let mut text = pluralized(workers, "worker");
    if min < max {
        text.push_str(&format!(" of {min} to {max}"));
    }
    if retiring > 0 {
        text.push_str(&format!(", {retiring} more until their jobs end"));
    }
    if held_back {
        let slow = format!(", not growing: jobs take {slowdown:.1} times as long as before");
        text.push_str(&paint(WARN, slow));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(phase: Phase, paused: Option<&str>, size: SizeStats) -> PoolState {
        PoolState {
            name: "cpu".into(),
            phase: phase.into(),
            paused: paused.map(|paused| paused.parse().unwrap()),
            queued: 3,
            running: 2,
            size: Some(size),
        }
    }

    #[test]
    fn a_pool_is_one_line() {
        let fixed = SizeStats { min: 2, max: 2, workers: 2, slowdown: 1.0, ..SizeStats::default() };
        let stripped = |state: &PoolState| anstream::adapter::strip_str(&text(state)).to_string();
        assert_eq!(
            stripped(&pool(Phase::Serving, Some("12s"), fixed)),
            "pool cpu  PAUSED for 12s  3 queued  2 running  2 workers"
        );
        let one = SizeStats { min: 1, max: 1, workers: 1, retiring: 1, ..fixed };
        assert_eq!(
            stripped(&pool(Phase::Draining, None, one)),
            "pool cpu  DRAINING  3 queued  2 running  1 worker, 1 more until their jobs end"
        );
        let slow = SizeStats { min: 2, max: 16, workers: 5, held_back: true, slowdown: 4.04, ..fixed };
        assert_eq!(
            stripped(&pool(Phase::Serving, None, slow)),
            "pool cpu  SERVING  3 queued  2 running  5 workers of 2 to 16, not growing: jobs take 4.0 times as long as before"
        );
    }

    #[test]
    fn a_number_or_two_bounds() {
        for (text, min, max) in [("8", 8, 8), ("2..16", 2, 16), ("65536", 65_536, 65_536), ("3..3", 3, 3)] {
            assert_eq!(workers(text), Ok(Workers { min, max }), "{text}");
        }
        for text in ["", "0", "-1", "x", "2..", "..3", "65537", "1..0", "16..2", "2...3"] {
            assert!(workers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_line_says_what_became_of_it() {
        let change = |needs_restart| SettingChange {
            key: "pool.cpu.workers".into(),
            old_value: "2".into(),
            new_value: "4".into(),
            needs_restart,
        };
        let answer = |changes, faults: &str| ReloadResponse { changes, faults: faults.into(), ..Default::default() };
        let cases = [
            (answer(vec![change(false)], ""), false, "pool.cpu.workers: 2 → 4\n1 setting changed"),
            (answer(vec![change(false)], ""), true, "pool.cpu.workers: 2 → 4\n1 setting would change"),
            (answer(vec![], ""), false, "no changes"),
            (
                answer(vec![change(true)], ""),
                false,
                "pool.cpu.workers: 2 → 4  needs a restart\nthe marked keys need a restart; nothing was changed",
            ),
            (
                answer(vec![], "error: one\n  help: two"),
                false,
                "error: one\n  help: two\nthe configuration has faults; nothing was changed",
            ),
        ];
        for (answer, dry_run, expected) in cases {
            assert_eq!(anstream::adapter::strip_str(&reloaded(&answer, dry_run)).to_string(), expected);
        }
    }
}
