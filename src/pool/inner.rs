//! The shared state of a pool: the scheduler behind its lock, the execution of its effects, and the kinds.

use std::{
    ops::Deref,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt;
use rustc_hash::FxHashMap;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    blocking::Reports,
    ended_jobs::Meters,
    factories::Factories,
    lease::{Gone, Lease, Signal, Waiter, WorkerHandlers},
    lost_job::LostJob,
    recorder::Recorder,
    settings::Settings,
    shard::{Replaceable, shard},
};
use crate::{
    handler::{Context, Kind, OutputSink, Site, StopReason},
    model::{Durations, Job, KindId, KindLimits, MAX_RETRY_AFTER, Outcome, Rejection, RejectionReason},
    phase::{Phase, PhaseCell},
    scheduler::{Bounds, Core, Effect, Host, JobKey, Withdrawal, Withdrawn},
    task::Tasks,
};

/// Gives data that many threads write its own cache lines. Some processors fetch pairs of 64-byte lines.
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// A pool: the scheduler behind its lock, and the code that carries out its effects.
pub(super) struct PoolInner {
    pub(super) name: Arc<str>,
    pub(super) settings: Replaceable<Settings>,
    /// A replaced or removed kind keeps its index: its jobs end under it.
    kinds: boxcar::Vec<Kind>,
    /// By shard and kind, so that each shard has its own reference counts.
    sites: Vec<boxcar::Vec<Arc<Site>>>,
    /// The served kinds.
    by_name: Replaceable<FxHashMap<Arc<str>, KindId>>,
    core: Padded<Mutex<Core<Wiring>>>,
    pub(super) meters: Meters,
    pub(super) recorder: Recorder,
    pub(super) factories: Factories,
    /// Whether a task adjusts the size of the pool.
    pub(super) is_sized: AtomicBool,
    pub(super) tasks: Tasks,
    pub(super) phase: PhaseCell,
    /// Notified when waiting callers get capacity, or give up.
    pub(super) room: Notify,
    /// Notified when a handler holds a kind or a limit key.
    pub(super) held: Notify,
    pub(super) lost: Mutex<Vec<LostJob>>,
    /// How long drains of this pool took.
    pub(super) drains: Mutex<Durations>,
    /// When a stop forces running jobs, even if their grace is longer.
    pub(super) force_by: OnceLock<Instant>,
    pub(super) slow_polls: AtomicU64,
    /// Callers that wait until the pool [may accept](Core::may_accept) a job.
    pub(super) capacity_waiters: AtomicUsize,
    /// When the next rate-limited job may start, for the one task that waits for it. `None` until a kind has a rate.
    pub(super) timer: OnceLock<watch::Sender<Option<Instant>>>,
    /// Whether that task exists.
    pub(super) is_timed: AtomicBool,
    /// By shard: the way to the serving thread, once that has a reader. Only the thread itself locks it.
    pub(super) reports: Vec<Mutex<Option<Reports>>>,
}

/// The types that the scheduler carries for the pool.
pub(super) enum Wiring {}

impl Host for Wiring {
    type Job = Context;
    type Waiter = Waiter;
    type State = Box<WorkerHandlers>;
}

/// The shared state of a pool, as the threads of one shard use it.
///
/// Every running job holds a reference. If two threads shared one reference count, it would move between their cores
/// with each job, so each shard has its own.
#[derive(Clone)]
pub(super) struct Shared(Arc<Padded<Arc<PoolInner>>>);

impl Shared {
    pub(super) fn downgrade(&self) -> Weak<PoolInner> {
        Arc::downgrade(&self.0.0)
    }
}

impl From<Arc<PoolInner>> for Shared {
    fn from(inner: Arc<PoolInner>) -> Self {
        Self(Arc::new(Padded(inner)))
    }
}

impl Deref for Shared {
    type Target = PoolInner;

    fn deref(&self) -> &PoolInner {
        &self.0.0
    }
}

impl PoolInner {
    /// A pool without kinds. [`serve`](Shared::serve) adds them.
    pub(super) fn new(name: Arc<str>, settings: Settings, bounds: Bounds) -> Self {
        let shards = settings.shards.max(1);
        let mut core = Core::new(settings.caps(), 0, shards);
        core.resize(Instant::now(), bounds, WorkerHandlers::fresh, &mut Vec::new());
        let phase = PhaseCell::default();
        phase.advance(Phase::Serving);
        Self {
            factories: Factories::default(),
            is_sized: AtomicBool::new(false),
            meters: Meters::new(shards, settings.ended_jobs),
            recorder: Recorder::new(shards, settings.recorded_jobs),
            sites: std::iter::repeat_with(boxcar::Vec::new).take(shards).collect(),
            name,
            settings: Replaceable::new(settings),
            kinds: boxcar::Vec::new(),
            by_name: Replaceable::new(FxHashMap::default()),
            core: Padded(Mutex::new(core)),
            tasks: Tasks::new(),
            phase,
            room: Notify::new(),
            held: Notify::new(),
            lost: Mutex::default(),
            drains: Mutex::default(),
            force_by: OnceLock::new(),
            slow_polls: AtomicU64::new(0),
            capacity_waiters: AtomicUsize::new(0),
            timer: OnceLock::new(),
            is_timed: AtomicBool::new(false),
            reports: std::iter::repeat_with(Mutex::default).take(shards).collect(),
        }
    }

    pub(super) fn kind(&self, kind: KindId) -> &Kind {
        &self.kinds[kind.0]
    }

