//! Whether jobs take longer than they used to: each kind against its own past, so that another mix of kinds is none.

use super::estimate::Estimates;

/// How much of the way the past of a kind goes at each look: down to where its jobs are faster, up where they are a
/// little slower, and up where they are much slower, which is taken for the new state of things after ten minutes.
const DOWN: f64 = 1.0 / 60.0;
const UP: f64 = 1.0 / 60.0;
const UP_WHILE_SLOW: f64 = 1.0 / 600.0;
const SLOW: f64 = 1.5;
/// Runs before a kind has a past.
const ENOUGH: u32 = 20;
/// Runs after which its past is what it is.
const MANY: u32 = 100;
/// What one run that has not ended counts at most, in what its kind used to take: one that hangs is no trend.
const MOST: f64 = 4.0;
/// What ended counts as much as so many runs, at the least, against those that have not ended: the longest of a few are
/// long by chance.
const FEW: f64 = 10.0;

/// What the kinds of a pool used to take.
pub(super) struct Slowdown {
    kinds: Vec<Past>,
    /// How long jobs take, in what they used to take.
    ratio: f64,
}

/// What ended since the last look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) runs: f64,
    /// In seconds that it used to take; of kinds that have a past.
    pub(super) work: f64,
}

#[derive(Clone, Copy, Default)]
struct Past {
    /// Mean run in seconds, once enough of them ended.
    seconds: Option<f64>,
    /// Runs that were looked at.
    runs: u32,
    /// Whether a run that has not ended takes longer than that.
    is_overdue: bool,
}

impl Slowdown {
    pub(super) fn new(kinds: usize) -> Self {
        Self { kinds: vec![Past::default(); kinds], ratio: 1.0 }
    }

    pub(super) fn extend(&mut self, kinds: usize) {
        self.kinds.resize(kinds, Past::default());
    }

    pub(super) fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Compares what ended since the last look, and what runs: kind, and seconds so far. `learns` says whether jobs that
    /// take much longer may become what is normal.
    pub(super) fn look(
        &mut self,
        estimates: &Estimates,
        running: impl Iterator<Item = (usize, f64)>,
        learns: bool,
    ) -> Ended {
        let (mut took, mut before, mut runs_ended) = (0.0, 0.0, 0.0);
        for (kind, past) in self.kinds.iter_mut().enumerate() {
            let (seconds, runs) = (estimates.service(kind), estimates.runs(kind));
            let ended = f64::from(runs.saturating_sub(past.runs));
            past.runs = runs;
            runs_ended += ended;
            if ended == 0.0 || runs < ENOUGH {
                continue;
            }
            let known = past.seconds.get_or_insert(seconds);
            took += ended * seconds;
            before += ended * *known;
            let pace = match seconds {
                faster if faster < *known => DOWN,
                slower if slower < SLOW * *known => UP,
                _ if learns => UP_WHILE_SLOW,
                _ => 0.0,
            };
            // What the first runs told is known better with each one more.
            let pace = if runs <= MANY { pace.max(ended / f64::from(runs)) } else { pace };
            *known += pace * (seconds - *known);
        }
        let work = before;
        self.kinds.iter_mut().for_each(|past| past.is_overdue = false);
        for (kind, seconds) in running {
            let past = &mut self.kinds[kind];
            if let Some(known) = past.seconds.filter(|known| seconds > *known) {
                took += seconds.min(MOST * known);
                before += known;
                if !std::mem::replace(&mut past.is_overdue, true) {
                    took += FEW * estimates.service(kind);
                    before += FEW * known;
                }
            }
        }
        if before > 0.0 {
            self.ratio = took / before;
        }
        Ended { runs: runs_ended, work }
    }

    /// What jobs take now is what they are compared with from now on.
    pub(super) fn accept(&mut self, estimates: &Estimates) {
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

        /// So many runs of so many milliseconds, and a look.
        fn run(&mut self, kind: usize, runs: usize, millis: u64) -> f64 {
            for _ in 0..runs {
                self.estimates.observe(kind, Duration::from_millis(millis));
            }
            self.slowdown.look(&self.estimates, std::iter::empty(), true);
            self.slowdown.ratio()
        }
    }

    #[test]
    fn another_mix_is_no_slowdown_and_slower_jobs_are() {
        let mut kinds = Kinds::new();
        for _ in 0..10 {
            assert!((kinds.run(0, 100, 10) - 1.0).abs() < 0.01);
            assert!((kinds.run(1, 100, 1000) - 1.0).abs() < 0.01);
        }
        assert!(kinds.run(0, 200, 40) > 3.5);
        assert!(kinds.run(0, 200, 10) < 1.1, "it is over");
    }

    #[test]
    fn what_is_slow_for_long_becomes_normal_in_ten_minutes() {
        let mut kinds = Kinds::new();
        let mut ratios = (0..1200).map(|_| kinds.run(0, 100, 40));
        let normal = ratios.position(|ratio| ratio < 1.5).expect("it becomes normal");
        assert!((240..900).contains(&normal), "after {normal} looks");
    }

    #[test]
    fn a_few_runs_are_no_past() {
        let mut kinds = Kinds { estimates: Estimates::new(2), slowdown: Slowdown::new(2) };
        kinds.run(0, 19, 1);
        assert!((kinds.run(0, 200, 40) - 1.0).abs() < 0.01, "what is known now is what was first known well");
    }

    #[test]
    fn runs_that_do_not_end_count_as_well() {
        let mut kinds = Kinds::new();
        kinds.slowdown.look(&kinds.estimates, (0..8).map(|_| (0, 60.0)), true);
        assert!(kinds.slowdown.ratio() > 2.0, "{}", kinds.slowdown.ratio());
        let mut kinds = Kinds::new();
        for _ in 0..100 {
            kinds.estimates.observe(0, Duration::from_millis(10));
        }
        kinds.slowdown.look(&kinds.estimates, std::iter::once((0, 60.0)), true);
        assert!(kinds.slowdown.ratio() < 1.1, "one that hangs is no trend");
    }
}
