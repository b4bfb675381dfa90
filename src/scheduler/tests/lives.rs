//! What became of each job, by what the machine said of it; and what must hold whatever the law is.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{Counts, Refusal, Withdrawal, Withdrawn},
    Answer, Event, Offer, Step, Told,
    drive::{KindsLimits, View, millis},
};
use crate::model::{JobStage, Limit, Limiter, Outcome, RejectionReason};

/// All jobs of a pool, by number.
pub(super) struct Lives {
    limits: KindsLimits,
    jobs: Vec<Life>,
    /// Jobs that were seen in the queue so far.
    accepted: u64,
    ended: Counts,
    /// States of the workers, by id.
    states: BTreeMap<u32, u32>,
    closed: bool,
    shut: bool,
    paused: bool,
    /// Kind, limit key and time of each start.
    starts: Vec<(usize, u8, Duration)>,
}

struct Life {
    offer: Offer,
    start_by: Duration,
    at: At,
    /// Its place in the order of acceptance.
    accepted: Option<u64>,
    worker: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// It is queued, or its caller waits for room.
    Held,
    Running {
        decided: bool,
    },
    Over,
}

impl Lives {
    pub(super) fn new(limits: KindsLimits) -> Self {
        Self {
            limits,
            jobs: Vec::new(),
            accepted: 0,
            ended: Counts::default(),
            states: BTreeMap::new(),
            closed: false,
            shut: false,
            paused: false,
            starts: Vec::new(),
        }
    }

    /// The state of the worker that a job runs on.
    pub(super) fn state_of(&self, job: u32) -> u32 {
        self.states[&self.jobs[job as usize].worker.expect("a running job")]
    }

    /// Checks one step: what was said, and what can be seen `before` and `after` it.
    pub(super) fn check(
        &mut self,
        now: Duration,
        event: Event,
        step: &Step,
        before: &View,
        after: &View,
    ) -> Result<(), String> {
        match event {
            Event::Offer(offer) => self.offer(now, offer, &step.answer, before)?,
            _ => self.note(event, &step.answer),
        }
        for told in &step.told {
            match told {
                Told::Start { job, worker, state } => self.start(now, *job, *worker, *state)?,
                other => self.end_held(other)?,
            }
        }
        self.compare(after)
    }

    /// What an event changes, whatever it brings about.
    fn note(&mut self, event: Event, answer: &Answer) {
        match (event, answer) {
            (Event::End { job, outcome, .. }, Answer::Decided(true)) => self.decide(job, outcome),
            (Event::Release { job }, _) => {
                if self.jobs[job as usize].at == (At::Running { decided: false }) {
                    self.decide(job, Outcome::Cancelled);
                }
                self.jobs[job as usize].at = At::Over;
            }
            (Event::Withdraw { job, why }, Answer::Found(found)) if *found != Withdrawn::Gone => {
                self.jobs[job as usize].at = At::Over;
                let is_expired = why == Withdrawal::Expired;
                let ended = if is_expired { &mut self.ended.expired } else { &mut self.ended.cancelled };
                *ended += u64::from(*found == Withdrawn::Queued);
            }
            (Event::Cancel { .. }, Answer::Hit(Some(JobStage::Queued))) => self.ended.cancelled += 1,
            (Event::Pause, Answer::Paused(true)) => self.paused = true,
            (Event::Resume, _) => self.paused = false,
            (Event::Shut, _) => (self.shut, self.paused) = (true, false),
            (Event::Open, _) => self.shut = false,
            (Event::Close, _) => (self.closed, self.paused) = (true, false),
            _ => {}
        }
    }

    fn decide(&mut self, job: u32, outcome: Outcome) {
        self.jobs[job as usize].at = At::Running { decided: true };
        let ended = &mut self.ended;
        *match outcome {
            Outcome::Completed => &mut ended.completed,
            Outcome::HandlerFailed | Outcome::HandlerUnavailable => &mut ended.failed,
            Outcome::Cancelled => &mut ended.cancelled,
            Outcome::DeadlineExceeded | Outcome::RunTimeout => &mut ended.expired,
            Outcome::HandlerPanicked => &mut ended.panicked,
            other => panic!("no run ends like this: {other:?}"),
        } += 1;
    }

