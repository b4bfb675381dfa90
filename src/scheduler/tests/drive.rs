//! Drives the scheduler in tests: a host that records effects.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{Arrival, Bounds, Caps, Core, Counts, Effect, Grant, JobKey, Verdict, WorkerCondition, entry::AGE},
    Answer, Event, Numbers, Offer, Step, Told,
    lives::Lives,
};
use crate::model::KindLimits;

pub(super) const KINDS: usize = 2;

/// Limits by kind.
pub(super) type KindsLimits = [KindLimits; KINDS];

/// The machine, and what must hold of its jobs.
pub(super) struct Drive {
    machine: Core<Numbers>,
    lives: Lives,
    origin: Instant,
    now: Duration,
    /// By job; `None` for a refused one.
    keys: Vec<Option<JobKey>>,
    effects: Vec<Effect<Numbers>>,
    hired: u32,
    /// Transitions so far.
    pub(super) steps: u64,
}

/// All that can be seen of a pool at rest.
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
        let mut machine = Core::new(caps, KINDS, shards);
        machine.reconfigure(Instant::now(), caps, &limits, &mut Vec::new());
        let mut drive = Self {
            machine,
            lives: Lives::new(limits),
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

    /// Runs one event, and says what is wrong with what it shows.
    pub(super) fn apply(&mut self, event: Event) -> Result<Step, String> {
        self.steps += 1;
        let before = self.view();
        if let Event::Pass { by } = event {
            self.now += by;
        }
        let seen = self.run_machine(event)?;
        self.machine.assert_invariants();
        let after = self.view();
        self.lives.check(self.now, event, &seen, &before, &after)?;
        let keys = after.waiting.iter().map(|job| self.keys[*job as usize].expect("the key of a caller"));
        if !keys.clone().all(|key| self.machine.is_waiting(key)) {
            return Err(format!("{:?} do not wait", after.waiting));
        }
        Ok(seen)
    }

    /// Lets all that runs end, over and over. With a worker and without new jobs, no job may be left over.
    pub(super) fn run_dry(&mut self) -> Result<(), String> {
        self.apply(Event::Resume)?;
        loop {
            while let Some((job, ..)) = self.view().running.first().copied() {
                self.apply(Event::Release { job })?;
            }
            // What is left waits for tokens, until a time that the machine tells.
            let now = self.origin + self.now;
            let Some(at) = self.machine.wake_at() else { break };
            self.apply(Event::Pass { by: at.saturating_duration_since(now) })?;
            self.apply(Event::Tick)?;
            if self.machine.wake_at() == Some(at) {
                return Err(format!("{at:?} is over, and nothing started"));
            }
        }
        let view = self.view();
        let free = view.queued_bytes == 0 && view.queued.is_empty() && view.waiting.is_empty();
        if view.live > 0 && !free {
            return Err(format!("nothing runs, and yet somebody is left: {view:?}"));
        }
        if view.counts.accepted != view.counts.ended() + view.queued.len() as u64 {
            return Err(format!("the ledger does not balance: {:?}", view.counts));
        }
        Ok(())
    }

    /// Jobs that the machine gave a key to, ended ones included.
    pub(super) fn keyed(&self) -> Vec<u32> {
        (0u32..).zip(&self.keys).filter(|(_, key)| key.is_some()).map(|(job, _)| job).collect()
    }

    fn run_machine(&mut self, event: Event) -> Result<Step, String> {
        let now = self.origin + self.now;
        let (machine, effects) = (&mut self.machine, &mut self.effects);
        let key = |job: u32| self.keys[job as usize].expect("a job that was not refused");
        let answer = match event {
            Event::Offer(offer) => self.offer(offer)?,
            Event::End { job, outcome, run } => Answer::Decided(machine.end(now, key(job), outcome, run)),
            Event::Release { job } => {
                let state = self.lives.state_of(job);
                Answer::Dropped(machine.release(now, key(job), state, effects).into_iter().collect())
            }
            Event::Withdraw { job, why } => Answer::Found(machine.withdraw(now, key(job), why, effects)),
            Event::Stick { job } => {
                let state = self.hired;
                let replaced = machine.stick(now, key(job), || state, effects);
                self.hired += u32::from(replaced);
                Answer::Replaced(replaced)
            }
            Event::AddWorker => {
                machine.add_worker(now, self.hired, effects);
                self.hired += 1;
                Answer::Done
            }
            Event::Resize { min, max } => {
                let hired = &mut self.hired;
                let fresh = || {
                    *hired += 1;
                    *hired - 1
                };
                let mut states = machine.resize(now, Bounds { min, max }, fresh, effects);
                states.sort_unstable();
                Answer::Dropped(states)
            }
            Event::Pause => Answer::Paused(machine.pause(now)),
            Event::Resume => {
                machine.resume(now, effects);
                Answer::Done
            }
            Event::Shut => {
                machine.shut(now, effects);
                Answer::Done
            }
            Event::Open => {
                machine.open();
                Answer::Done
            }
            Event::Cancel { job } => {
                Answer::Hit(machine.cancel(now, |other| *other == job, effects).map(|(stage, _)| stage))
            }
            Event::Close => {
                machine.close(now, effects);
                Answer::Done
            }
            Event::Abandon => {
                machine.abandon_queued(effects);
                Answer::Done
            }
            Event::Retire => {
                let mut states = machine.retire_idle();
                states.sort_unstable();
                Answer::Dropped(states)
            }
            Event::Pass { .. } => Answer::Done,
            Event::Tick => {
                machine.tick(now, effects);
                Answer::Done
            }
        };
        Ok(Step { answer, told: self.tell()? })
    }

    fn offer(&mut self, offer: Offer) -> Result<Answer, String> {
        let now = self.origin + self.now;
        let job = u32::try_from(self.keys.len()).expect("few jobs");
        let arrival = Arrival {
            job,
            kind: offer.kind,
            class: offer.class,
            bytes: offer.bytes,
            start_by: self.origin + millis(self.now, offer.patience),
            finish_by: self.origin + millis(self.now, offer.patience + offer.spare),
            tenant: ["", "a", "b", "c"][usize::from(offer.tenant)],
            ordering_key: ["", "k", "l", "m"][usize::from(offer.key)],
            limit_key: ["", "x", "y", "z"][usize::from(offer.limit_key)],
            when_full: offer.when_full,
            shard: offer.shard,
        };
        let mut told = None;
        let waiter = |key| {
            told = Some(key);
            job
        };
        let (answer, key) = match self.machine.offer(now, arrival, waiter, &mut self.effects) {
            Verdict::Start(Grant { key, worker, state }) => (Answer::Started { worker, state }, Some(key)),
            Verdict::Queued(key) => (Answer::Queued, Some(key)),
            Verdict::Waiting(key) => (Answer::Waiting, Some(key)),
            Verdict::Refused(refusal) => (Answer::Refused(refusal), None),
        };
        let waits = matches!(answer, Answer::Queued | Answer::Waiting);
        if told != key.filter(|_| waits) {
            return Err(format!("{answer:?} under {key:?}, and its waiter got {told:?}"));
        }
        self.keys.push(key);
        Ok(answer)
    }

    fn tell(&mut self) -> Result<Vec<Told>, String> {
        let keys = &self.keys;
        let told = self.effects.drain(..).map(|effect| match effect {
            Effect::Start { waiter, grant } if keys[waiter as usize] == Some(grant.key) => {
                Ok(Told::Start { job: waiter, worker: grant.worker, state: grant.state })
            }
            Effect::Ended { waiter, job, outcome, retry_after } if waiter == job => {
                Ok(Told::Ended { job, outcome, retry_after })
            }
            Effect::Refused { waiter: job, reason } => Ok(Told::Refused { job, reason }),
            Effect::Start { waiter, grant } => Err(format!("{waiter} was told of {:?}", grant.key)),
            Effect::Ended { waiter, job, .. } => Err(format!("{waiter} was told of {job}")),
        });
        told.collect()
    }

    pub(super) fn view(&self) -> View {
        let machine = &self.machine;
        let jobs = |indexes: Vec<usize>| indexes.into_iter().map(|index| machine.entries[index].job).collect();
        let snapshot = machine.snapshot();
        let mut running = Vec::new();
        for worker in &snapshot.workers {
            if let WorkerCondition::Busy(job) | WorkerCondition::Stuck(job) = worker.condition {
                let key = self.keys[job as usize].expect("the key of a job that runs");
                let ended = machine.entry(key).is_some_and(|entry| !entry.is_undecided_run());
                running.push((job, worker.id, ended));
            }
        }
        running.sort_unstable();
        let tenants = ["", "a", "b", "c"].iter().filter(|name| machine.queue.tenants.jobs_of(name) > 0);
        View {
            is_finished: machine.is_finished(),
            waiting: jobs(machine.queue.waiting.iter(&machine.entries).collect()),
            queued: jobs(machine.queue.all.iter(&machine.entries, AGE).collect()),
            ready: jobs(machine.queue.ready(&machine.entries)),
            idle: snapshot.workers.len() - running.len(),
            running,
            queued_bytes: snapshot.queued_bytes,
            counts: snapshot.counts,
            is_saturated: machine.is_saturated(),
            is_paused: snapshot.paused.is_some(),
            live: snapshot.live_workers,
            retiring: snapshot.size.retiring,
            unreplaced: machine.unreplaced(),
            tenants: tenants.count(),
        }
    }
}

/// An instant so many milliseconds from `now`, which may lie before it.
pub(super) fn millis(now: Duration, from_now: i64) -> Duration {
    let distance = Duration::from_millis(from_now.unsigned_abs());
    if from_now < 0 { now.saturating_sub(distance) } else { now + distance }
}
