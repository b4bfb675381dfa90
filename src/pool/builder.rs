//! Builds a pool.

use std::{num::NonZeroUsize, sync::Arc};

use super::{Pool, Settings, inner::PoolInner, timers::keep_size};
use crate::{handler::Kind, model::WhenFull};

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

    /// Replaces all settings. Default: [`Settings::default`].
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the number of workers: jobs that run at the same time. Default: one for each CPU that the process may use.
    #[must_use]
    pub fn workers(mut self, workers: NonZeroUsize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// Lets the pool size itself by its load, between these bounds. Default: the size is fixed.
    #[must_use]
    pub fn elastic(mut self, min: NonZeroUsize, max: NonZeroUsize) -> Self {
        self.settings.workers = min;
        self.settings.max_workers = Some(max);
        self
    }

    /// Sets the largest number of jobs in the queue. Default 1,024.
    #[must_use]
    pub fn queue_jobs(mut self, jobs: usize) -> Self {
        self.settings.queue_jobs = jobs;
        self
    }

    /// Sets what happens to jobs if the pool is full. Default [`WhenFull::Reject`].
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

    /// Builds the pool. A worker makes the handler of a kind, and its thread if the kind is blocking, for its first job
    /// of that kind. An unused pool can be dropped.
    #[must_use]
    pub fn build(self) -> Pool {
        let Self { name, settings, kinds } = self;
        let is_remote = kinds.iter().any(|kind| kind.external().is_some_and(|external| external.slots().is_some()));
        let (shards, bounds) = (settings.shards.max(1), settings.bounds(is_remote));
        let pool = Pool::of(PoolInner::new(name, settings, bounds), shards);
        pool.inner().serve(kinds);
        keep_size(pool.inner());
        pool
    }
}
