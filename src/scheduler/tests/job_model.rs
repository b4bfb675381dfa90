//! A model of the jobs of a scheduler. It follows the visible results, and checks rules that hold for any admission
//! policy.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{Counts, Refusal, Withdrawal, Withdrawn},
    Answer, Event, Notification, Offer, Step,
    drive::{KindsLimits, View, millis},
};
use crate::model::{JobStage, Limit, Limiter, Outcome, RejectionReason, WhenFull};

/// All jobs of a pool, by number.
pub(super) struct JobModel {
    limits: KindsLimits,
    jobs: Vec<JobRecord>,
    /// Number of jobs that have been in the queue.
    accepted: u64,
    ended: Counts,
    /// States of the workers, by id.
    states: BTreeMap<u32, u32>,
    closed_for_good: bool,
    shut_by_operator: bool,
    paused: bool,
    /// Kind, limit key and time of each start.
    starts: Vec<(usize, u8, Duration)>,
}

struct JobRecord {
    offer: Offer,
    start_by: Duration,
    stage: Stage,
    /// Its position in the order of acceptance.
    accepted: Option<u64>,
    worker: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is queued, or its caller waits for capacity.
    Pending,
    Running {
        decided: bool,
    },
    Over,
}

impl JobModel {
    pub(super) fn new(limits: KindsLimits) -> Self {
        Self {
            limits,
            jobs: Vec::new(),
            accepted: 0,
            ended: Counts::default(),
            states: BTreeMap::new(),
            closed_for_good: false,
            shut_by_operator: false,
            paused: false,
            starts: Vec::new(),
        }
    }

    /// The state of the worker that a job runs on.
    pub(super) fn state_of(&self, job: u32) -> u32 {
        self.states[&self.jobs[job as usize].worker.expect("a running job")]
    }

