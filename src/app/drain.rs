//! The steps of the drain, and its receipt: the last line of a server's output. `control.rs` starts the drain.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::{Control, running};
use crate::{
    detached::LostRun,
    net::{Server, UnreadAnswer},
    phase::Phase,
    pool::{LostJob, LostWhile, Pool},
    task::Tasks,
};

/// Time to send the last answers, once no job runs.
const LINGER: Duration = Duration::from_millis(100);
/// Time to store the results of detached jobs.
const STORE_TIME: Duration = Duration::from_secs(2);
/// Maximum number of jobs in the log line about those that were stopped.
const MAX_NAMED: usize = 5;

/// Time to send the last report.
const REPORT_TIME: Duration = Duration::from_millis(20);
/// Time for the connections' threads to notice the cut. On a busy machine they may still be writing the last answers.
const CUT_TIME: Duration = Duration::from_millis(500);

/// The result of a drain, with all accepted jobs that it did not finish.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// Duration of the drain.
    pub elapsed: Duration,
    /// Jobs that ended normally during the drain.
    pub finished: u64,
    /// Jobs of calls that were not finished.
    pub lost: Vec<LostJob>,
    /// Runs of detached jobs that were not finished, or whose results were not stored. They run again.
    pub lost_runs: Vec<LostRun>,
    /// Runs of detached jobs that were stopped. The jobs are in their store, and run again.
    pub given_back: Vec<LostRun>,
    /// Answers that were cut off because their callers did not read them in time.
    pub cut: Vec<UnreadAnswer>,
    end: Instant,
}

/// Waits for the start of the drain, and carries it out.
///
/// 1. The phase becomes Draining, and health NOT_SERVING.
/// 2. Jobs are still accepted during the notice phase, because load balancers need time to react.
/// 3. New jobs are refused.
/// 4. The listener is closed.
/// 5. Clients are asked to open no more streams.
/// 6. Queued and running jobs are finished. Detached jobs that have not begun go back to their store.
/// 7. Jobs that still run are stopped, and every caller gets its answer.
/// 8. Unsent answers are sent until the hard stop. Then the remaining connections are cut.
pub(super) async fn run(control: &Control, public: Server, ops: Server, tasks: &Tasks) -> Receipt {
    control.asked().await;
    tokio::select! {
        receipt = carry_out(control, &public, &ops, tasks) => receipt,
        never = running::log_drain(control, &public) => match never {},
    }
}

async fn carry_out(control: &Control, public: &Server, ops: &Server, tasks: &Tasks) -> Receipt {
    let begin = control.begin().at;
    let plan = control.plan();
    info!(notice_ms = plan.notice.as_millis(), finish_ms = plan.finish.as_millis(), "draining");
    control.within(begin + plan.notice, std::future::pending()).await;

    let pools = control.pools().all();
    let is_durable = control.is_durable();
    let is_kept = |pool: &Pool| is_durable && control.detached().is_some_and(|it| it.suspended(pool.name()).is_some());
    for pool in pools.iter().filter(|pool| pool.stats().paused.is_some() && !is_kept(pool)) {
        warn!(pool = %pool.name(), "a pause ends with the process: the pool serves again when the server starts");
    }
    if let Some(detached) = control.detached() {
        detached.stop();
    }
    pools.iter().for_each(Pool::drain);
    public.close_listener();
    public.go_away();
    let hard_stop = begin + plan.notice + plan.finish;
    if !control.within(hard_stop, emptied(pools)).await {
        control.phase().advance(Phase::Stopping);
        let end = Instant::now().min(hard_stop) + plan.kill;
        info!(kill_ms = plan.kill.as_millis(), "stopping the jobs that still run");
        pools.iter().for_each(|pool| pool.stop_within(end.saturating_duration_since(Instant::now())));
        // Jobs that do not stop are in the receipt.
        let _ = timeout_at(end, emptied(pools)).await;
    }

    if let Some(detached) = control.detached() {
        // What is not kept by then runs again.
        let _ = timeout(STORE_TIME, detached.ended()).await;
    }
    let ((lost, lost_runs), given_back) = (control.lost(), control.given_back());
    if !given_back.is_empty() {
        let jobs: Vec<_> = given_back.iter().take(MAX_NAMED).map(|run| &*run.job).collect();
        let (count, jobs) = (given_back.len(), jobs.join(", "));
        info!(count, jobs, "detached jobs that ran were stopped, and run again; the receipt names all");
    }
    control.phase().advance(Phase::Stopped);
    ops.close_listener();
    ops.go_away();
    // No job runs any more. Answers to slow readers have until the hard stop.
    let quiet = Instant::now() + LINGER;
    let _ = timeout_at(quiet - REPORT_TIME, public.ended()).await;
    while !public.is_answered() && control.within(hard_stop, public.answered()).await {
        let _ = timeout(LINGER, public.ended()).await;
    }
    let cut = public.unread_answers();
    control.settle(cut.len());
    let _ = timeout_at(quiet.max(Instant::now() + REPORT_TIME), ops.ended()).await;
    public.cut();
    ops.cut();
    let _ = timeout(CUT_TIME, async { tokio::join!(public.ended(), ops.ended()) }).await;
    let _ = timeout_at(quiet, tasks.wait()).await;
    let end = hard_stop + plan.kill;
    Receipt { elapsed: begin.elapsed(), finished: control.finished(), lost, lost_runs, given_back, cut, end }
}