    /// All kinds that the pool had, with their numbers.
    pub(super) fn all_kinds(&self) -> impl Iterator<Item = (KindId, &Kind)> {
        self.kinds.iter().map(|(index, kind)| (KindId(index), kind))
    }

    /// The served kinds, with their numbers.
    pub(super) fn served(&self) -> impl Iterator<Item = (KindId, &Kind)> {
        self.all_kinds().filter(|(kind, _)| self.is_served(*kind))
    }

    /// Whether the kind with that number was neither replaced nor removed.
    pub(super) fn is_served(&self, kind: KindId) -> bool {
        self.find_kind(self.kind(kind).name()) == Some(kind)
    }

    /// Increases whenever kinds are replaced, under the lock.
    pub(super) fn kinds_version(&self) -> usize {
        self.by_name.version()
    }

    /// Longest run of a job, by its kind and its caller.
    pub(super) fn run_timeout(&self, kind: KindId, job: &Job) -> Option<Duration> {
        [self.kind(kind).get_options().run_timeout, job.run_timeout].into_iter().flatten().min()
    }

    /// Time between the request to stop and the forced stop of a job of `kind`.
    pub(super) fn grace(&self, kind: KindId) -> Duration {
        self.kind(kind).get_options().cancel_grace.unwrap_or(self.settings.cancel_grace)
    }

    /// Collects the output of a job of `kind`, up to its limit.
    pub(super) fn collector(&self, kind: KindId) -> OutputSink {
        OutputSink::collect(self.kind(kind).get_options().max_output.unwrap_or(self.settings.max_output))
    }

    pub(super) fn find_kind(&self, name: &str) -> Option<KindId> {
        self.by_name.get(name).copied()
    }

    /// Adds a kind, and returns its number.
    fn add(&self, kind: Kind) -> KindId {
        for sites in &self.sites {
            let (kind_id, pool, tasks) = (KindId(sites.count()), Arc::clone(&self.name), self.tasks.clone());
            sites.push(Arc::new(Site { kind: Arc::clone(kind.name()), kind_id, pool, tasks }));
        }
        self.factories.add();
        KindId(self.kinds.push(kind))
    }

    /// Decides the outcome of a running job that did not complete. Returns false if it was decided before.
    pub(super) fn end(&self, key: JobKey, outcome: Outcome, cx: &Context) -> bool {
        let now = Instant::now();
        let mut core = self.core.0.lock();
        let is_ours = core.end(now, key, outcome, cx.ran(now));
        if is_ours {
            self.note_lost(cx);
        }
        is_ours
    }

    /// Records a job that a drain stops. Called under the lock, so that no observer sees a finished drain without its
    /// lost jobs.
    pub(super) fn note_lost(&self, cx: &Context) {
        if cx.stop_reason() == Some(StopReason::Drain) {
            self.lost.lock().push(LostJob::new(cx));
        }
    }

    pub(super) fn read<T>(&self, look: impl FnOnce(&Core<Wiring>) -> T) -> T {
        look(&self.core.0.lock())
    }

    /// The state that jobs of a kind share, with the reference count of the calling thread's shard.
    pub(super) fn site(&self, kind: KindId) -> Arc<Site> {
        Arc::clone(&self.sites.get(shard()).unwrap_or(&self.sites[0])[kind.0])
    }

    /// Counts and builds a refusal that is independent of the queue.
    pub(super) fn reject(&self, kind: Arc<str>, reason: RejectionReason) -> Rejection {
        self.core.0.lock().count_rejection(&reason);
        Rejection { reason, pool: Some(Arc::clone(&self.name)), kind, retry_after: None }
    }
}

impl Shared {
    /// Serves `kinds` and no others from now on. A kind that is unchanged keeps its number. Any other kind gets a new
    /// one, and the jobs of its predecessor end under the old one.
    pub(super) fn serve(&self, kinds: Vec<Kind>) {
        let now = Instant::now();
        let gone: Gone = self.drive(|core, effects| {
            let place = |kind: Kind| {
                let same = self.find_kind(kind.name()).filter(|same| self.kind(*same).is_same(&kind));
                (Arc::clone(kind.name()), same.unwrap_or_else(|| self.add(kind)))
            };
            let by_name: FxHashMap<_, _> = kinds.into_iter().map(place).collect();
            let limits: Vec<KindLimits> = self.kinds.iter().map(|(_, kind)| kind.get_options().limits).collect();
            if limits.iter().any(KindLimits::is_set) {
                self.timer.get_or_init(|| watch::Sender::new(None));
            }
            core.reconfigure(now, self.settings.caps(), &limits, effects);
            self.by_name.replace(by_name);
            core.idle_states().flat_map(|state| state.take_replaced(self)).collect()
        });
        self.close(gone);
        self.follow_externals();
        // Late jobs of removed kinds may record a few more figures, at most those of one kind.
        self.all_kinds().filter(|(kind, _)| !self.is_served(*kind)).for_each(|(kind, _)| self.meters.forget(kind));
    }

    pub(super) fn withdraw(&self, key: JobKey, why: Withdrawal) -> Withdrawn {
        let now = Instant::now();
        self.drive(|core, effects| core.withdraw(now, key, why, effects))
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
                // Under the lock, so that the last value is the right one.
                let next = core.wake_at();
                timer.send_if_modified(|at| std::mem::replace(at, next) != next);
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

    /// Carries out the effects.
    fn act(&self, effects: Vec<Effect<Wiring>>) {
        for effect in effects {
            match effect {
                Effect::Start { waiter, grant } => waiter.start(Lease::new(self.clone(), grant, Instant::now())),
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
