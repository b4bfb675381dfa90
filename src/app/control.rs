//! Starts and speeds up the drain, and reports its progress. `drain.rs` carries it out. `src/cli/serve.rs` calls it on
//! SIGTERM, and `src/rpc/admin_service.rs` on `waterwheel drain`.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::reload::Reloading;
use crate::{
    config::Drain,
    detached::{Detached, LostRun},
    monitor::{Monitor, Outlook},
    phase::{Phase, PhaseCell},
    pool::{LostJob, Pool, PoolLoad, Pools},
    proto::PoolForecast,
    rpc::{DrainControl, DrainProgress, DryRun, ReloadFault, SettingChange},
};

/// Starts and speeds up the drain. Clones share it.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

struct Inner {
    pools: Pools,
    phase: PhaseCell,
    plan: Drain,
    detached: Option<Detached>,
    monitor: Monitor,
    drain: CancellationToken,
    hurry: CancellationToken,
    begin: OnceLock<Begin>,
    reloading: OnceLock<Reloading>,
    /// Number of answers that the drain cut off; `None` until known.
    cut: watch::Sender<Option<u64>>,
}

/// Maximum number of lost jobs that a report names.
const MAX_LOST_IDS: usize = 100;

/// Figures from the start of the drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begin {
    pub(super) at: Instant,
    /// Jobs that had ended before the drain.
    ended: u64,
}

impl Control {
    pub(super) fn new(
        pools: Pools,
        phase: PhaseCell,
        plan: Drain,
        detached: Option<Detached>,
        monitor: Monitor,
    ) -> Self {
        Self(Arc::new(Inner {
            pools,
            phase,
            plan,
            detached,
            monitor,
            drain: CancellationToken::new(),
            hurry: CancellationToken::new(),
            begin: OnceLock::new(),
            reloading: OnceLock::new(),
            cut: watch::Sender::default(),
        }))
    }

    /// Starts the drain. Further calls do nothing.
    pub fn drain(&self) {
        self.begin();
        self.0.phase.advance(Phase::Draining);
        self.0.drain.cancel();
    }

    /// Stops running jobs at once, whether or not the drain has begun.
    pub fn kill(&self) {
        self.drain();
        self.0.hurry.cancel();
    }

    /// The served pools.
    pub fn pools(&self) -> &Pools {
        &self.0.pools
    }

    pub(super) fn phase(&self) -> &PhaseCell {
        &self.0.phase
    }

    pub(super) fn plan(&self) -> Drain {
        self.0.plan
    }

    pub(super) fn detached(&self) -> Option<&Detached> {
        self.0.detached.as_ref()
    }

    pub(super) fn monitor(&self) -> &Monitor {
        &self.0.monitor
    }

    /// Whether there is a store that keeps what it has over a restart.
    pub(super) fn is_durable(&self) -> bool {
        self.0.monitor.store().is_some_and(|store| store.kind != "memory")
    }

    pub(super) fn reloading(&self) -> Option<&Reloading> {
        self.0.reloading.get()
    }

    pub(super) fn set_reloading(&self, reloading: Reloading) {
        // The first call counts.
        let _ = self.0.reloading.set(reloading);
    }

    pub(super) async fn asked(&self) {
        self.0.drain.cancelled().await;
    }