    /// A job that needs nothing but an idle worker starts, and a refusal names what there is to see.
    fn offer(&mut self, now: Duration, offer: Offer, answer: &Answer, before: &View) -> Result<(), String> {
        let job = u32::try_from(self.jobs.len()).expect("few jobs");
        let start_by = millis(now, offer.patience);
        let at = if matches!(answer, Answer::Refused(_)) { At::Over } else { At::Held };
        self.jobs.push(Life { offer, start_by, at, accepted: None, worker: None });
        let is_late = start_by <= now;
        let takes_jobs = !(self.closed || self.shut || is_late);
        match answer {
            Answer::Started { worker, state } if takes_jobs => self.start(now, job, *worker, *state),
            Answer::Refused(refusal) => self.refuse(&offer, is_late, refusal),
            Answer::Queued | Answer::Waiting if takes_jobs => Ok(()),
            _ => Err(format!("a pool that takes no jobs: {answer:?}")),
        }?;
        let may_start = takes_jobs && !self.paused && before.has_idle() && offer.key == 0;
        if may_start && !self.limits[offer.kind].is_set() && !matches!(answer, Answer::Started { .. }) {
            return Err(format!("a worker is idle, and yet: {answer:?}"));
        }
        Ok(())
    }

    fn refuse(&self, offer: &Offer, is_late: bool, refusal: &Refusal) -> Result<(), String> {
        let limits = self.limits[offer.kind];
        let is_fitting = match refusal.reason {
            RejectionReason::Draining => self.closed,
            RejectionReason::PoolDraining => self.shut && !self.closed,
            _ if self.closed || self.shut => false,
            RejectionReason::DeadlineUnreachable { budget, .. } => is_late == budget.is_zero(),
            RejectionReason::LimitExceeded { limit, .. } => match limit {
                Limiter::Concurrency => limits.all.concurrency.is_some(),
                Limiter::Rate => limits.all.rate.is_some(),
                Limiter::KeyConcurrency => limits.per_key.concurrency.is_some(),
                Limiter::KeyRate => limits.per_key.rate.is_some(),
            },
            _ => !is_late,
        };
        let hints = Duration::from_millis(10)..=Duration::from_secs(60);
        if !is_fitting || refusal.retry_after.is_some_and(|hint| !hints.contains(&hint)) {
            return Err(format!("a refusal that does not fit: {refusal:?}"));
        }
        Ok(())
    }

    /// A job gets a worker: in time, in its order, and within all limits.
    fn start(&mut self, now: Duration, job: u32, worker: u32, state: u32) -> Result<(), String> {
        let Life { offer, start_by, at, accepted, .. } = self.jobs[job as usize];
        let number = accepted.unwrap_or(self.accepted);
        let limits = self.limits[offer.kind];
        let before = |life: &Life| life.at == At::Held && life.accepted.is_some_and(|other| other < number);
        let of_key = |life: &&Life| life.offer.key == offer.key;
        let runs = |life: &Life| matches!(life.at, At::Running { .. });
        let keyed = || self.jobs.iter().filter(of_key).filter(|_| offer.key != 0);
        let in_turn = |life: &Life| {
            let other = life.offer;
            let is_same = (other.tenant, other.class, other.key) == (offer.tenant, offer.class, 0);
            before(life) && is_same && !self.limits[other.kind].is_set()
        };
        let is_plain = offer.key == 0 && !limits.is_set();
        let faults = [
            (at != At::Held, "it does not wait for a worker"),
            (self.paused, "the pool is paused"),
            (now >= start_by, "its time is over"),
            (self.states.get(&worker).is_some_and(|known| *known != state), "the worker has another state"),
            (self.jobs.iter().any(|life| runs(life) && life.worker == Some(worker)), "the worker has a job"),
            (keyed().any(runs), "another one of its ordering key runs"),
            (keyed().any(before), "another one of its ordering key was accepted before"),
            (is_plain && self.jobs.iter().any(in_turn), "another one of its tenant was accepted before"),
        ];
        if let Some((_, fault)) = faults.iter().find(|(is_so, _)| *is_so) {
            return Err(format!("{job} starts, and {fault}"));
        }
        self.starts.push((offer.kind, offer.limit_key, now));
        let is_kind = |start: &&(usize, u8, Duration)| start.0 == offer.kind;
        let is_key = |start: &&(usize, u8, Duration)| is_kind(start) && start.1 == offer.limit_key;
        let is_too_fast = exceeds(limits.all, self.starts.iter().filter(is_kind))
            || exceeds(limits.per_key, self.starts.iter().filter(is_key));
        let life = &mut self.jobs[job as usize];
        (life.at, life.worker) = (At::Running { decided: false }, Some(worker));
        self.states.insert(worker, state);
        if is_too_fast { Err(format!("{job} starts, and its rate does not allow it")) } else { Ok(()) }
    }

