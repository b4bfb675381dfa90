//! The steps of the drain. `control.rs` starts it.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::info;

use super::{Control, Receipt};
use crate::{net::Server, phase::Phase, pool::Pool, task::Tasks};

/// Time for the last answers to be sent once no job runs.
const LINGER: Duration = Duration::from_millis(100);
/// Time for the ends of detached jobs to be kept.
const KEPT: Duration = Duration::from_secs(2);

/// Time for the last report to be sent.
const REPORTED: Duration = Duration::from_millis(20);
/// Time for the threads of connections to see that these are cut. On a busy machine they may still have the last
/// answers to write.
const BEHIND: Duration = Duration::from_millis(500);

/// Waits for the start of the drain, and carries it out.
///
/// 1. The phase is Draining: health says NOT_SERVING.
/// 2. Jobs are still accepted during the notice: load balancers need time to react.
/// 3. New jobs are refused.
/// 4. The listener is closed.
/// 5. Clients are asked to open no more streams.
/// 6. Queued and running jobs are finished. Detached jobs that have not begun go back to their store.
/// 7. What still runs is stopped, and every caller gets its answer.
/// 8. Answers that are being sent are awaited until the hard stop. Then the remaining connections are cut.
pub(super) async fn run(control: &Control, public: Server, ops: Server, tasks: &Tasks) -> Receipt {
    control.asked().await;
    let begin = control.begin().at;
    let plan = control.plan();
    info!(notice_ms = plan.notice.as_millis(), finish_ms = plan.finish.as_millis(), "draining");
    control.within(begin + plan.notice, std::future::pending()).await;

    let pools = control.pools().all();
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
        info!(kill_ms = plan.kill.as_millis(), "stopping what still runs");
        pools.iter().for_each(|pool| pool.stop_within(end.saturating_duration_since(Instant::now())));
        // Jobs that do not stop are in the receipt.
        let _ = timeout_at(end, emptied(pools)).await;
    }

    let mut lost: Vec<_> = pools.iter().flat_map(|pool| pool.report().lost).collect();
    if let Some(detached) = control.detached() {
        // What is not kept by then runs again.
        let _ = timeout(KEPT, detached.ended()).await;
        lost.retain(|job| !detached.has_returned(job.job));
    }
    control.phase().advance(Phase::Stopped);
    ops.close_listener();
    ops.go_away();
    // No job runs any more. Answers to slow readers have until the hard stop.
    let quiet = Instant::now() + LINGER;
    let _ = timeout_at(quiet - REPORTED, public.ended()).await;
    while !public.is_answered() && control.within(hard_stop, public.answered()).await {
        let _ = timeout(LINGER, public.ended()).await;
    }
    let cut_answers = public.unsent_answers();
    control.settle(cut_answers.len());
    let _ = timeout_at(quiet.max(Instant::now() + REPORTED), ops.ended()).await;
    public.cut();
    ops.cut();
    let _ = timeout(BEHIND, async { tokio::join!(public.ended(), ops.ended()) }).await;
    let _ = timeout_at(quiet, tasks.wait()).await;
    Receipt::new(begin, plan, control.finished(), lost, cut_answers)
}

async fn emptied(pools: &[Pool]) {
    join_all(pools.iter().map(Pool::wait)).await;
}
