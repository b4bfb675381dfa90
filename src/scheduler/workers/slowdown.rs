//! Detects that jobs take longer than before. Each kind is compared with its own past, so that another mix of kinds
//! does not count.

use super::super::admission::Estimates;

/// Fraction by which the reference of a kind moves at each sample, unless its jobs are much slower.
const PACE: f64 = 1.0 / 60.0;
const SLOW: f64 = 1.5;
/// Runs before a kind has a reference.
const MIN_RUNS: u32 = 20;
/// Runs after which the reference counts as settled.
const SETTLED_RUNS: u32 = 100;
/// The reference run times of a pool's kinds.
pub(crate) struct Slowdown {
    kinds: Vec<Past>,
    /// Run time of jobs, relative to the reference.
    ratio: f64,
}

/// Jobs that ended since the last sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) runs: f64,
    /// In seconds of the reference; only for kinds that have one.
    pub(crate) work: f64,
}

#[derive(Clone, Copy, Default)]
struct Past {
    /// Mean run in seconds, once enough have ended.
    seconds: Option<f64>,
    /// Runs that were counted.
    runs: u32,
}

impl Slowdown {
    pub(crate) fn new(kinds: usize) -> Self {
        Self { kinds: vec![Past::default(); kinds], ratio: 1.0 }
    }

    pub(crate) fn extend(&mut self, kinds: usize) {
        self.kinds.resize(kinds, Past::default());
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Compares the jobs that ended since the last sample.
    pub(crate) fn compare(&mut self, estimates: &Estimates) -> Ended {
        let (mut took, mut before, mut runs_ended) = (0.0, 0.0, 0.0);
        for (kind, past) in self.kinds.iter_mut().enumerate() {
            let (seconds, runs) = (estimates.service(kind), estimates.runs(kind));
            let ended = f64::from(runs.saturating_sub(past.runs));
            past.runs = runs;
            runs_ended += ended;
            if ended == 0.0 || runs < MIN_RUNS {
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
    pub(crate) fn accept(&mut self, estimates: &Estimates) {
        for (kind, past) in self.kinds.iter_mut().enumerate() {
            past.seconds = past.seconds.map(|_| estimates.service(kind));
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
            kinds.run(0, 100, 10);
            kinds.run(1, 100, 1000);
            kinds
        }

        /// Ends `runs` runs of `millis` milliseconds, and compares.
        fn run(&mut self, kind: usize, runs: usize, millis: u64) -> f64 {
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
            assert!((kinds.run(0, 100, 10) - 1.0).abs() < 0.01);
            assert!((kinds.run(1, 100, 1000) - 1.0).abs() < 0.01);
        }
        assert!(kinds.run(0, 200, 40) > 3.5);
        assert!(kinds.run(0, 200, 10) < 1.1, "the slowdown has ended");
    }

    #[test]
    fn a_few_runs_are_no_reference() {
        let mut kinds = Kinds { estimates: Estimates::new(2), slowdown: Slowdown::new(2) };
        kinds.run(0, 19, 1);
        assert!((kinds.run(0, 200, 40) - 1.0).abs() < 0.01, "the first reference is that of enough runs");
    }
}
