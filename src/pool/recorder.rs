//! Records the last jobs of a pool, so that they can be replayed under other settings, and counts the jobs of tenants.
//! Each shard writes to its own part, so that threads do not contend.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{inner::Padded, shard::shard};
use crate::{
    handler::Context,
    model::{RecordedEnd, RecordedJob},
};

/// A longer budget is that of a worker that was reserved, and not of a job.
const MAX_BUDGET: Duration = Duration::from_secs(365 * 24 * 3600);

/// The last jobs of a pool, and the numbers of jobs of tenants.
pub(super) struct Recorder {
    since: Instant,
    shards: Vec<Padded<Mutex<Part>>>,
    /// Maximum number of jobs of each shard.
    capacity: usize,
    counts_tenants: AtomicBool,
}

/// The part of one shard.
#[derive(Default)]
struct Part {
    jobs: VecDeque<RecordedJob>,
    /// The tenants that are counted separately. Without one, nothing is counted.
    tenants: BTreeMap<Box<str>, TenantJobs>,
    others: TenantJobs,
}

/// Numbers of jobs by how they ended, in the order of [`RecordedEnd::NAMES`].
pub(crate) type TenantJobs = [u64; RecordedEnd::NAMES.len()];

impl Recorder {
    /// Keeps up to `jobs` jobs.
    pub(super) fn new(shards: usize, jobs: usize) -> Self {
        let shards: Vec<_> = std::iter::repeat_with(|| Padded(Mutex::default())).take(shards).collect();
        Self {
            since: Instant::now(),
            capacity: jobs.div_ceil(shards.len()),
            shards,
            counts_tenants: AtomicBool::new(false),
        }
    }

    /// Records a job that ended at `now`.
    pub(super) fn record(&self, cx: &Context, now: Instant, end: RecordedEnd) {
        let deadline = cx.deadline();
        let budget = deadline.left(deadline.arrival());
        if budget > MAX_BUDGET || (self.capacity == 0 && !self.counts_tenants.load(Relaxed)) {
            return;
        }
        let mut part = self.shards[shard() % self.shards.len()].0.lock();
        part.count(cx.tenant().map_or("", |tenant| tenant), end);
        let Ok(kind) = u16::try_from(cx.kind_id().0) else { return };
        if self.capacity == 0 {
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
            is_stored: cx.attempt().is_some(),
        };
        let jobs = &mut part.jobs;
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
            jobs.extend(shard.0.lock().jobs.iter().copied());
        }
        jobs.sort_by_key(|job| job.at);
        jobs
    }

    /// Counts the jobs of these tenants separately from now on, and forgets the counts of those that it does not name.
    #[cfg(feature = "server")]
    pub(super) fn name_tenants(&self, tenants: &[&str]) {
        self.counts_tenants.store(!tenants.is_empty(), Relaxed);
        for shard in &self.shards {
            let mut part = shard.0.lock();
            part.tenants.retain(|tenant, _| tenants.contains(&&**tenant));
            for tenant in tenants {
                part.tenants.entry((*tenant).into()).or_default();
            }
        }
    }

    /// The jobs of each of these tenants, and of all others, with `None`; empty if there are none.
    #[cfg(feature = "server")]
    pub(super) fn tenants(&self) -> BTreeMap<Option<Box<str>>, TenantJobs> {
        let mut sums = BTreeMap::<_, TenantJobs>::new();
        for shard in &self.shards {
            let part = shard.0.lock();
            let named = part.tenants.iter().map(|(tenant, jobs)| (Some(tenant.clone()), jobs));
            for (tenant, jobs) in named.chain((!part.tenants.is_empty()).then_some((None, &part.others))) {
                sums.entry(tenant).or_default().iter_mut().zip(jobs).for_each(|(sum, count)| *sum += count);
            }
        }
        sums
    }
}

impl Part {
    fn count(&mut self, tenant: &str, end: RecordedEnd) {
        if !self.tenants.is_empty() {
            self.tenants.get_mut(tenant).unwrap_or(&mut self.others)[end as usize] += 1;
        }
    }
}
