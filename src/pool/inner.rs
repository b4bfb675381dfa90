//! The shared state of a pool: the scheduler behind its lock, the execution of its effects, and the kinds.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt;
use rustc_hash::FxHashMap;
use tokio::{sync::Notify, time::Instant};

use super::{
    Pool, Settings,
    blocking::{Message, Reports, report},
    drain::LostJob,
    ended_jobs::Meters,
    factories::Factories,
    lease::{End, Gone, Lease, WorkerHandlers},
    outcome::note_lost,
    queued_job::{QueuedJob, Signal, Waiter},
    shard::{Replaceable, Shared, shard},
    ticket::{Granted, Ticket, log_arrival},
    timers::{Timer, keep_size},
};
use crate::{
    handler::{Context, Kind, Site},
    model::{Durations, Job, KindLimits, MAX_RETRY_AFTER, Outcome, Rejection, RejectionReason},
    phase::{Phase, PhaseCell},
    scheduler::{Arrival, Bounds, Core, Effect, Grant, Host, JobKey, Refusal, Verdict, Withdrawal, Withdrawn},
    task::Tasks,
};

/// Gives data that many threads write its own cache lines. Some processors fetch pairs of 64-byte lines.
#[repr(align(128))]
struct Padded<T>(T);

/// A pool: the scheduler behind its lock, and the code that carries out its effects.
pub(super) struct PoolInner {
    pub(super) name: Arc<str>,
    pub(super) settings: Replaceable<Settings>,
    /// A replaced or removed kind keeps its index: its jobs end under it.
    pub(super) kinds: boxcar::Vec<Kind>,
    /// By shard and kind, so that each shard has its own reference counts.
    sites: Vec<boxcar::Vec<Arc<Site>>>,
    /// The served kinds.
    by_name: Replaceable<FxHashMap<Arc<str>, usize>>,
    core: Padded<Mutex<Core<Wiring>>>,
    pub(super) meters: Meters,
    pub(super) factories: Factories,
    /// Whether a task adjusts the size of the pool.
    pub(super) is_sized: AtomicBool,
    pub(super) tasks: Tasks,
    pub(super) phase: PhaseCell,
    /// Notified when waiting callers get capacity, or give up.
    pub(super) room: Notify,
    pub(super) lost: Mutex<Vec<LostJob>>,
    /// How long drains of this pool took.
    pub(super) drains: Mutex<Durations>,
    /// When a stop forces running jobs, even if their grace is longer.
    pub(super) force_by: OnceLock<Instant>,
    pub(super) slow_polls: AtomicU64,
    /// Callers that wait until the pool [may accept](Core::may_accept) a job.
    pub(super) capacity_waiters: AtomicUsize,
    /// `None` until a kind has a rate.
    pub(super) timer: OnceLock<Timer>,
    /// The ways to the serving threads that have a reader, by shard. Only its own thread locks one.
    pub(super) reports: Vec<Mutex<Option<Reports>>>,
}

/// The types that the scheduler carries for the pool.
pub(super) enum Wiring {}

impl Host for Wiring {
    type Job = Context;
    type Waiter = Waiter;
    type State = Box<WorkerHandlers>;
}

/// A job that the scheduler admitted, or that waits for capacity.
pub(super) enum Offered {
    Granted(Granted),
    Queued(QueuedJob),
}

