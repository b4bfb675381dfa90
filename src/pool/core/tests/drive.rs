use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{
        Arrival, Bounds, Caps, Core, Counts, Effect, Grant, JobKey, Verdict, WorkerCondition,
        entry::{AGE, Place},
    },
    Answer, Event, Numbers, Offer, Step, Told,
    naive::{Naive, millis},
    near,
};
use crate::model::{Criticality, KindLimits};

pub(super) const KINDS: usize = 2;

/// Limits by kind.
pub(super) type KindsLimits = [KindLimits; KINDS];

/// The machine and the model, which get the same events.
pub(super) struct Drive {
    machine: Core<Numbers>,
    pub(super) model: Naive,
    origin: Instant,
    /// By job; `None` for a refused one.
    keys: Vec<Option<JobKey>>,
    effects: Vec<Effect<Numbers>>,
    hired: u32,
    /// Transitions so far.
    pub(super) steps: u64,
}

/// All that can be seen of a pool at rest.
#[derive(Debug, PartialEq)]
pub(super) struct View {
    closed: bool,
    finished: bool,
    saturated: bool,
    pub(super) waiting: Vec<u32>,
    queued: Vec<u32>,
    pub(super) ready: Vec<u32>,
    /// Job, worker and whether its outcome is decided, by job.
    pub(super) running: Vec<(u32, u32, bool)>,
    pub(super) queued_bytes: usize,
    waiting_bytes: usize,
    pub(super) counts: Counts,
    paused: bool,
    pub(super) live: usize,
    pub(super) configured: usize,
    pub(super) retiring: usize,
    pub(super) unreplaced: usize,
    /// Queued jobs by tenant.
    tenants: Vec<(u8, usize)>,
    /// Idle workers by home.
    parked: Vec<Vec<u32>>,
    /// By id.
    workers: Vec<WorkerView>,
}

#[derive(Debug, PartialEq)]
struct WorkerView {
    id: u32,
    job: Option<u32>,
    stuck: bool,
    completed: u64,
    failed: u64,
    total_run: Duration,
}

impl View {
    /// Queued jobs that stand behind their ordering key.
    pub(super) fn blocked(&self) -> Vec<u32> {
        self.queued.iter().copied().filter(|job| !self.ready.contains(job)).collect()
    }
}

