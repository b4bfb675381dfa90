//! Settings of a pool. The defaults below are those of the Rust API; `src/config/keys_and_defaults.rs` has those of
//! `waterwheel serve`. A test compares the two.

use std::{num::NonZeroUsize, time::Duration};

use crate::{
    model::{DeadlinePolicy, WhenFull},
    scheduler::{Bounds, Caps},
};

/// Settings of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Number of workers: jobs that run at the same time. Default: one for each CPU that the process may use.
    pub workers: NonZeroUsize,
    /// Largest number of workers. The pool then sizes itself by its load, between `workers` and this number, and must
    /// be built within a runtime. `None`, the default, means a fixed size.
    pub max_workers: Option<NonZeroUsize>,
    /// Maximum number of jobs in the queue; 0 means that a job is accepted only if a worker is free. Default 1,024.
    pub queue_jobs: usize,
    /// Maximum payload bytes in the queue. Each worker may hold one more payload. A larger job is refused even if a
    /// worker is idle. Default 64 MiB.
    pub queue_bytes: usize,
    /// Maximum number of callers that wait for capacity; their payloads are also bounded by `queue_bytes`. Default
    /// 1,024.
    pub queue_waiting: usize,
    /// What happens to a job if the pool is full, unless the job sets its own policy. Default [`WhenFull::Reject`].
    pub when_full: WhenFull,
    /// Largest part of the queue for one tenant while another is present, from 0 to 1. Default 0.25.
    pub tenant_share: f64,
    /// Time between the request to stop and the forced stop. Default 1 s.
    pub cancel_grace: Duration,
    /// Maximum number of workers that are replaced because their blocking job does not stop. Default 4.
    pub max_stuck: usize,
    /// Maximum payload bytes of one job. Default 4 MiB.
    pub max_payload: usize,
    /// Maximum output bytes of one job, unless its kind sets a limit. Default 4 MiB less 64 KiB.
    pub max_output: usize,
    /// Ended jobs that are remembered for [`Pool::explain`](super::Pool::explain) and
    /// [`Pool::list`](super::Pool::list), divided among the shards. Each takes up to 5 KiB. Default
    /// 1,024.
    pub ended_jobs: usize,
    /// Jobs that are recorded, so that the server can replay them under other settings, 32 bytes each. Default
    /// 65,536, and 0 without the service.
    pub recorded_jobs: usize,
    /// Run time from which a job counts as stale; `None`, the default, means never.
    pub stale_after: Option<Duration>,
    /// A poll of an async handler that takes longer is counted and logged, because it blocks its thread. At least a
    /// millisecond. Default 100 ms.
    pub slow_poll: Duration,
    /// How deadlines are computed. Default: [`DeadlinePolicy::default`].
    pub deadline: DeadlinePolicy,
    /// Number of Tokio runtimes that share the pool; see [`set_shard`](super::set_shard). Default 1.
    pub shards: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            max_workers: None,
            queue_jobs: 1024,
            queue_bytes: 64 << 20,
            queue_waiting: 1024,
            when_full: WhenFull::Reject,
            tenant_share: 0.25,
            cancel_grace: Duration::from_secs(1),
            max_stuck: 4,
            max_payload: 4 << 20,
            max_output: (4 << 20) - (64 << 10),
            ended_jobs: 1024,
            recorded_jobs: if cfg!(feature = "server") { 1 << 16 } else { 0 },
            stale_after: None,
            slow_poll: Duration::from_millis(100),
            deadline: DeadlinePolicy::default(),
            shards: 1,
        }
    }
}

impl Settings {
    /// Maximum number of workers that the pool may have.
    #[must_use]
    pub fn most_workers(&self) -> usize {
        self.max_workers.unwrap_or(self.workers).get()
    }

    /// Whether `other` has the same number of workers.
    pub(super) fn is_sized_like(&self, other: &Self) -> bool {
        (self.workers, self.max_workers) == (other.workers, other.max_workers)
    }

    /// The number of workers; none before remote ones attach.
    pub(crate) fn bounds(&self, is_remote: bool) -> Bounds {
        if is_remote {
            return Bounds { min: 0, max: 0 };
        }
        let min = self.workers.get();
        Bounds { min, max: self.most_workers().max(min) }
    }

    pub(crate) fn caps(&self) -> Caps {
        Caps {
            jobs: self.queue_jobs,
            bytes: self.queue_bytes,
            waiting: self.queue_waiting,
            tenant_share: self.tenant_share,
            stuck: self.max_stuck,
        }
    }
}
