//! Lists the jobs of the scheduler, and explains why one waits. `src/pool/listing.rs` adds ended jobs.

use std::time::Duration;

use rustc_hash::FxHashSet;
use tokio::time::Instant;

use super::{
    Core, Host, TenantRate,
    admission::seconds,
    entry::{Entry, EntryStage, KindQueueId},
    limit::TIE,
    list::Link,
    workers::{WorkerState, Workers},
};
use crate::model::{JobStage, KindId, Limiter};

/// Position of a job, and why it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// Its position from 1: among the queued jobs by acceptance, or among the waiting callers by arrival.
    pub position: usize,
    /// Its state in the queue; `None` for a waiting caller.
    pub queued: Option<Queued>,
}

/// Why a queued job has not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queued {
    /// Jobs that are expected to start before it.
    pub ahead: usize,
    /// Expected time until it starts; `None` in a paused pool.
    pub expected_start: Option<Duration>,
    /// The reason that prevents its start.
    pub bound_by: Binding,
    /// Until when a handler holds its kind or its limit key.
    pub held_until: Option<Instant>,
}

/// The reason that prevents the start of a queued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// No worker is free, and the jobs before it arrived earlier or are more important.
    Workers,
    /// No worker is attached. The usual time until one does, if that is known.
    NoWorker(Option<Duration>),
    /// No worker is free, and jobs of tenants with less worker time go first, though they arrived later.
    Tenants,
    /// An earlier job has the same ordering key.
    OrderingKey,
    /// A limit of its kind.
    Limit(Limiter),
    /// The pool is paused.
    Pause,
}

/// The stage of a job, and its worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) stage: JobStage,
    /// Worker of a running job.
    pub(crate) worker: u32,
    /// Whether the job ignores the request to stop.
    pub(crate) is_stuck: bool,
    /// Whether the outcome is decided; the handler is still stopping.
    pub(crate) is_ended: bool,
}

/// The state of a job.
pub(crate) struct Explained<J> {
    pub(crate) job: J,
    pub(crate) held: Held,
    /// Why it waits; `None` if it does not.
    pub(crate) wait: Option<Wait>,
    /// The job that holds its ordering key, if it waits for that.
    pub(crate) key_holder: Option<J>,
}

/// The items with the smallest keys, in that order, and the number of all.
pub(crate) type Smallest<K, T> = (Vec<(K, T)>, usize);

impl<H: Host> Core<H> {
    /// The jobs for which `key` returns a value: the first `limit` by key, and the number of all. Scans
    /// every job.
    pub(crate) fn list<K: Ord>(
        &self,
        limit: usize,
        key: impl Fn(&H::Job, Held) -> Option<K>,
    ) -> Smallest<K, (H::Job, Held)> {
        let keyed = self.entries.iter().filter_map(|(_, entry)| {
            let held = held(&self.workers, entry.stage);
            Some((key(&entry.job, held)?, (&entry.job, held)))
        });
        let (smallest, all) = smallest(keyed, limit);
        (smallest.into_iter().map(|(key, (job, held))| (key, (job.clone(), held))).collect(), all)
    }

    /// The tenants with the highest request rates, highest first.
    pub(crate) fn tenant_rates(&self, now: Instant) -> Vec<TenantRate> {
        self.admission.demand.rates(self.admission.window_at(now))
    }
}

fn held<S>(workers: &Workers<S>, stage: EntryStage) -> Held {
    let (worker, is_ended) = match stage {
        EntryStage::Running { worker, ended } => (Some(workers.get(worker)), ended),
        EntryStage::Waiting | EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled => (None, false),
    };
    Held {
        stage: stage.job_stage(),
        worker: worker.map_or(0, |worker| worker.id),
        is_stuck: worker.is_some_and(|worker| matches!(worker.state, WorkerState::Stuck(_))),
        is_ended,
    }
}