impl PoolInner {
    pub(super) fn start(name: Arc<str>, settings: Settings, kinds: Vec<Kind>) -> Pool {
        let shards = settings.shards.max(1);
        let mut core = Core::new(settings.caps(), kinds.len(), shards);
        let now = Instant::now();
        let is_remote = kinds.iter().any(|kind| kind.external().is_some_and(|external| external.slots().is_some()));
        let min = if is_remote { 0 } else { settings.workers.get() };
        let bounds =
            Bounds { min, max: settings.max_workers.filter(|_| !is_remote).map_or(min, |max| max.get().max(min)) };
        core.resize(now, bounds, WorkerHandlers::fresh, &mut Vec::new());
        let phase = PhaseCell::default();
        phase.advance(Phase::Serving);
        let inner = Self {
            factories: Factories::default(),
            is_sized: AtomicBool::new(false),
            meters: Meters::new(shards, settings.ended_jobs),
            sites: std::iter::repeat_with(boxcar::Vec::new).take(shards).collect(),
            name,
            settings: Replaceable::new(settings),
            kinds: boxcar::Vec::new(),
            by_name: Replaceable::new(FxHashMap::default()),
            core: Padded(Mutex::new(core)),
            tasks: Tasks::new(),
            phase,
            room: Notify::new(),
            lost: Mutex::default(),
            drains: Mutex::default(),
            force_by: OnceLock::new(),
            slow_polls: AtomicU64::new(0),
            capacity_waiters: AtomicUsize::new(0),
            timer: OnceLock::new(),
            reports: std::iter::repeat_with(Mutex::default).take(shards).collect(),
        };
        let pool = Pool::of(inner, shards);
        pool.inner().serve(kinds);
        keep_size(pool.inner());
        pool
    }

    /// The served kinds, with their indices.
    pub(super) fn served(&self) -> impl Iterator<Item = (usize, &Kind)> {
        self.kinds.iter().filter(|(index, _)| self.is_served(*index))
    }

    /// Whether the kind with that index was neither replaced nor removed.
    pub(super) fn is_served(&self, kind: usize) -> bool {
        self.kind_index(self.kinds[kind].name()) == Some(kind)
    }

    /// Increases whenever kinds are replaced, under the lock.
    pub(super) fn kinds_version(&self) -> usize {
        self.by_name.version()
    }

    pub(super) fn kind_index(&self, kind: &str) -> Option<usize> {
        self.by_name.get(kind).copied()
    }

    /// Adds a kind, and returns its index.
    fn add(&self, kind: Kind) -> usize {
        for sites in &self.sites {
            let (kind, pool) = (Arc::clone(kind.name()), Arc::clone(&self.name));
            sites.push(Arc::new(Site { kind, pool, tasks: self.tasks.clone() }));
        }
        self.factories.add();
        self.kinds.push(kind)
    }

    /// Decides the outcome of a running job that did not complete. Returns false if it was decided before.
    pub(super) fn end(&self, key: JobKey, outcome: Outcome, run: Duration, cx: &Context) -> bool {
        let now = Instant::now();
        let mut core = self.core.0.lock();
        let is_ours = core.end(now, key, outcome, run);
        if is_ours {
            // The loss is recorded under the lock, so that no observer sees a finished drain without its lost jobs.
            note_lost(self, cx);
        }
        is_ours
    }

    pub(super) fn read<T>(&self, look: impl FnOnce(&Core<Wiring>) -> T) -> T {
        look(&self.core.0.lock())
    }

    /// The state that jobs of a kind share, with the reference count of the calling thread's shard.
    pub(super) fn site(&self, kind: usize) -> Arc<Site> {
        Arc::clone(&self.sites.get(shard()).unwrap_or(&self.sites[0])[kind])
    }

    pub(super) fn rejection(&self, kind: usize, refusal: Refusal) -> Rejection {
        let Refusal { reason, retry_after } = refusal;
        Rejection {
            reason,
            pool: Some(Arc::clone(&self.name)),
            kind: Arc::clone(self.kinds[kind].name()),
            retry_after: retry_after.map(jittered),
        }
    }

    /// Counts and builds a refusal that is independent of the queue.
    pub(super) fn reject(&self, kind: Arc<str>, reason: RejectionReason) -> Rejection {
        self.core.0.lock().count_rejection(reason.index());
        Rejection { reason, pool: Some(Arc::clone(&self.name)), kind, retry_after: None }
    }
}