async fn emptied(pools: &[Pool]) {
    join_all(pools.iter().map(Pool::wait)).await;
}

impl Receipt {
    /// Whether no job was lost, and no answer cut.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.lost_runs.is_empty() && self.cut.is_empty()
    }

    /// One line of JSON: `event` (`"drained"`), `elapsed_ms`, `finished`, and `lost`, a list of objects with `job`,
    /// `request_id`, `kind`, `pool` and `while` (`"queued"`: it had not begun, `"running"`, or `"storing"`: it had
    /// ended, and its result was not stored), `given_back`, a list of such objects, and `cut`, a list of objects with
    /// `request_id`, `peer` and `unsent_bytes`.
    pub fn to_json(&self) -> String {
        let lost = self.lost.iter().map(job_of_call).chain(self.lost_runs.iter().map(detached_run));
        json!({
            "event": "drained",
            "elapsed_ms": u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX),
            "finished": self.finished,
            "lost": lost.collect::<Vec<_>>(),
            "given_back": self.given_back.iter().map(detached_run).collect::<Vec<_>>(),
            "cut": self.cut.iter().map(unsent_answer).collect::<Vec<_>>(),
        })
        .to_string()
    }

    /// Longest time to flush telemetry within the planned time of the drain: 50 ms to 2 s.
    pub fn flush_within(&self) -> Duration {
        let left = self.end.saturating_duration_since(Instant::now());
        left.clamp(Duration::from_millis(50), Duration::from_secs(2))
    }
}

fn job_of_call(lost: &LostJob) -> Value {
    let LostJob { job, request_id, kind, pool, lost_while, is_detached: _ } = lost;
    unfinished(&job.to_string(), request_id.as_str(), kind, pool, *lost_while)
}

fn detached_run(lost: &LostRun) -> Value {
    let LostRun { job, request_id, kind, pool, lost_while } = lost;
    unfinished(job, request_id, kind, pool, *lost_while)
}

fn unfinished(job: &str, request_id: &str, kind: &str, pool: &str, lost_while: LostWhile) -> Value {
    let stage = match lost_while {
        LostWhile::Queued => "queued",
        LostWhile::Running => "running",
        LostWhile::Storing => "storing",
    };
    json!({ "job": job, "request_id": request_id, "kind": kind, "pool": pool, "while": stage })
}

fn unsent_answer(UnreadAnswer { request_id, peer, unsent_bytes }: &UnreadAnswer) -> Value {
    json!({ "request_id": request_id, "peer": peer, "unsent_bytes": unsent_bytes })
}
