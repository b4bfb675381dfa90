//! Drives the scheduler in tests, and checks each step.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

use super::{
    super::{Arrival, Bounds, Caps, Core, Counts, Effect, Grant, JobKey, Verdict, Wait, list::Link},
    Answer, Event, Notification, Numbers, Offer, Step,
    job_model::JobModel,
};
use crate::model::{KindId, KindLimits};

pub(super) const KINDS: usize = 2;

/// Limits by kind.
pub(super) type KindsLimits = [KindLimits; KINDS];

/// The scheduler, with a model of its jobs.
pub(super) struct Drive {
    scheduler: Core<Numbers>,
    model: JobModel,
    origin: Instant,
    now: Duration,
    /// The key of each job. `None` for a refused one.
    keys: Vec<Option<JobKey>>,
    effects: Vec<Effect<Numbers>>,
    hired: u32,
    /// Transitions so far.
    pub(super) steps: u64,
}

/// The visible state of a pool between two events.
#[derive(Debug)]
pub(super) struct View {
    pub(super) is_finished: bool,
    pub(super) waiting: Vec<u32>,
    /// In order of acceptance.
    pub(super) queued: Vec<u32>,
    pub(super) ready: Vec<u32>,
    /// Job, worker and whether its outcome is decided, by job.
    pub(super) running: Vec<(u32, u32, bool)>,
    pub(super) queued_bytes: usize,
    pub(super) counts: Counts,
    pub(super) is_saturated: bool,
    pub(super) is_paused: bool,
    pub(super) live: usize,
    pub(super) retiring: usize,
    pub(super) unreplaced: usize,
    /// Tenants with a queued job.
    pub(super) tenants: usize,
    pub(super) idle: usize,
}

impl View {
    /// Queued jobs that are not ready.
    pub(super) fn blocked(&self) -> Vec<u32> {
        self.queued.iter().copied().filter(|job| !self.ready.contains(job)).collect()
    }

    pub(super) fn has_idle(&self) -> bool {
        self.idle > 0
    }
}

impl Drive {
    pub(super) fn new(caps: Caps, limits: KindsLimits, workers: usize, shards: usize) -> Self {
        let mut scheduler = Core::new(caps, KINDS, shards);
        scheduler.reconfigure(Instant::now(), caps, &limits, &mut Vec::new());
        let mut drive = Self {
            scheduler,
            model: JobModel::new(limits),
            origin: Instant::now(),
            now: Duration::ZERO,
            keys: Vec::new(),
            effects: Vec::new(),
            hired: 0,
            steps: 0,
        };
        for _ in 0..workers {
            drive.apply(Event::AddWorker).expect("an empty pool takes workers");
        }
        drive
    }

    /// Runs one event. Returns its result, or a fault.
    pub(super) fn apply(&mut self, event: Event) -> Result<Step, String> {
        self.steps += 1;
        let before = self.view();
        if let Event::Pass { by } = event {
            self.now += by;
        }
        let seen = self.run_machine(event)?;
        self.scheduler.assert_invariants();
        let after = self.view();
        self.model.check(self.now, event, &seen, &before, &after)?;
        let keys = after.waiting.iter().map(|job| self.keys[*job as usize].expect("the key of a caller"));
        if !keys.clone().all(|key| self.scheduler.is_waiting(key)) {
            return Err(format!("the scheduler denies that {:?} are waiting", after.waiting));
        }
        Ok(seen)
    }

    /// Ends all running jobs until no job starts any more. If there is a worker, no job may be left.
    pub(super) fn run_dry(&mut self) -> Result<(), String> {
        self.apply(Event::Resume)?;
        loop {
            while let Some((job, ..)) = self.view().running.first().copied() {
                self.apply(Event::Release { job })?;
            }
            // The remaining jobs wait for tokens, until the wake-up time.
            let now = self.origin + self.now;
            let Some(at) = self.scheduler.wake_at() else { break };
            self.apply(Event::Pass { by: at.saturating_duration_since(now) })?;
            self.apply(Event::Tick)?;
            if self.scheduler.wake_at() == Some(at) {
                return Err(format!("{at:?} has passed, but no job started"));
            }
        }
        let view = self.view();
        let free = view.queued_bytes == 0 && view.queued.is_empty() && view.waiting.is_empty();
        if view.live > 0 && !free {
            return Err(format!("no job runs, but some are left: {view:?}"));
        }
        if view.counts.accepted != view.counts.ended() + view.queued.len() as u64 {
            return Err(format!("the counts do not add up: {:?}", view.counts));
        }
        Ok(())
    }

