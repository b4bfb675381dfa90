//! Several pools, and the pool of each kind.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rustc_hash::FxHashMap;

use super::{JobStream, Pool, Ticket, arrival::check, shard::Replaceable, stream::stream, ticket::result_of};
use crate::{
    model::{Job, JobError, JobResult, KindId, Rejection, RejectionReason},
    phase::Phase,
};

/// Several pools as bulkheads, and their kinds.
#[derive(Debug, Clone)]
pub struct Pools(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pools: Vec<Pool>,
    by_kind: Replaceable<ByKind>,
    unknown: AtomicU64,
}

type ByKind = FxHashMap<Arc<str>, (usize, KindId)>;

impl Pools {
    /// Combines `pools`. If two serve the same kind, the later one gets its jobs.
    #[must_use]
    pub fn new(pools: Vec<Pool>) -> Self {
        let by_kind = Replaceable::new(by_kind(&pools));
        Self(Arc::new(Inner { pools, by_kind, unknown: AtomicU64::new(0) }))
    }

    /// Updates the kinds, after pools were [reconfigured](Pool::reconfigure).
    pub fn refresh(&self) {
        self.0.by_kind.replace(by_kind(&self.0.pools));
    }

    /// The pools.
    #[must_use]
    pub fn all(&self) -> &[Pool] {
        &self.0.pools
    }

    /// The pool of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Pool> {
        self.0.pools.iter().find(|pool| &**pool.name() == name)
    }

    /// The pool that serves a kind.
    #[must_use]
    pub fn of_kind(&self, kind: &str) -> Option<&Pool> {
        self.0.by_kind.get(kind).map(|(pool, _)| &self.0.pools[*pool])
    }

    /// Names of the served kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.by_kind.keys()
    }

    /// Whether no pool's queue is saturated: four fifths full, and not below one fifth since. The two thresholds
    /// differ, so that one job does not change the answer.
    #[must_use]
    pub fn has_headroom(&self) -> bool {
        self.0.pools.iter().all(|pool| !pool.is_saturated())
    }

    /// Jobs that were refused because no pool serves their kind.
    #[must_use]
    pub fn unknown_kinds(&self) -> u64 {
        self.0.unknown.load(Ordering::Relaxed)
    }

    /// [`Pool::submit`] on the pool of the job's kind.
    ///
    /// # Errors
    /// The same errors, and a refusal if no pool serves the kind.
    pub fn submit(&self, job: Job) -> impl Future<Output = JobResult> + Send + Unpin + use<> {
        result_of(self.try_submit(job))
    }

    /// [`Pool::try_submit`] on the pool of the job's kind.
    ///
    /// # Errors
    /// The same errors, and a refusal if no pool serves the kind.
    pub fn try_submit(&self, job: impl Into<Box<Job>>) -> Result<Ticket, Rejection> {
        let job = job.into();
        let (pool, kind) = self.locate(&job)?;
        Ticket::admit(pool.inner(), kind, job, pool.inner().collector(kind))
    }

    /// Whether the pools accept no more jobs.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.0.pools.iter().any(|pool| pool.phase() >= Phase::Draining)
    }

    /// Returns when no pool accepts jobs any more. Cancel safe.
    pub async fn closing(&self) {
        if self.0.pools.is_empty() {
            std::future::pending::<()>().await;
        }
        // Pools start to drain one after the other, so wait until no pool accepts jobs.
        for pool in &self.0.pools {
            pool.inner().phase.reached(Phase::Draining).await;
        }
    }

    /// [`Pool::stream`] on the pool of the job's kind.
    ///
    /// # Errors
    /// The same errors, and a refusal if no pool serves the kind.
    pub async fn stream(&self, job: Job) -> Result<JobStream, JobError> {
        let (pool, kind) = self.locate(&job)?;
        stream(pool.inner(), kind, Box::new(job)).await
    }

    /// Checks the fields of a job.
    ///
    /// # Errors
    /// The refusal that its pool would return.
    pub(crate) fn check(&self, job: &Job) -> Result<(), Rejection> {
        let violations = job.violations();
        if violations.is_empty() {
            return Ok(());
        }
        let (pool, kind) = self.locate(job)?;
        let inner = pool.inner();
        Err(inner.reject(Arc::clone(inner.kind(kind).name()), RejectionReason::Invalid { violations }))
    }

    /// The pool of the job's kind.
    ///
    /// # Errors
    /// The refusal that the pool would return at any load.
    pub(crate) fn pool_of(&self, job: &Job) -> Result<&Pool, Rejection> {
        let (pool, kind) = self.locate(job)?;
        check(pool.inner(), kind, job)?;
        Ok(pool)
    }

    fn locate(&self, job: &Job) -> Result<(&Pool, KindId), Rejection> {
        match self.0.by_kind.get(job.kind.as_str()) {
            Some((pool, kind)) => Ok((&self.0.pools[*pool], *kind)),
            None => Err(self.unknown_kind(job)),
        }
    }

    fn unknown_kind(&self, job: &Job) -> Rejection {
        self.0.unknown.fetch_add(1, Ordering::Relaxed);
        let violations = job.violations();
        let reason = if violations.is_empty() {
            RejectionReason::UnknownKind { suggestion: closest(&job.kind, self.0.by_kind.keys()) }
        } else {
            RejectionReason::Invalid { violations }
        };
        // A name that is too long is not repeated.
        let kind: String = job.kind.chars().take(64).collect();
        Rejection { reason, pool: None, kind: kind.into(), retry_after: None }
    }
}

fn by_kind(pools: &[Pool]) -> ByKind {
    let kinds = pools
        .iter()
        .enumerate()
        .flat_map(|(pool, entry)| entry.kind_names().map(move |(kind, name)| (Arc::clone(name), (pool, kind))));
    kinds.collect()
}

/// The known name that is most similar to `kind`.
pub(super) fn closest<'a>(kind: &str, names: impl Iterator<Item = &'a Arc<str>>) -> Option<Arc<str>> {
    if kind.len() > 64 {
        return None;
    }
    let ranked = names.map(|name| (strsim::jaro_winkler(kind, name), name));
    let best = ranked.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, name)| Arc::clone(name))
}
