//! Settings of a pool with their defaults in Rust, and its builder. Defaults of `waterwheel serve` are in
//! `src/config/keys.rs`.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use super::{Pool, inner::PoolInner};
use crate::{
    handler::Kind,
    model::{DeadlinePolicy, WhenFull},
    scheduler::Caps,
};

/// Settings of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Number of workers: jobs that run at the same time. Default: the number of cores.
    pub workers: NonZeroUsize,
    /// Most workers: between `workers` and this number, the pool chooses by its load. It must then be built within a
    /// runtime. Default `None`: their number is fixed.
    pub max_workers: Option<NonZeroUsize>,
    /// Most jobs in the queue. Default 1,024; 0 means that a job needs a free worker.
    pub queue_jobs: usize,
    /// Most payload bytes in the queue; each worker holds one payload beside that. A larger job is refused even if a
    /// worker is idle. Default 64 MiB.
    pub queue_bytes: usize,
    /// Most callers that wait for capacity; their payloads are also bounded by `queue_bytes`. Default 1,024.
    pub queue_waiting: usize,
    /// What happens to a job that finds the pool full, unless the job decides. Default [`WhenFull::Reject`].
    pub when_full: WhenFull,
    /// Largest part of the queue for one tenant while another is present, from 0 to 1. Default 0.25.
    pub tenant_share: f64,
    /// Time between the request to stop and the forced stop. Default 1 s.
    pub cancel_grace: Duration,
    /// Most workers that are replaced because their blocking job does not stop. Default 4.
    pub max_stuck: usize,
    /// Most payload bytes of one job. Default 4 MiB.
    pub max_payload: usize,
    /// Most output bytes of one job, unless its kind decides. Default 4 MiB less 64 KiB.
    pub max_output: usize,
    /// Ended jobs that are remembered, for [`Pool::explain`] and [`Pool::list`], divided among the shards. Each takes up
    /// to 5 KiB. Default 1,024.
    pub ended_jobs: usize,
    /// How deadlines are computed.
    pub deadline: DeadlinePolicy,
    /// Runtimes that share the pool; see [`set_shard`](super::set_shard). Default 1.
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
            deadline: DeadlinePolicy::default(),
            shards: 1,
        }
    }
}

impl Settings {
    pub(super) fn caps(&self) -> Caps {
        Caps {
            jobs: self.queue_jobs,
            bytes: self.queue_bytes,
            waiting: self.queue_waiting,
            tenant_share: self.tenant_share,
            stuck: self.max_stuck,
        }
    }
}

/// Builds a [`Pool`].
#[derive(Debug)]
pub struct PoolBuilder {
    name: Arc<str>,
    settings: Settings,
    kinds: Vec<Kind>,
}

impl PoolBuilder {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self { name, settings: Settings::default(), kinds: Vec::new() }
    }

    /// Replaces all settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the number of workers.
    #[must_use]
    pub fn workers(mut self, workers: NonZeroUsize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// Lets the pool choose the number of its workers by its load, between these bounds.
    #[must_use]
    pub fn elastic(mut self, min: NonZeroUsize, max: NonZeroUsize) -> Self {
        self.settings.workers = min;
        self.settings.max_workers = Some(max);
        self
    }

    /// Sets the largest number of jobs in the queue.
    #[must_use]
    pub fn queue_jobs(mut self, jobs: usize) -> Self {
        self.settings.queue_jobs = jobs;
        self
    }

    /// Sets what happens to jobs that find the pool full.
    #[must_use]
    pub fn when_full(mut self, policy: WhenFull) -> Self {
        self.settings.when_full = policy;
        self
    }

    /// Adds a kind. A later kind of the same name replaces an earlier one.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kinds.retain(|other| other.name() != kind.name());
        self.kinds.push(kind);
        self
    }

    /// Builds the pool. Workers make their handlers with their first job of a kind; the threads of blocking kinds start
    /// then, too. A pool that is not used can be dropped.
    #[must_use]
    pub fn build(self) -> Pool {
        Pool::from(PoolInner::start(self.name, self.settings, self.kinds))
    }
}