    /// All jobs that were not refused, including ended ones.
    pub(super) fn keyed(&self) -> Vec<u32> {
        (0u32..).zip(&self.keys).filter(|(_, key)| key.is_some()).map(|(job, _)| job).collect()
    }

    /// Why a job waits.
    pub(super) fn explain(&self, job: u32) -> Wait {
        let found = self.scheduler.explain(self.origin + self.now, |other| *other == job);
        found.and_then(|found| found.wait).expect("it waits")
    }

    fn run_machine(&mut self, event: Event) -> Result<Step, String> {
        let now = self.origin + self.now;
        let (scheduler, effects) = (&mut self.scheduler, &mut self.effects);
        let key = |job: u32| self.keys[job as usize].expect("a job that was not refused");
        let answer = match event {
            Event::Offer(offer) => self.offer(offer)?,
            Event::End { job, outcome, run } => Answer::Decided(scheduler.end(now, key(job), outcome, run)),
            Event::Release { job } => {
                let state = self.model.state_of(job);
                Answer::Dropped(scheduler.release(now, key(job), state, effects).into_iter().collect())
            }
            Event::Withdraw { job, why } => Answer::Found(scheduler.withdraw(now, key(job), why, effects)),
            Event::Stick { job } => {
                let state = self.hired;
                let replaced = scheduler.stick(now, key(job), || state, effects);
                self.hired += u32::from(replaced);
                Answer::Replaced(replaced)
            }
            Event::Hold { job, scope, time } => {
                scheduler.hold(key(job), scope, now + time);
                scheduler.tick(now, effects);
                Answer::Done
            }
            Event::Divide { servers } => {
                done(|| scheduler.divide_limits(now, NonZeroU32::new(servers).expect("a server"), effects))
            }
            Event::AddWorker => {
                let workers = scheduler.configured_workers() + 1;
                let bounds = Bounds { min: workers, max: workers };
                let hired = &mut self.hired;
                scheduler.resize(now, bounds, || next(hired), effects);
                Answer::Done
            }
            Event::Resize { min, max } => {
                let hired = &mut self.hired;
                let mut states = scheduler.resize(now, Bounds { min, max }, || next(hired), effects);
                states.sort_unstable();
                Answer::Dropped(states)
            }
            Event::Pause => Answer::Paused(scheduler.pause(now)),
            Event::Resume => {
                scheduler.resume(now, effects);
                Answer::Done
            }
            Event::Shut => done(|| scheduler.shut(now, effects)),
            Event::Open => done(|| scheduler.open()),
            Event::Cancel { job } => {
                Answer::Hit(scheduler.cancel(now, |other| *other == job, effects).map(|(stage, _)| stage))
            }
            Event::Close => {
                scheduler.close(now, effects);
                Answer::Done
            }
            Event::Abandon => {
                scheduler.abandon_queued(effects);
                Answer::Done
            }
            Event::Retire => {
                let mut states = scheduler.retire_idle();
                states.sort_unstable();
                Answer::Dropped(states)
            }
            Event::Pass { .. } => Answer::Done,
            Event::Tick => {
                scheduler.tick(now, effects);
                Answer::Done
            }
        };
        Ok(Step { answer, notifications: self.notifications()? })
    }