impl Drive {
    pub(super) fn new(caps: Caps, limits: KindsLimits, workers: usize, homes: usize) -> Self {
        let mut machine = Core::new(caps, KINDS, homes);
        machine.reconfigure(Instant::now(), caps, &limits, &mut Vec::new());
        let mut drive = Self {
            machine,
            model: Naive::new(caps, limits, homes),
            origin: Instant::now(),
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

    /// Runs one event through both and says where they differ.
    pub(super) fn apply(&mut self, event: Event) -> Result<Step, String> {
        self.steps += 1;
        let seen = self.run_machine(event)?;
        let expected = self.model.apply(event);
        self.machine.assert_invariants();
        if !seen.is_like(&expected) {
            return Err(format!("the machine shows {seen:?}, the rules say {expected:?}"));
        }
        let (view, expected) = (self.view(), model_view(&self.model));
        if view != expected {
            return Err(format!("the machine is at {view:?}, the rules say {expected:?}"));
        }
        for job in &self.model.waiting {
            if !self.machine.is_waiting(self.keys[job.job as usize].expect("the key of a caller")) {
                return Err(format!("{} does not wait", job.job));
            }
        }
        self.compare_estimates()?;
        Ok(seen)
    }

    /// Lets all that runs end, over and over. With a worker and without new jobs, nobody may be left over.
    pub(super) fn run_dry(&mut self) -> Result<(), String> {
        self.apply(Event::Resume)?;
        loop {
            while let Some(job) = self.model.running.first().map(|run| run.job.job) {
                self.apply(Event::Release { job })?;
            }
            // What is left waits for tokens: whoever keeps the time is told until when.
            let now = self.origin + self.model.now;
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
        let now = self.origin + self.model.now;
        let (machine, effects) = (&mut self.machine, &mut self.effects);
        let key = |job: u32| self.keys[job as usize].expect("a job that was not refused");
        let answer = match event {
            Event::Offer(offer) => self.offer(offer)?,
            Event::End { job, outcome, run } => Answer::Decided(machine.end(now, key(job), outcome, run)),
            Event::Release { job } => {
                let running = self.model.running.iter().find(|run| run.job.job == job).expect("a running job");
                let worker = self.model.workers.iter().find(|worker| worker.id == running.worker);
                let state = worker.expect("the worker of a job").state;
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
            Event::Cancel { job } => Answer::Hit(machine.cancel(now, |other| *other == job, effects)),
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
        let now = self.origin + self.model.now;
        let job = u32::try_from(self.keys.len()).expect("few jobs");
        let arrival = Arrival {
            job,
            kind: offer.kind,
            class: offer.class,
            bytes: offer.bytes,
            start_by: self.origin + millis(self.model.now, offer.patience),
            finish_by: self.origin + millis(self.model.now, offer.patience + offer.spare),
            tenant: ["", "a", "b", "c"][usize::from(offer.tenant)],
            ordering_key: ["", "k", "l", "m"][usize::from(offer.key)],
            limit_key: ["", "x", "y", "z"][usize::from(offer.limit_key)],
            when_full: offer.when_full,
            home: offer.home,
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
        let workers = snapshot.workers.iter().map(|worker| {
            let (job, stuck) = match worker.condition {
                WorkerCondition::Idle => (None, false),
                WorkerCondition::Busy(job) => (Some(job), false),
                WorkerCondition::Stuck(job) => (Some(job), true),
            };
            let (completed, failed, total_run) = (worker.completed, worker.failed, worker.total_run);
            WorkerView { id: worker.id, job, stuck, completed, failed, total_run }
        });
        let workers: Vec<_> = workers.collect();
        let entries = machine.entries.iter().map(|(_, entry)| entry);
        let mut running: Vec<_> = entries
            .filter_map(|entry| match entry.place {
                Place::Running { ended, .. } => {
                    let worker = workers.iter().find(|worker| worker.job == Some(entry.job));
                    Some((entry.job, worker.expect("the worker of a job").id, ended))
                }
                Place::Waiting | Place::Ready | Place::Blocked | Place::Held => None,
            })
            .collect();
        running.sort_unstable();
        View {
            closed: snapshot.closed,
            finished: machine.is_finished(),
            saturated: machine.is_saturated(),
            waiting: jobs(machine.waiting.iter(&machine.entries).collect()),
            queued: jobs(machine.queued.iter(&machine.entries, AGE).collect()),
            ready: jobs(machine.queues.ready(&machine.entries)),
            running,
            queued_bytes: snapshot.queued_bytes,
            waiting_bytes: machine.waiting.bytes(),
            counts: snapshot.counts,
            paused: snapshot.paused.is_some(),
            live: snapshot.live_workers,
            configured: snapshot.size.workers,
            retiring: snapshot.size.retiring,
            unreplaced: machine.unreplaced(),
            tenants: (0..4u8)
                .map(|tenant| (tenant, machine.queues.tenants.jobs_of(["", "a", "b", "c"][usize::from(tenant)])))
                .filter(|(_, jobs)| *jobs > 0)
                .collect(),
            parked: machine.workers.parked(),
            workers,
        }
    }

    fn compare_estimates(&self) -> Result<(), String> {
        for class in Criticality::BY_IMPORTANCE {
            let idle = self.model.can_start() && self.model.waiting.is_empty();
            let expected = if idle { Duration::ZERO } else { self.model.expected(class.rank()) };
            let seen = self.machine.expected_wait(class);
            if !near(seen, expected) {
                return Err(format!("the machine expects {seen:?} for {class:?}, the rules say {expected:?}"));
            }
        }
        Ok(())
    }
}

fn model_view(model: &Naive) -> View {
    let jobs = |jobs: &[super::naive::Job]| jobs.iter().map(|job| job.job).collect();
    let mut running: Vec<_> = model.running.iter().map(|run| (run.job.job, run.worker, run.decided)).collect();
    running.sort_unstable();
    let workers = model.workers.iter().map(|worker| {
        let job = model.running.iter().find(|run| run.worker == worker.id).map(|run| run.job.job);
        let (completed, failed, total_run) = (worker.completed, worker.failed, worker.total_run);
        WorkerView { id: worker.id, job, stuck: worker.stuck, completed, failed, total_run }
    });
    let parked_at =
        |home: usize| -> Vec<u32> { model.parked.iter().copied().filter(|id| model.home_of(*id) == home).collect() };
    View {
        closed: model.closed,
        finished: model.closed && model.queued.is_empty() && model.running.is_empty(),
        saturated: model.saturated,
        waiting: jobs(&model.waiting),
        queued: jobs(&model.queued),
        ready: model.ready(),
        running,
        queued_bytes: model.queued_bytes(),
        waiting_bytes: model.waiting_bytes(),
        counts: model.counts,
        paused: model.paused,
        live: model.live(),
        configured: model.configured,
        retiring: model.retiring(),
        unreplaced: model.unreplaced(),
        tenants: (0..4).map(|tenant| (tenant, model.held_by(tenant))).filter(|(_, jobs)| *jobs > 0).collect(),
        parked: (0..model.homes).map(parked_at).collect(),
        workers: workers.collect(),
    }
}