impl Shared {
    /// Serves `kinds` and no others from now on. A kind that is unchanged keeps its index. Any other kind gets a new
    /// index, and the jobs of its predecessor end under the old one.
    pub(super) fn serve(&self, kinds: Vec<Kind>) {
        let now = Instant::now();
        let gone: Gone = self.drive(|core, effects| {
            let place = |kind: Kind| {
                let same = self.kind_index(kind.name()).filter(|index| self.kinds[*index].is_same(&kind));
                (Arc::clone(kind.name()), same.unwrap_or_else(|| self.add(kind)))
            };
            let by_name: FxHashMap<_, _> = kinds.into_iter().map(place).collect();
            let limits: Vec<KindLimits> = self.kinds.iter().map(|(_, kind)| kind.get_options().limits).collect();
            if limits.iter().any(KindLimits::has_rate) {
                self.timer.get_or_init(Timer::new);
            }
            core.reconfigure(now, self.settings.caps(), &limits, effects);
            self.by_name.replace(by_name);
            core.idle_states().flat_map(|state| state.take_replaced(self)).collect()
        });
        self.close(gone);
        self.follow_externals();
        // Late jobs of removed kinds may record a few more figures, at most those of one kind.
        (0..self.kinds.count()).filter(|kind| !self.is_served(*kind)).for_each(|kind| self.meters.forget(kind));
    }

    /// Asks the scheduler to admit a job.
    pub(super) fn admit(&self, now: Instant, job: Box<Job>, kind: usize, cx: Context) -> Result<Ticket, Rejection> {
        match self.offer(now, job, kind, cx, self.kinds[kind].is_blocking())? {
            Offered::Granted(granted) => Ok(Ticket::granted(granted)),
            Offered::Queued(queued) => Ok(Ticket::queued(queued)),
        }
    }

    /// The same, but a queued job that is not `on_thread` gets its worker in its own task, even if its kind is blocking.
    pub(super) fn offer(
        &self,
        now: Instant,
        job: Box<Job>,
        kind: usize,
        cx: Context,
        on_thread: bool,
    ) -> Result<Offered, Rejection> {
        let deadline = cx.deadline();
        let queue_end = job.queue_timeout.and_then(|timeout| deadline.arrival().checked_add(timeout));
        let start_by = queue_end.map_or(deadline.reply_by(), |end| end.min(deadline.reply_by()));
        let arrival = Arrival {
            job: cx.clone(),
            kind,
            class: job.criticality,
            bytes: job.payload.len(),
            start_by,
            finish_by: deadline.reply_by(),
            tenant: &job.tenant,
            ordering_key: &job.ordering_key,
            limit_key: &job.limit_key,
            when_full: job.when_full.unwrap_or(self.settings.when_full),
            shard: shard(),
        };
        let mut place = None;
        let waiter = |_| {
            let (waiter, other_side) = Waiter::new(kind, on_thread, &cx);
            place = Some(other_side);
            waiter
        };
        let verdict = self.drive(|core, effects| core.offer(now, arrival, waiter, effects));
        match verdict {
            Verdict::Start(grant) => {
                let lease = self.lease(grant);
                log_arrival(self, kind, &job, &cx, None);
                Ok(Offered::Granted(Granted { kind, job, lease, cx }))
            }
            Verdict::Queued(key) | Verdict::Waiting(key) => {
                log_arrival(self, kind, &job, &cx, None);
                let place = place.expect("a job that does not start at once has a waiter");
                Ok(Offered::Queued(QueuedJob::new(self.clone(), key, kind, place, start_by, job, cx)))
            }
            Verdict::Refused(mut refusal) => {
                // The scheduler's times end when the answer is sent, before the caller's timeout.
                if let RejectionReason::DeadlineUnreachable { needed, .. } = &mut refusal.reason {
                    *needed = self.settings.deadline.timeout_for(*needed);
                }
                let rejection = self.rejection(kind, refusal);
                log_arrival(self, kind, &job, &cx, Some(&rejection));
                Err(rejection)
            }
        }
    }

