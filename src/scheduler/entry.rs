//! One job in the scheduler.

use std::time::Duration;

use tokio::time::Instant;

use super::{Arrival, Host, limit::UNLIMITED, list::Links};
use crate::model::{Criticality, JobStage, KindId, WhenFull};

/// Identifies an entry. A later entry at the same index has another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct JobKey {
    pub(super) index: usize,
    pub(super) sequence: u64,
}

/// One job, from its arrival until its worker is free again.
pub(super) struct Entry<H: Host> {
    pub(super) sequence: u64,
    pub(super) job: H::Job,
    /// Taken when the job starts or ends in the queue.
    pub(super) waiter: Option<H::Waiter>,
    pub(super) stage: EntryStage,
    pub(super) kind: KindId,
    pub(super) class: Criticality,
    pub(super) bytes: usize,
    /// Estimated service time in seconds, fixed on acceptance so that sums stay exact.
    pub(super) work: f64,
    /// Worker time that was charged for it so far.
    pub(super) took: Duration,
    /// Seconds with which its run counts in the estimate of its kind; 0 if it does not count.
    pub(super) counted: f64,
    /// Whether a newer job of its tenant may take its place.
    pub(super) is_replaceable: bool,
    /// Whether it is a probe of its kind's service time.
    pub(super) is_probe: bool,
    /// Whether a store has counted it for the limits of its kind.
    pub(super) is_stored: bool,
    pub(super) start_by: Instant,
    pub(super) finish_by: Instant,
    pub(super) shard: usize,
    /// The tenant, from the time when the job is queued until its end.
    pub(super) tenant: Option<TenantId>,
    pub(super) key_queue: Option<KeyQueueId>,
    /// The kind queue of its kind.
    pub(super) kind_queue: KindQueueId,
    /// The key limiter of its limit key, from acceptance on.
    pub(super) key_limiter: Option<KeyLimiterId>,
    /// Names of a waiting caller, kept until its job is accepted.
    pub(super) waiting_names: Option<OwnedNames>,
    pub(super) links: Links,
}

/// A number of jobs, and their payload bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) jobs: usize,
    pub(crate) bytes: usize,
}

/// Stage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryStage {
    /// Its caller waits for capacity; not accepted.
    Waiting,
    /// Queued and free to start.
    Ready,
    /// Queued behind a job with the same ordering key.
    Blocked,
    /// Queued behind the limits of its limit key.
    Throttled,
    /// Holds a worker.
    Running {
        /// Index of the worker.
        worker: usize,
        /// Whether the outcome is decided; the handler may still be stopping.
        ended: bool,
    },
}

impl EntryStage {
    pub(super) fn job_stage(self) -> JobStage {
        match self {
            Self::Waiting => JobStage::Waiting,
            Self::Ready | Self::Blocked | Self::Throttled => JobStage::Queued,
            Self::Running { .. } => JobStage::Running,
        }
    }

    /// The worker of a job whose outcome is not decided.
    pub(super) fn worker(self) -> Option<usize> {
        if let Self::Running { worker, ended: false } = self { Some(worker) } else { None }
    }
}

impl<H: Host> Entry<H> {
    /// An arrival that is neither queued nor running yet.
    pub(super) fn new(sequence: u64, arrival: Arrival<'_, H::Job>, kind_queue: KindQueueId) -> Self {
        Self {
            sequence,
            job: arrival.job,
            waiter: None,
            stage: EntryStage::Waiting,
            kind: arrival.kind,
            class: arrival.class,
            bytes: arrival.bytes,
            work: 0.0,
            took: Duration::ZERO,
            counted: 0.0,
            is_replaceable: arrival.when_full == WhenFull::DropOldest,
            is_probe: false,
            is_stored: arrival.is_stored,
            start_by: arrival.start_by,
            finish_by: arrival.finish_by,
            shard: arrival.shard,
            tenant: None,
            key_queue: None,
            kind_queue,
            key_limiter: None,
            waiting_names: None,
            links: Links::default(),
        }
    }

    /// Kind queue and class as one number.
    pub(super) fn slot(&self) -> usize {
        slot(self.kind_queue, self.class)
    }

    /// Its load in its kind queue: seconds if the kind has no limits, else starts.
    pub(super) fn load(&self) -> f64 {
        if self.kind_queue == UNLIMITED { self.work } else { 1.0 }
    }

    /// The names of a waiting caller.
    pub(super) fn names(&self) -> Names<'_> {
        self.waiting_names.as_ref().expect("a waiting entry keeps its names").names()
    }

    pub(super) fn is_undecided_run(&self) -> bool {
        self.stage.worker().is_some()
    }
}

impl<H: Host> AsMut<Links> for Entry<H> {
    fn as_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl<H: Host> AsRef<Links> for Entry<H> {
    fn as_ref(&self) -> &Links {
        &self.links
    }
}

/// Kind queue and class as one number; the open kind queue comes first.
pub(super) fn slot(kind_queue: KindQueueId, class: Criticality) -> usize {
    kind_queue.0 * 4 + class.rank()
}

/// The names of an arrival that determine its queues; resolved when it is accepted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) tenant: &'a str,
    pub(super) ordering_key: &'a str,
    pub(super) limit_key: &'a str,
}

/// The names of a waiting caller: tenant, ordering key and limit key.
pub(super) struct OwnedNames(Box<[Box<str>; 3]>);

impl<'a> Names<'a> {
    pub(super) fn of<J>(arrival: &Arrival<'a, J>) -> Self {
        let Arrival { tenant, ordering_key, limit_key, .. } = *arrival;
        Self { tenant, ordering_key, limit_key }
    }

    pub(super) fn to_owned(self) -> OwnedNames {
        OwnedNames(Box::new([self.tenant, self.ordering_key, self.limit_key].map(Box::from)))
    }
}

impl OwnedNames {
    pub(super) fn names(&self) -> Names<'_> {
        let [tenant, ordering_key, limit_key] = &*self.0;
        Names { tenant, ordering_key, limit_key }
    }
}

/// A tenant that has jobs in the pool, or is ahead in worker time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TenantId(pub(crate) usize);

/// An ordering key in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyQueueId(pub(crate) usize);

/// The queue of a kind with limits, or of all kinds without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KindQueueId(pub(crate) usize);

/// A limit key of a kind that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyLimiterId(pub(crate) usize);
