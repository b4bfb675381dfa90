use std::time::Duration;

use tokio::time::Instant;

use super::{
    Core, Effect, Host,
    entry::{AGE, Place},
    sizer::{Bounds, Decision, Sample, Sizer},
    slowdown::Slowdown,
    workers::Duty,
};
use crate::model::{Criticality, RejectionReason};

/// What is remembered of the looks at the size of a pool.
pub(super) struct Sizing {
    pub(super) bounds: Bounds,
    pub(super) sizer: Sizer,
    pub(super) slowdown: Slowdown,
    last: Option<Look>,
}

/// What had happened by a look.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    /// Seconds in which workers had jobs.
    busy: f64,
    accepted: u64,
    completed: u64,
    /// Jobs that were refused for want of workers, or of room that workers would have made.
    refused: u64,
}

/// What a look at the size changed.
pub(crate) struct Resized<S> {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// States of the workers that went, to be dropped outside of the lock.
    pub(crate) gone: Vec<S>,
}

impl Sizing {
    pub(super) fn new(kinds: usize) -> Self {
        Self { bounds: Bounds::default(), sizer: Sizer::NEW, slowdown: Slowdown::new(kinds), last: None }
    }
}

impl<H: Host> Core<H> {
    /// Whether the pool chooses its size.
    pub(crate) fn is_elastic(&self) -> bool {
        self.sizing.bounds.is_elastic()
    }

    /// Looks at the load, which is to be done once a second, and gives the pool the workers that it should have.
    /// `may_grow` says whether new workers would be of use. A pool that is paused, or takes no jobs, keeps its size.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        may_grow: bool,
        fresh: impl FnMut() -> H::State,
        effects: &mut Vec<Effect<H>>,
    ) -> Option<Resized<H::State>> {
        let this = self.figures(now);
        let last = self.sizing.last.replace(this);
        if !self.is_elastic() || self.closed || self.shut || self.paused.is_some() {
            self.sizing.sizer = Sizer::NEW;
            return None;
        }
        let last = last?;
        self.turn_windows(now);
        let sample = self.sample(now, last, this, may_grow);
        let (sizer, Decision { workers: to, grown }) = self.sizing.sizer.decide(&sample, self.sizing.bounds);
        self.sizing.sizer = sizer;
        if grown {
            self.sizing.slowdown.accept(&self.estimates);
        }
        let from = sample.workers;
        if from == to {
            return None;
        }
        let gone = self.employ(now, to, fresh, effects);
        Some(Resized { from, to, gone })
    }

    /// What happened between two looks.
    fn sample(&mut self, now: Instant, last: Look, this: Look, may_grow: bool) -> Sample {
        let seconds = now.saturating_duration_since(last.at).as_secs_f64().max(1e-3);
        let (entries, live) = (&self.entries, self.workers.live().max(1) as f64);
        let running = self.workers.iter().filter_map(|slot| match slot.duty {
            Duty::Busy(key) => {
                Some((entries[key.index].kind, now.saturating_duration_since(slot.changed).as_secs_f64()))
            }
            Duty::Idle(_) | Duty::Stuck { .. } => None,
        });
        let wait = self.backlog(now) / live / self.estimates.mean().max(1e-6);
        let (refused, accepted) = ((this.refused - last.refused) as f64, (this.accepted - last.accepted) as f64);
        let refused = if refused > 0.0 { refused / (refused + accepted) } else { 0.0 };
        let learns = self.sizing.sizer.may_learn(wait, refused);
        let ended = self.sizing.slowdown.look(&self.estimates, running, learns);
        // A job that ended with its caller gone is no run, and none of use.
        let in_time = ((this.completed - last.completed) as f64).min(ended.runs);
        Sample {
            workers: self.workers.configured(),
            busy: ((this.busy - last.busy) / seconds / live).clamp(0.0, 1.0),
            wait,
            refused,
            slowdown: self.sizing.slowdown.ratio(),
            jobs: ended.runs,
            in_time,
            done: if ended.runs > 0.0 { ended.work * in_time / ended.runs / seconds } else { 0.0 },
            run: self.estimates.mean(),
            may_grow,
        }
    }

    /// Seconds of work that waits for nothing but a worker, of all classes and tenants.
    fn backlog(&self, now: Instant) -> f64 {
        let queued = self.queued.iter(&self.entries, AGE).map(|index| &self.entries[index]);
        let ready = queued.filter(|entry| entry.place == Place::Ready && self.limits.is_open(entry.lane, now));
        ready.map(|entry| entry.work).sum::<f64>() + self.waiting.work_ahead_of(Criticality::Sheddable)
    }

    fn figures(&self, now: Instant) -> Look {
        let counts = &self.ledger.counts;
        let refused = |reason: RejectionReason| counts.rejected[reason.index()];
        let unreachable = RejectionReason::DeadlineUnreachable {
            expected: Duration::ZERO,
            needed: Duration::ZERO,
            budget: Duration::ZERO,
        };
        Look {
            at: now,
            busy: self.workers.busy_time(now).as_secs_f64(),
            accepted: counts.accepted,
            completed: counts.completed,
            refused: refused(RejectionReason::QueueFull)
                + refused(RejectionReason::NoRoomInTime)
                + refused(unreachable),
        }
    }
}
