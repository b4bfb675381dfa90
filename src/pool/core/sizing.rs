use tokio::time::Instant;

use super::{
    Core, Effect, Host,
    sizer::{Bounds, Sample, Sizer},
    slowdown::Slowdown,
    workers::Duty,
};
use crate::model::Criticality;

/// What is remembered of the looks at the size of a pool.
pub(super) struct Sizing {
    pub(super) bounds: Bounds,
    pub(super) sizer: Sizer,
    pub(super) slowdown: Slowdown,
    /// When the last look was, and for how long workers had had jobs by then.
    last: Option<(Instant, f64)>,
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
        let busy_seconds = self.workers.busy_time(now).as_secs_f64();
        let last = self.sizing.last.replace((now, busy_seconds));
        if !self.is_elastic() || self.closed || self.shut || self.paused.is_some() {
            self.sizing.sizer = Sizer::NEW;
            return None;
        }
        let (before, busy_before) = last?;
        self.turn_windows(now);
        let (entries, workers) = (&self.entries, &self.workers);
        let running = workers.iter().filter_map(|slot| match slot.duty {
            Duty::Busy(key) => {
                Some((entries[key.index].kind, now.saturating_duration_since(slot.changed).as_secs_f64()))
            }
            Duty::Idle(_) | Duty::Stuck { .. } => None,
        });
        self.sizing.slowdown.look(&self.estimates, running);
        let from = self.workers.configured();
        let worked = now.saturating_duration_since(before).as_secs_f64() * self.workers.live().max(1) as f64;
        let busy = ((busy_seconds - busy_before) / worked).clamp(0.0, 1.0);
        let wait = self.expected_wait(Criticality::default()).as_secs_f64() / self.estimates.mean().max(1e-6);
        let slowdown = self.sizing.slowdown.ratio();
        let sample = Sample { workers: from, busy, wait, slowdown, may_grow };
        let (sizer, to) = self.sizing.sizer.decide(&sample, self.sizing.bounds);
        self.sizing.sizer = sizer;
        if from == to {
            return None;
        }
        let gone = self.employ(now, to, fresh, effects);
        Some(Resized { from, to, gone })
    }
}