    pub(super) fn withdraw(&self, key: JobKey, why: Withdrawal) -> Withdrawn {
        let now = Instant::now();
        self.drive(|core, effects| core.withdraw(now, key, why, effects))
    }

    /// Takes a worker back. If the lease has an outcome, decides it under the same lock. Returns false if the outcome
    /// was decided before.
    pub(super) fn release(&self, key: JobKey, mut state: Box<WorkerHandlers>, ended: Option<End<'_>>) -> bool {
        let now = ended.as_ref().map_or_else(Instant::now, |end| end.at);
        let (is_ours, replaced, leftover) = self.drive(|core, effects| {
            let mut is_ours = false;
            if let Some(End { outcome, run, at: _, lost }) = ended {
                is_ours = core.end(now, key, outcome, run);
                if let Some(cx) = lost.filter(|_| is_ours) {
                    note_lost(self, cx);
                }
            }
            let replaced = state.take_replaced(self);
            (is_ours, replaced, core.release(now, key, state, effects))
        });
        self.close(replaced);
        self.retire(leftover);
        is_ours
    }

    /// Marks a worker whose job does not stop. Returns whether another worker replaced it.
    pub(super) fn stick(&self, key: JobKey) -> bool {
        let now = Instant::now();
        self.drive(|core, effects| core.stick(now, key, WorkerHandlers::fresh, effects))
    }

    /// Runs `event` on the scheduler, and carries out its effects once the lock is free.
    pub(super) fn drive<T>(&self, event: impl FnOnce(&mut Core<Wiring>, &mut Vec<Effect<Wiring>>) -> T) -> T {
        let mut effects = Vec::new();
        let (result, drained, finished, admitted) = {
            let mut core = self.core.0.lock();
            let waiting = core.waiting();
            let result = event(&mut core, &mut effects);
            if let Some(timer) = self.timer.get() {
                timer.set(core.wake_at());
            }
            (result, core.take_drained(), core.is_finished(), core.waiting() < waiting)
        };
        // Most events have no effects, because the job starts at once or no job waits.
        if !effects.is_empty() {
            self.act(effects);
        }
        if let Some(since) = drained {
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.drains.lock().add(nanos, 1);
        }
        if admitted || self.capacity_waiters.load(Ordering::Relaxed) > 0 {
            self.room.notify_waiters();
        }
        if finished {
            self.phase.advance(Phase::Stopped);
        }
        result
    }

    fn lease(&self, grant: Grant<Wiring>) -> Lease {
        Lease::new(self.clone(), grant.key, grant.worker, grant.state)
    }

    /// Carries out the effects. If a waiter is gone, its lease is dropped, which gives the worker back.
    fn act(&self, effects: Vec<Effect<Wiring>>) {
        for effect in effects {
            match effect {
                Effect::Start { waiter: Waiter { signal, blocking }, grant } => {
                    let lease = self.lease(grant);
                    let begun = match blocking {
                        Some(blocking) => blocking.begin(lease),
                        None => Err(lease),
                    };
                    match begun {
                        Ok(reports) => report(reports.as_ref(), Message::Began(signal)),
                        Err(lease) => drop(signal.send(Signal::Start(lease))),
                    }
                }
                Effect::Ended { waiter, job, outcome, retry_after } => {
                    if outcome == Outcome::Drained {
                        self.lost.lock().push(LostJob::new(&job));
                    }
                    let _ = waiter.signal.send(Signal::Ended(outcome, retry_after.map(jittered)));
                }
                Effect::Refused { waiter, reason } => drop(waiter.signal.send(Signal::Refused(reason))),
            }
        }
    }
}

/// Spreads the retries of callers that were refused together: 0.5 to 1.5 times `wait`, at most a minute.
pub(super) fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::rng().random_range(0.5..1.5)).min(MAX_RETRY_AFTER)
}
