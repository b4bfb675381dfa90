//! Load of a pool, for health and load reports.

use std::sync::Arc;

use super::{
    Pool,
    core::{Core, CoreLoad, Counts},
};
use crate::model::Durations;

/// Load of a pool: cheap to read at any time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolLoad {
    /// Jobs in the queue.
    pub queued: usize,
    /// The larger of the busy share of the workers and the filled share of the queue, from 0 to 1.
    pub utilization: f64,
    /// How jobs ended.
    pub counts: Counts,
}

/// Durations of the jobs of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct KindDurations {
    /// Name of the kind.
    pub kind: Arc<str>,
    /// From arrival to the start of the run.
    pub queue_wait: Durations,
    /// Runs.
    pub run_time: Durations,
}

impl Pool {
    /// The current load.
    #[must_use]
    pub fn load(&self) -> PoolLoad {
        let shell = self.shell();
        let CoreLoad { queued, running, live_workers, counts } = shell.read(Core::load);
        let busy = running as f64 / live_workers.max(running).max(1) as f64;
        let filled = queued as f64 / shell.settings.queue_jobs.max(1) as f64;
        PoolLoad { queued, utilization: busy.max(filled), counts }
    }

    /// Durations of jobs since the start, by kind.
    #[must_use]
    pub fn durations(&self) -> Vec<KindDurations> {
        let shell = self.shell();
        let kinds = shell.served().map(|(index, kind)| {
            let [queue_wait, run_time] = shell.meters.durations(index);
            KindDurations { kind: Arc::clone(kind.name()), queue_wait, run_time }
        });
        kinds.collect()
    }
}