/// The first `limit` items by key, and the number of all.
pub(crate) fn smallest<K: Ord, T>(items: impl Iterator<Item = (K, T)>, limit: usize) -> Smallest<K, T> {
    let mut items: Vec<_> = items.collect();
    let all = items.len();
    if all > limit {
        items.select_nth_unstable_by(limit, |(a, _), (b, _)| a.cmp(b));
        items.truncate(limit);
    }
    items.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    (items, all)
}

/// The jobs that are expected to start before a queued job.
#[derive(Default)]
struct Before {
    jobs: usize,
    /// Those of its own kind queue.
    in_kind_queue: usize,
    /// Seconds of those of its own tenant and class.
    first_of_tenant: f64,
    /// Seconds of those, and of the classes above.
    first: f64,
    /// For each other tenant of its class: queued seconds, and arriving seconds per second.
    others: Vec<(f64, f64)>,
    /// Whether some of them arrived later.
    has_later: bool,
}

/// Iterations to find the expected wait. Each gets closer, and none exceeds it.
const ROUNDS: usize = 32;

/// Why a job waits.
impl<H: Host> Core<H> {
    /// The state of the job that `is` identifies, and why it waits. `None` if there is no such job. Scans every job.
    pub(crate) fn explain(&self, now: Instant, is: impl Fn(&H::Job) -> bool) -> Option<Explained<H::Job>> {
        let (index, entry) = self.entries.iter().find(|(_, entry)| is(&entry.job))?;
        let place = |before: Option<usize>| before.map_or(0, |before| before + 1);
        let wait = match entry.stage {
            EntryStage::Waiting => {
                let position = place(self.queue.waiting.iter(&self.entries).position(|at| at == index));
                Some(Wait { position, queued: None })
            }
            EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled => {
                let position = place(self.queue.all.iter(&self.entries, Link::Age).position(|at| at == index));
                Some(Wait { position, queued: Some(self.explain_queued(now, index, entry)) })
            }
            EntryStage::Running { .. } => None,
        };
        let key_holder = (entry.stage == EntryStage::Blocked).then(|| self.key_holder(entry)).flatten();
        Some(Explained { job: entry.job.clone(), held: held(&self.workers, entry.stage), wait, key_holder })
    }

    /// The first job with the ordering key of a queued one.
    fn key_holder(&self, entry: &Entry<H>) -> Option<H::Job> {
        let others = self.entries.iter().map(|(_, other)| other).filter(|other| other.key_queue == entry.key_queue);
        others.min_by_key(|other| other.sequence).map(|first| first.job.clone())
    }

    /// The limit of a kind, not of its limit keys, that a job of it would wait for.
    pub(crate) fn reached_limit(&self, kind: KindId, now: Instant) -> Option<Limiter> {
        self.limits.closed_by(self.limits.kind_queue(kind), now)
    }

    fn explain_queued(&self, now: Instant, index: usize, entry: &Entry<H>) -> Queued {
        let before = self.before(now, index, entry);
        let earlier = |other: &&Entry<H>| other.key_queue == entry.key_queue && other.sequence < entry.sequence;
        let of_key =
            || self.entries.iter().map(|(_, other)| other).filter(earlier).filter(|_| entry.key_queue.is_some());
        let in_key_queue: f64 = of_key().map(|other| other.work).sum();
        let blocked = of_key().filter(|other| other.stage == EntryStage::Blocked).count();
        let shared = if self.can_start() { 0.0 } else { self.expected_start(entry, &before) + self.start_wait(now) };
        let service = self.admission.estimates.measured(entry.kind).unwrap_or(0.0);
        let at_key = self.limits.before(&self.entries, index);
        let limit = self.limits.wait(entry.kind_queue, before.in_kind_queue as f64, at_key, service, now);
        let expected = seconds(shared.max(in_key_queue).max(limit.seconds));
        Queued {
            ahead: before.jobs + blocked,
            expected_start: Some(expected).filter(|_| self.paused.is_none()),
            bound_by: self.binding(now, entry, before.has_later),
            held_until: self.job_held_until(entry.kind_queue, entry.key_limiter).filter(|until| *until > now),
        }
    }