    /// A job that never began ends.
    fn end_held(&mut self, told: &Told) -> Result<(), String> {
        let (Told::Ended { job, .. } | Told::Refused { job, .. } | Told::Start { job, .. }) = told;
        let life = &mut self.jobs[*job as usize];
        if life.at != At::Held {
            return Err(format!("{told:?}, and it does not wait"));
        }
        life.at = At::Over;
        if let Told::Ended { outcome, retry_after, .. } = told
            && retry_after.is_some() != (*outcome == Outcome::Shed)
        {
            return Err(format!("{told:?}: only jobs that were evicted come back"));
        }
        match told {
            Told::Ended { outcome: Outcome::ExpiredInQueue, .. } => self.ended.expired += 1,
            Told::Ended { outcome: Outcome::Shed, .. } => self.ended.shed += 1,
            Told::Ended { outcome: Outcome::Drained, .. } => self.ended.cancelled += 1,
            // Those were not accepted, or their operator cancelled them.
            _ => {}
        }
        Ok(())
    }

    /// Each job is where it was said to be, and each end is counted once.
    fn compare(&mut self, after: &View) -> Result<(), String> {
        for job in &after.queued {
            let life = &mut self.jobs[*job as usize];
            if life.accepted.is_none() {
                life.accepted = Some(self.accepted);
                self.accepted += 1;
            }
        }
        let jobs = || (0u32..).zip(&self.jobs);
        let held: Vec<u32> = jobs().filter(|(_, life)| life.at == At::Held).map(|(job, _)| job).collect();
        let mut seen = [&after.waiting[..], &after.queued].concat();
        seen.sort_unstable();
        let running = jobs().filter_map(|(job, life)| match life.at {
            At::Running { decided } => Some((job, life.worker.expect("a running job"), decided)),
            At::Held | At::Over => None,
        });
        let running: Vec<_> = running.collect();
        if seen != held || after.running != running {
            return Err(format!("{held:?} wait and {running:?} run, the machine shows {after:?}"));
        }
        let counts = Counts { accepted: after.counts.accepted, rejected: after.counts.rejected, ..self.ended };
        if after.counts != counts || after.is_finished != (self.closed && held.is_empty() && running.is_empty()) {
            return Err(format!("{counts:?}, the machine shows {after:?}"));
        }
        Ok(())
    }
}

/// Whether the last of some starts came sooner after one of those before it than its rate allows.
fn exceeds<'a>(limit: Limit, starts: impl Iterator<Item = &'a (usize, u8, Duration)>) -> bool {
    let Some(rate) = limit.rate else { return false };
    let starts: Vec<Duration> = starts.map(|start| start.2).collect();
    let last = starts[starts.len() - 1];
    let earlier = starts.iter().rev().enumerate().skip(rate.burst.get() as usize);
    let mut gaps = earlier.map(|(between, at)| {
        let missing = u32::try_from(between).expect("few starts") + 1 - rate.burst.get();
        last - *at < rate.interval * missing
    });
    gaps.any(|is_short| is_short)
}
