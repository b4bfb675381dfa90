//! Collects the samples for the sizer (`sizer.rs`), and applies its decisions.
//!
//! [`Slowdown`] detects that jobs take longer than before. Each kind is compared with its own past, so that another mix
//! of kinds does not count.

use tokio::time::Instant;

use super::{
    super::{Core, Effect, Host, admission::Estimates, limit::UNLIMITED},
    sizer::{Bounds, Decision, Sample, Sizer},
};
use crate::model::{Criticality, KindId, Reason};

/// What the sizing of a pool remembers.
pub(crate) struct Sizing {
    pub(crate) bounds: Bounds,
    pub(crate) sizer: Sizer,
    pub(crate) slowdown: Slowdown,
    /// At the last sample; `None` before the first one.
    last: Option<Totals>,
}

/// Totals at the time of a sample.
#[derive(Debug, Clone, Copy)]
struct Totals {
    at: Instant,
    /// Total time for which workers had jobs, in seconds.
    busy: f64,
    accepted: u64,
    completed: u64,
    /// Jobs that were refused because there are too few workers: the queue was full, or the wait too long.
    refused: u64,
}

/// Result of an adjustment.
pub(crate) struct Resized<S> {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// States of removed workers, to be dropped outside of the lock.
    pub(crate) gone: Vec<S>,
}

impl Sizing {
    pub(crate) fn new(kinds: usize) -> Self {
        Self { bounds: Bounds::default(), sizer: Sizer::NEW, slowdown: Slowdown::new(kinds), last: None }
    }
}

impl<H: Host> Core<H> {
    /// Whether the pool chooses its size.
    pub(crate) fn is_elastic(&self) -> bool {
        self.sizing.bounds.is_elastic()
    }

    /// The smallest and the largest number of workers.
    pub(crate) fn bounds(&self) -> Bounds {
        self.sizing.bounds
    }

    /// Workers that the pool should have.
    pub(crate) fn configured_workers(&self) -> usize {
        self.workers.configured()
    }

    /// Takes a sample, once a second, and adjusts the number of workers. `may_grow` says whether new workers would be
    /// useful. A paused or closed pool keeps its size.
    pub(crate) fn adjust_size(
        &mut self,
        now: Instant,
        may_grow: bool,
        fresh: impl FnMut() -> H::State,
        effects: &mut Vec<Effect<H>>,
    ) -> Option<Resized<H::State>> {
        let this = self.totals(now);
        let last = self.sizing.last.replace(this);
        if !self.is_elastic() || self.closed_for_good || self.shut_by_operator || self.paused.is_some() {
            self.sizing.sizer = Sizer::NEW;
            return None;
        }
        let last = last?;
        self.advance(now);
        let sample = self.sample(now, last, this, may_grow);
        let (sizer, Decision { workers: to, grown }) = self.sizing.sizer.decide(&sample, self.sizing.bounds);
        self.sizing.sizer = sizer;
        if grown {
            self.sizing.slowdown.accept(&self.admission.estimates);
        }
        let from = sample.workers;
        if from == to {
            return None;
        }
        let gone = self.set_worker_count(now, to, fresh, effects);
        Some(Resized { from, to, gone })
    }

    /// What happened between two totals, for the sizer.
    fn sample(&mut self, now: Instant, last: Totals, this: Totals, may_grow: bool) -> Sample {
        let seconds = now.saturating_duration_since(last.at).as_secs_f64().max(1e-3);
        let live = self.workers.live().max(1) as f64;
        let wait = self.backlog(now) / live / self.admission.estimates.mean().max(1e-6);
        let (refused, accepted) = ((this.refused - last.refused) as f64, (this.accepted - last.accepted) as f64);
        let refused = if refused > 0.0 { refused / (refused + accepted) } else { 0.0 };
        let ended = self.sizing.slowdown.compare(&self.admission.estimates);
        // Useful work is that of the runs that completed. A job that ended without its caller counts as neither.
        let in_time = ((this.completed - last.completed) as f64).min(ended.runs);
        Sample {
            workers: self.workers.configured(),
            busy: ((this.busy - last.busy) / seconds / live).clamp(0.0, 1.0),
            wait,
            refused,
            slowdown: self.sizing.slowdown.ratio(),
            jobs: ended.runs,
            done: if ended.runs > 0.0 { ended.work * in_time / ended.runs / seconds } else { 0.0 },
            may_grow,
        }
    }

    /// Seconds of queued work that only waits for a worker, over all classes and tenants.
    fn backlog(&self, now: Instant) -> f64 {
        let kind_queues = self.limits.kind_queues().filter(|kind_queue| self.limits.is_open(*kind_queue, now));
        let estimates = &self.admission.estimates;
        let ready = kind_queues.map(|kind_queue| {
            // The load of the unlimited queue is in seconds, and that of the others in jobs.
            let unit = if kind_queue == UNLIMITED { 1.0 } else { estimates.service(self.limits.kind(kind_queue)) };
            self.queue.ready_of(kind_queue) * unit
        });
        ready.sum::<f64>() + self.queue.waiting.work_ahead_of(Criticality::Sheddable)
    }