    /// Waits for `future`, at most until `end` or until the drain is sped up. Returns whether the future completed.
    pub(super) async fn within(&self, end: Instant, future: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = future => true,
            () = tokio::time::sleep_until(end) => false,
            () = self.0.hurry.cancelled() => false,
        }
    }

    pub(super) fn begin(&self) -> Begin {
        *self.0.begin.get_or_init(|| Begin { at: Instant::now(), ended: ended(&self.loads()) })
    }

    pub(super) fn finished(&self) -> u64 {
        let unfinished = self.unfinished().len() as u64;
        (ended(&self.loads()) - self.begin().ended).saturating_sub(unfinished)
    }

    /// Records that only connections are left, and how many answers the drain cut off.
    pub(super) fn settle(&self, cut: usize) {
        self.0.cut.send_replace(Some(cut as u64));
    }

    /// The accepted jobs that the drain has not finished so far.
    fn unfinished(&self) -> Vec<LostJob> {
        self.0.pools.all().iter().flat_map(|pool| pool.report().lost).collect()
    }

    /// The same without detached jobs, of which only the unfinished runs count: others are back in their store.
    pub(super) fn lost(&self) -> (Vec<LostJob>, Vec<LostRun>) {
        let of_calls = self.unfinished().into_iter().filter(|job| !job.is_detached).collect();
        (of_calls, self.detached().map(Detached::unfinished).unwrap_or_default())
    }

    /// The runs of detached jobs that the drain stopped.
    pub(super) fn given_back(&self) -> Vec<LostRun> {
        self.detached().map(Detached::given_back).unwrap_or_default()
    }

    /// While the drain waits for jobs: the number of those that it will probably stop, and the time until then.
    pub(super) fn likely_lost(&self) -> Option<(u64, Duration)> {
        let progress = (self.0.phase.get() == Phase::Draining).then(|| self.progress())?;
        Some((progress.likely_lost, progress.hard_stop))
    }

    fn loads(&self) -> Vec<PoolLoad> {
        self.0.pools.all().iter().map(Pool::load).collect()
    }
}

impl DrainControl for Control {
    fn drain(&self) {
        Self::drain(self);
    }

    fn phase(&self) -> watch::Receiver<Phase> {
        self.0.phase.subscribe()
    }

    fn cut(&self) -> watch::Receiver<Option<u64>> {
        self.0.cut.subscribe()
    }

    fn reload(&self) -> BoxFuture<'_, Result<Vec<SettingChange>, ReloadFault>> {
        Self::reload(self).boxed()
    }

    fn try_reload(&self) -> BoxFuture<'_, Result<DryRun, ReloadFault>> {
        Self::try_reload(self).boxed()
    }

    fn advise(&self, pools: Vec<Pool>) -> BoxFuture<'_, Result<Vec<PoolForecast>, ReloadFault>> {
        Self::advise(self, pools).boxed()
    }

    fn progress(&self) -> DrainProgress {
        let loads = self.loads();
        let begin = self.begin();
        let elapsed = begin.at.elapsed();
        let cut = *self.0.cut.borrow();
        let (of_calls, detached) = self.lost();
        // Until the drain ends, the results of detached jobs may still be stored.
        let detached = if cut.is_some() { detached } else { Vec::new() };
        let lost = of_calls.iter().map(|lost| lost.job.to_string()).chain(detached.into_iter().map(|lost| lost.job));
        let lost: Vec<_> = lost.collect();
        let hard_stop = (self.0.plan.notice + self.0.plan.finish).saturating_sub(elapsed);
        let outlooks = self.0.pools.all().iter().map(|pool| self.0.monitor.outlook(pool, hard_stop));
        let outlook = outlooks.fold(Outlook::default(), |sum, pool| Outlook {
            expected: sum.expected.max(pool.expected),
            late: sum.late + pool.late,
        });
        DrainProgress {
            phase: self.0.phase.get(),
            queued: loads.iter().map(|pool| pool.queued).sum(),
            running: loads.iter().map(|pool| pool.running).sum(),
            finished: self.finished(),
            lost: lost.len() as u64,
            given_back: self.given_back().len() as u64,
            cut,
            elapsed,
            // Jobs are accepted during the notice phase, so the drain lasts at least until its end.
            expected: outlook.expected.max(self.0.plan.notice.saturating_sub(elapsed)).min(hard_stop),
            hard_stop,
            likely_lost: outlook.late,
            lost_jobs: lost.into_iter().take(MAX_LOST_IDS).collect(),
            operator: self.0.monitor.operator(""),
        }
    }
}

fn ended(loads: &[PoolLoad]) -> u64 {
    loads.iter().map(|pool| pool.counts.ended()).sum()
}
