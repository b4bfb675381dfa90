use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::info;

use super::{Control, Receipt};
use crate::{net::Server, phase::Phase, pool::Pool, task::Tasks};

/// Time for the last answers to leave once nothing runs any more.
const LINGER: Duration = Duration::from_millis(100);

/// Time for the last report to leave.
const REPORTED: Duration = Duration::from_millis(20);
/// Time that the threads of connections have to see that these are cut. They need next to none of it, unless the machine
/// is behind; then the last answers may still be theirs to write.
const BEHIND: Duration = Duration::from_millis(500);

/// Waits for the order to drain and carries it out.
///
/// 1. The phase is Draining: health says NOT_SERVING.
/// 2. Jobs are still taken for the notice, for load balancers need time to see it.
/// 3. New jobs are refused.
/// 4. The listener is closed.
/// 5. Peers are told to open no more streams.
/// 6. Queued and running jobs are finished.
/// 7. What still runs is stopped, and every caller answered.
/// 8. Answers on their way are awaited until the hard stop, and what is left of the connections is cut.
pub(super) async fn run(control: &Control, public: Server, ops: Server, tasks: &Tasks) -> Receipt {
    control.asked().await;
    let begin = control.begin().at;
    let plan = control.plan();
    info!(notice_ms = plan.notice.as_millis(), finish_ms = plan.finish.as_millis(), "draining");
    control.within(begin + plan.notice, std::future::pending()).await;

    let pools = control.pools().all();
    pools.iter().for_each(Pool::drain);
    public.close_listener();
    public.go_away();
    let hard_stop = begin + plan.notice + plan.finish;
    if !control.within(hard_stop, emptied(pools)).await {
        control.phase().advance(Phase::Stopping);
        let end = Instant::now().min(hard_stop) + plan.kill;
        info!(kill_ms = plan.kill.as_millis(), "stopping what still runs");
        pools.iter().for_each(|pool| pool.stop_within(end.saturating_duration_since(Instant::now())));
        // What does not stop is in the receipt.
        let _ = timeout_at(end, emptied(pools)).await;
    }

    let lost = pools.iter().flat_map(|pool| pool.report().lost).collect();
    control.phase().advance(Phase::Stopped);
    ops.close_listener();
    ops.go_away();
    // Nothing runs any more. The last answers leave, and those whose callers read slowly have until the hard stop.
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