    /// Checks one step: its results, and the state before and after it.
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
        for notification in &step.notifications {
            match notification {
                Notification::Start { job, worker, state } => self.start(now, *job, *worker, *state)?,
                Notification::Ended { job, outcome: Outcome::Replaced, .. } if !self.may_replace(event, *job) => {
                    return Err(format!("{job} is replaced, but not by a newer job of its tenant"));
                }
                other => self.end_pending(other)?,
            }
        }
        self.compare(after)
    }

    /// Whether a job may be replaced: its policy, its tenant and its class are those of the arrival.
    fn may_replace(&self, event: Event, job: u32) -> bool {
        let old = self.jobs[job as usize].offer;
        matches!(event, Event::Offer(new) if [old, new].iter().all(|offer| offer.when_full == WhenFull::DropOldest)
            && (old.tenant, old.class) == (new.tenant, new.class))
    }

    /// Updates the model after an event other than an offer.
    fn note(&mut self, event: Event, answer: &Answer) {
        match (event, answer) {
            (Event::End { job, outcome, .. }, Answer::Decided(true)) => self.decide(job, outcome),
            (Event::Release { job }, _) => {
                if self.jobs[job as usize].stage == (Stage::Running { decided: false }) {
                    self.decide(job, Outcome::Cancelled);
                }
                self.jobs[job as usize].stage = Stage::Over;
            }
            (Event::Withdraw { job, why }, Answer::Found(found)) if *found != Withdrawn::Gone => {
                self.jobs[job as usize].stage = Stage::Over;
                let is_expired = why == Withdrawal::Expired;
                let ended = if is_expired { &mut self.ended.expired } else { &mut self.ended.cancelled };
                *ended += u64::from(*found == Withdrawn::Queued);
            }
            (Event::Cancel { .. }, Answer::Hit(Some(JobStage::Queued))) => self.ended.cancelled += 1,
            (Event::Pause, Answer::Paused(true)) => self.paused = true,
            (Event::Resume, _) => self.paused = false,
            (Event::Shut, _) => (self.shut_by_operator, self.paused) = (true, false),
            (Event::Open, _) => self.shut_by_operator = false,
            (Event::Close, _) => (self.closed_for_good, self.paused) = (true, false),
            _ => {}
        }
    }

    fn decide(&mut self, job: u32, outcome: Outcome) {
        self.jobs[job as usize].stage = Stage::Running { decided: true };
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

    /// Checks an arrival. A job that needs only an idle worker must start, and the reason of a refusal must apply.
    fn offer(&mut self, now: Duration, offer: Offer, answer: &Answer, before: &View) -> Result<(), String> {
        let job = u32::try_from(self.jobs.len()).expect("few jobs");
        let start_by = millis(now, offer.patience);
        let stage = if matches!(answer, Answer::Refused(_)) { Stage::Over } else { Stage::Pending };
        self.jobs.push(JobRecord { offer, start_by, stage, accepted: None, worker: None });
        let is_late = start_by <= now;
        let takes_jobs = !(self.closed_for_good || self.shut_by_operator || is_late);
        match answer {
            Answer::Started { worker, state } if takes_jobs => self.start(now, job, *worker, *state),
            Answer::Refused(refusal) => self.refuse(&offer, is_late, refusal),
            Answer::Queued | Answer::Waiting if takes_jobs => Ok(()),
            _ => Err(format!("the pool accepts no jobs, but: {answer:?}")),
        }?;
        let may_start = takes_jobs && !self.paused && before.has_idle() && offer.key == 0;
        if may_start && !self.limits[offer.kind].is_set() && !matches!(answer, Answer::Started { .. }) {
            return Err(format!("a worker is idle, but: {answer:?}"));
        }
        Ok(())
    }

    fn refuse(&self, offer: &Offer, is_late: bool, refusal: &Refusal) -> Result<(), String> {
        let limits = self.limits[offer.kind];
        let is_fitting = match refusal.reason {
            RejectionReason::Draining => self.closed_for_good,
            RejectionReason::PoolDraining => self.shut_by_operator && !self.closed_for_good,
            _ if self.closed_for_good || self.shut_by_operator => false,
            RejectionReason::DeadlineUnreachable { budget, .. } => is_late == budget.is_zero(),
            RejectionReason::LimitExceeded { limit, .. } => match limit {
                Limiter::Concurrency => limits.all.concurrency.is_some(),
                Limiter::Rate => limits.all.rate.is_some(),
                Limiter::KeyConcurrency => limits.per_key.concurrency.is_some(),
                Limiter::KeyRate => limits.per_key.rate.is_some(),
                Limiter::Hold | Limiter::KeyHold => limits.is_set(),
            },
            _ => !is_late,
        };
        let hints = Duration::from_millis(10)..=Duration::from_secs(60);
        if !is_fitting || refusal.retry_after.is_some_and(|hint| !hints.contains(&hint)) {
            return Err(format!("the reason of the refusal does not apply: {refusal:?}"));
        }
        Ok(())
    }

    /// Checks the start of a job: in time, in order, and within all limits.
    fn start(&mut self, now: Duration, job: u32, worker: u32, state: u32) -> Result<(), String> {
        let JobRecord { offer, start_by, stage, accepted, .. } = self.jobs[job as usize];
        let number = accepted.unwrap_or(self.accepted);
        let limits = self.limits[offer.kind];
        let before =
            |record: &JobRecord| record.stage == Stage::Pending && record.accepted.is_some_and(|other| other < number);
        let of_key = |record: &&JobRecord| (record.offer.tenant, record.offer.key) == (offer.tenant, offer.key);
        let runs = |record: &JobRecord| matches!(record.stage, Stage::Running { .. });
        let keyed = || self.jobs.iter().filter(of_key).filter(|_| offer.key != 0);
        let precedes = |record: &JobRecord| {
            let other = record.offer;
            let is_same = (other.tenant, other.class, other.key) == (offer.tenant, offer.class, 0);
            before(record) && is_same && !self.limits[other.kind].is_set()
        };
        let is_plain = offer.key == 0 && !limits.is_set();
        let faults = [
            (stage != Stage::Pending, "it is not queued"),
            (self.paused, "the pool is paused"),
            (now >= start_by, "its deadline has passed"),
            (self.states.get(&worker).is_some_and(|known| *known != state), "the worker has another state"),
            (self.jobs.iter().any(|record| runs(record) && record.worker == Some(worker)), "the worker has a job"),
            (keyed().any(runs), "another job of its ordering key runs"),
            (keyed().any(before), "an earlier job of its ordering key has not started"),
            (is_plain && self.jobs.iter().any(precedes), "an earlier job of its tenant has not started"),
        ];
        if let Some((_, fault)) = faults.iter().find(|(is_so, _)| *is_so) {
            return Err(format!("{job} starts, but {fault}"));
        }
        // The store keeps the rate of those that it counted.
        if !offer.is_stored {
            self.starts.push((offer.kind, offer.limit_key, now));
        }
        let is_kind = |start: &&(usize, u8, Duration)| start.0 == offer.kind;
        let is_key = |start: &&(usize, u8, Duration)| is_kind(start) && start.1 == offer.limit_key;
        let is_too_fast = exceeds(limits.all, self.starts.iter().filter(is_kind))
            || exceeds(limits.per_key, self.starts.iter().filter(is_key));
        let record = &mut self.jobs[job as usize];
        (record.stage, record.worker) = (Stage::Running { decided: false }, Some(worker));
        self.states.insert(worker, state);
        if is_too_fast { Err(format!("{job} starts, but exceeds its rate")) } else { Ok(()) }
    }

    /// Checks the end of a job that never started.
    fn end_pending(&mut self, notification: &Notification) -> Result<(), String> {
        let (Notification::Ended { job, .. } | Notification::Refused { job, .. } | Notification::Start { job, .. }) =
            notification;
        let record = &mut self.jobs[*job as usize];
        if record.stage != Stage::Pending {
            return Err(format!("{notification:?}, but it is not queued"));
        }
        record.stage = Stage::Over;
        if let Notification::Ended { outcome, retry_after, .. } = notification
            && retry_after.is_some() != (*outcome == Outcome::Shed)
        {
            return Err(format!("{notification:?}: only evicted jobs have a retry time"));
        }
        match notification {
            Notification::Ended { outcome: Outcome::ExpiredInQueue, .. } => self.ended.expired += 1,
            Notification::Ended { outcome: Outcome::Shed | Outcome::Replaced, .. } => self.ended.shed += 1,
            Notification::Ended { outcome: Outcome::Drained, .. } => self.ended.cancelled += 1,
            // The job was not accepted, or an operator cancelled it.
            _ => {}
        }
        Ok(())
    }

    /// Checks that the stages of all jobs are right, and that each outcome is counted once.
    fn compare(&mut self, after: &View) -> Result<(), String> {
        for job in &after.queued {
            let record = &mut self.jobs[*job as usize];
            if record.accepted.is_none() {
                record.accepted = Some(self.accepted);
                self.accepted += 1;
            }
        }
        let jobs = || (0u32..).zip(&self.jobs);
        let pending: Vec<u32> =
            jobs().filter(|(_, record)| record.stage == Stage::Pending).map(|(job, _)| job).collect();
        let mut seen = [&after.waiting[..], &after.queued].concat();
        seen.sort_unstable();
        let running = jobs().filter_map(|(job, record)| match record.stage {
            Stage::Running { decided } => Some((job, record.worker.expect("a running job"), decided)),
            Stage::Pending | Stage::Over => None,
        });
        let running: Vec<_> = running.collect();
        if seen != pending || after.running != running {
            return Err(format!("{pending:?} must wait and {running:?} must run, but the state is {after:?}"));
        }
        let counts = Counts { accepted: after.counts.accepted, rejected: after.counts.rejected, ..self.ended };
        if after.counts != counts
            || after.is_finished != (self.closed_for_good && pending.is_empty() && running.is_empty())
        {
            return Err(format!("the counts must be {counts:?}, but the state is {after:?}"));
        }
        Ok(())
    }
}

/// Whether the last of the starts exceeds the rate.
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