    fn offer(&mut self, offer: Offer) -> Result<Answer, String> {
        let now = self.origin + self.now;
        let job = u32::try_from(self.keys.len()).expect("few jobs");
        let arrival = Arrival {
            job,
            kind: KindId(offer.kind),
            class: offer.class,
            bytes: offer.bytes,
            start_by: self.origin + millis(self.now, offer.patience),
            finish_by: self.origin + millis(self.now, offer.patience + offer.spare),
            tenant: ["", "a", "b", "c"][usize::from(offer.tenant)],
            ordering_key: ["", "k", "l", "m"][usize::from(offer.key)],
            limit_key: ["", "x", "y", "z"][usize::from(offer.limit_key)],
            when_full: offer.when_full,
            is_stored: offer.is_stored,
            shard: offer.shard,
        };
        let mut waiter_key = None;
        let waiter = |key| {
            waiter_key = Some(key);
            job
        };
        let (answer, key) = match self.scheduler.offer(now, arrival, waiter, &mut self.effects) {
            Verdict::Start(Grant { key, worker, state }) => (Answer::Started { worker, state }, Some(key)),
            Verdict::Queued(key) => (Answer::Queued, Some(key)),
            Verdict::Waiting(key) => (Answer::Waiting, Some(key)),
            Verdict::Refused(refusal) => (Answer::Refused(refusal), None),
        };
        let waits = matches!(answer, Answer::Queued | Answer::Waiting);
        if waiter_key != key.filter(|_| waits) {
            return Err(format!("{answer:?} with the key {key:?}, but its waiter got {waiter_key:?}"));
        }
        self.keys.push(key);
        Ok(answer)
    }

    fn notifications(&mut self) -> Result<Vec<Notification>, String> {
        let keys = &self.keys;
        let notifications = self.effects.drain(..).map(|effect| match effect {
            Effect::Start { waiter, grant } if keys[waiter as usize] == Some(grant.key) => {
                Ok(Notification::Start { job: waiter, worker: grant.worker, state: grant.state })
            }
            Effect::Ended { waiter, job, outcome, retry_after } if waiter == job => {
                Ok(Notification::Ended { job, outcome, retry_after })
            }
            Effect::Refused { waiter: job, reason } => Ok(Notification::Refused { job, reason }),
            Effect::Start { waiter, grant } => Err(format!("{waiter} was notified of {:?}", grant.key)),
            Effect::Ended { waiter, job, .. } => Err(format!("{waiter} was notified of {job}")),
        });
        notifications.collect()
    }

    pub(super) fn view(&self) -> View {
        let scheduler = &self.scheduler;
        let jobs = |indexes: Vec<usize>| indexes.into_iter().map(|index| scheduler.entries[index].job).collect();
        let snapshot = scheduler.snapshot(self.origin + self.now);
        let mut running = Vec::new();
        for worker in &snapshot.workers {
            if let Some(job) = worker.job {
                let key = self.keys[job as usize].expect("the key of a job that runs");
                let ended = scheduler.entry(key).is_some_and(|entry| !entry.is_undecided_run());
                running.push((job, worker.id, ended));
            }
        }
        running.sort_unstable();
        let tenants = ["", "a", "b", "c"].iter().filter(|name| scheduler.queue.tenants.jobs_of(name) > 0);
        View {
            is_finished: scheduler.is_finished(),
            waiting: jobs(scheduler.queue.waiting.iter(&scheduler.entries).collect()),
            queued: jobs(scheduler.queue.all.iter(&scheduler.entries, Link::Age).collect()),
            ready: jobs(scheduler.queue.ready(&scheduler.entries)),
            idle: snapshot.workers.len() - running.len(),
            running,
            queued_bytes: snapshot.queued_bytes,
            counts: snapshot.load.counts,
            is_saturated: scheduler.is_saturated(),
            is_paused: snapshot.paused.is_some(),
            live: snapshot.load.live_workers,
            retiring: snapshot.size.retiring,
            unreplaced: scheduler.unreplaced(),
            tenants: tenants.count(),
        }
    }
}

/// The state of a new worker.
fn next(hired: &mut u32) -> u32 {
    *hired += 1;
    *hired - 1
}

fn done(act: impl FnOnce()) -> Answer {
    act();
    Answer::Done
}

/// The time `from_now` milliseconds after `now`, or before it if `from_now` is negative.
pub(super) fn millis(now: Duration, from_now: i64) -> Duration {
    let distance = Duration::from_millis(from_now.unsigned_abs());
    if from_now < 0 { now.saturating_sub(distance) } else { now + distance }
}