    /// The totals at `now`.
    fn totals(&self, now: Instant) -> Totals {
        let refused = |reason: Reason| self.counts.rejected[reason as usize];
        Totals {
            at: now,
            busy: self.workers.busy_time(now).as_secs_f64(),
            accepted: self.counts.accepted,
            completed: self.counts.completed,
            refused: refused(Reason::QueueFull) + refused(Reason::DeadlineUnreachable),
        }
    }
}

/// Fraction of the way to the current run time by which the reference of a kind moves at each sample.
const PACE: f64 = 1.0 / 60.0;
/// From this multiple of the reference on, a run time does not move it, so that a slowdown does not become the
/// reference.
const SLOW: f64 = 1.5;
/// Runs after which the reference counts as settled.
const SETTLED_RUNS: u32 = 100;

/// The reference run times of a pool's kinds, and how much longer jobs take.
pub(crate) struct Slowdown {
    kinds: Vec<Past>,
    /// Run time of the last jobs, divided by the reference; 1 at first.
    ratio: f64,
}

/// Jobs that ended since the last sample.
#[derive(Debug, Clone, Copy)]
struct Ended {
    runs: f64,
    /// Their run time by the reference, in seconds.
    work: f64,
}

/// The past of one kind.
#[derive(Clone, Copy, Default)]
struct Past {
    /// The reference: a run in seconds. `None` before the first run.
    seconds: Option<f64>,
    /// Runs until the last sample.
    runs: u32,
}

impl Slowdown {
    fn new(kinds: usize) -> Self {
        Self { kinds: vec![Past::default(); kinds], ratio: 1.0 }
    }

    pub(crate) fn extend(&mut self, kinds: usize) {
        self.kinds.resize(kinds, Past::default());
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Compares the jobs that ended since the last sample with the reference, and moves the reference.
    fn compare(&mut self, estimates: &Estimates) -> Ended {
        let (mut took, mut before, mut runs_ended) = (0.0, 0.0, 0.0);
        for (kind, past) in self.kinds.iter_mut().enumerate() {
            let kind = KindId(kind);
            let (seconds, runs) = (estimates.service(kind), estimates.runs(kind));
            let ended = f64::from(runs.saturating_sub(past.runs));
            past.runs = runs;
            runs_ended += ended;
            if ended == 0.0 {
                continue;
            }
            let known = past.seconds.get_or_insert(seconds);
            took += ended * seconds;
            before += ended * *known;
            let pace = if seconds < SLOW * *known { PACE } else { 0.0 };
            // While a kind has few runs, each run improves the reference.
            let pace = if runs <= SETTLED_RUNS { pace.max(ended / f64::from(runs)) } else { pace };
            *known += pace * (seconds - *known);
        }
        if before > 0.0 {
            self.ratio = took / before;
        }
        Ended { runs: runs_ended, work: before }
    }

    /// Makes the current run times the reference.
    fn accept(&mut self, estimates: &Estimates) {
        for (kind, past) in self.kinds.iter_mut().enumerate() {
            past.seconds = past.seconds.map(|_| estimates.service(KindId(kind)));
        }
        self.ratio = 1.0;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Kinds {
        estimates: Estimates,
        slowdown: Slowdown,
    }

    impl Kinds {
        fn new() -> Self {
            let mut kinds = Self { estimates: Estimates::new(2), slowdown: Slowdown::new(2) };
            kinds.run(KindId(0), 100, 10);
            kinds.run(KindId(1), 100, 1000);
            kinds
        }

        /// Ends `runs` runs of `millis` milliseconds, and compares.
        fn run(&mut self, kind: KindId, runs: usize, millis: u64) -> f64 {
            for _ in 0..runs {
                self.estimates.observe(kind, Duration::from_millis(millis));
            }
            self.slowdown.compare(&self.estimates);
            self.slowdown.ratio()
        }
    }

    #[test]
    fn slower_jobs_are_a_slowdown_but_another_mix_of_kinds_is_not() {
        let mut kinds = Kinds::new();
        for _ in 0..10 {
            assert!((kinds.run(KindId(0), 100, 10) - 1.0).abs() < 0.01);
            assert!((kinds.run(KindId(1), 100, 1000) - 1.0).abs() < 0.01);
        }
        assert!(kinds.run(KindId(0), 200, 40) > 3.5);
        assert!(kinds.run(KindId(0), 200, 10) < 1.1, "the slowdown has ended");
    }
}
