//! Records the last jobs of a pool, so that they can be replayed under other settings. Each shard writes to its own
//! part, so that threads do not contend.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{inner::Padded, shard::shard};
use crate::{
    handler::Context,
    model::{RecordedEnd, RecordedJob},
};

/// A longer budget is that of a worker that was reserved, and not of a job.
const MAX_BUDGET: Duration = Duration::from_secs(365 * 24 * 3600);

/// The last jobs of a pool.
pub(super) struct Recorder {
    since: Instant,
    shards: Vec<Padded<Mutex<VecDeque<RecordedJob>>>>,
    /// Maximum number of jobs of each shard.
    capacity: usize,
}

impl Recorder {
    /// Keeps up to `jobs` jobs.
    pub(super) fn new(shards: usize, jobs: usize) -> Self {
        let shards: Vec<_> = std::iter::repeat_with(|| Padded(Mutex::default())).take(shards).collect();
        Self { since: Instant::now(), capacity: jobs.div_ceil(shards.len()), shards }
    }

    /// Records a job that ended at `now`.
    pub(super) fn record(&self, cx: &Context, now: Instant, end: RecordedEnd) {
        let deadline = cx.deadline();
        let budget = deadline.left(deadline.arrival());
        let Ok(kind) = u16::try_from(cx.kind_id().0) else { return };
        if self.capacity == 0 || budget > MAX_BUDGET {
            return;
        }
        let at = deadline.arrival().saturating_duration_since(self.since);
        let job = RecordedJob {
            at: u64::try_from(at.as_micros()).unwrap_or(u64::MAX),
            budget: budget.as_secs_f32(),
            wait: cx.queued(now).as_secs_f32(),
            held: cx.held(now).as_secs_f32(),
            traits: cx.traits(),
            kind,
            end,
        };
        let mut jobs = self.shards[shard() % self.shards.len()].0.lock();
        if jobs.capacity() == 0 {
            // Allocated at once, so that later jobs do not wait for a copy. The system adds the memory page by page.
            jobs.reserve_exact(self.capacity);
        }
        if jobs.len() == self.capacity {
            jobs.pop_front();
        }
        jobs.push_back(job);
    }

    /// The jobs in order of arrival.
    #[cfg(feature = "server")]
    pub(super) fn jobs(&self) -> Vec<RecordedJob> {
        let mut jobs = Vec::new();
        for shard in &self.shards {
            jobs.extend(shard.0.lock().iter().copied());
        }
        jobs.sort_by_key(|job| job.at);
        jobs
    }
}