    fn binding(&self, now: Instant, entry: &Entry<H>, has_later: bool) -> Binding {
        if self.paused.is_some() {
            return Binding::Pause;
        }
        match (entry.stage, entry.key_limiter) {
            (EntryStage::Blocked, _) => Binding::OrderingKey,
            (EntryStage::Throttled, Some(key_limiter)) => Binding::Limit(self.limits.throttled_by(key_limiter, now)),
            _ => match self.limits.closed_by(entry.kind_queue, now) {
                Some(limiter) => Binding::Limit(limiter),
                None if self.workers.configured() == 0 => Binding::NoWorker(self.cold_start.usual()),
                None if has_later => Binding::Tenants,
                None => Binding::Workers,
            },
        }
    }

    /// Seconds until a queued job starts. Each other tenant's queued and arriving jobs pass it, but at most as much as
    /// its own tenant has, this job included.
    fn expected_start(&self, entry: &Entry<H>, before: &Before) -> f64 {
        let workers = self.workers.live().max(1) as f64;
        let own = before.first_of_tenant + entry.work;
        let passing =
            |wait: f64| -> f64 { before.others.iter().map(|(queued, pace)| own.min(queued + pace * wait)).sum() };
        (0..ROUNDS).fold(0.0, |wait, _| (before.first + passing(wait)) / workers)
    }

    /// The admission rule, applied by counting: all ready jobs of the classes above, its tenant's jobs before it, and
    /// as much of each other tenant of its class. Kinds at their limit are skipped.
    fn before(&self, now: Instant, index: usize, entry: &Entry<H>) -> Before {
        let mut before = Before::default();
        let own_slot = entry.slot();
        let rank = entry.class.rank();
        let own_flow = entry.tenant.and_then(|tenant| self.queue.tenants.flow(tenant, own_slot));
        let own_ready = own_flow.into_iter().flat_map(|flow| flow.ready.iter(&self.entries, Link::Line));
        for at in own_ready.take_while(|at| *at != index) {
            let job = &self.entries[at];
            before.add(job, entry.kind_queue);
            before.first_of_tenant += job.work;
        }
        let own = before.first_of_tenant + entry.work;
        let runs = self.entries.iter().map(|(_, other)| other).filter(|other| other.is_undecided_run());
        let runs: FxHashSet<_> = runs.filter_map(|other| other.tenant).collect();
        for (slot, tenant, flow) in self.queue.tenants.flows() {
            let (kind_queue, class) = (KindQueueId(slot / 4), slot % 4);
            let is_own = slot == own_slot && Some(tenant) == entry.tenant;
            if is_own || class > rank || (kind_queue != entry.kind_queue && !self.limits.is_open(kind_queue, now)) {
                continue;
            }
            let mut queued = 0.0;
            for at in flow.ready.iter(&self.entries, Link::Line) {
                let job = &self.entries[at];
                if class == rank && queued + TIE >= own {
                    break;
                }
                queued += job.work;
                before.add(job, entry.kind_queue);
                before.has_later |= class == rank && job.sequence > entry.sequence;
            }
            if class < rank {
                before.first += queued;
            } else if queued > 0.0 || runs.contains(&tenant) {
                // A tenant without a job is assumed to send no more jobs.
                let pace =
                    self.admission.demand.per_second(self.queue.tenants.name(tenant), self.admission.window_at(now));
                before.others.push((queued, pace));
            }
        }
        before.first += before.first_of_tenant;
        before
    }
}

impl Before {
    fn add<H: Host>(&mut self, job: &Entry<H>, kind_queue: KindQueueId) {
        self.jobs += 1;
        self.in_kind_queue += usize::from(job.kind_queue == kind_queue);
    }
}
