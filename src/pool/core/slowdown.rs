//! Whether jobs take longer than they used to: each kind against its own past, so that another mix of kinds is none.

use super::estimate::Estimates;

/// How much of the way the past of a kind goes at each look: down to where its jobs are faster, up where they are a
/// little slower, and up where they are much slower, which is taken for the new state of things after ten minutes.
const DOWN: f64 = 0.1;
const UP: f64 = 1.0 / 60.0;
const UP_WHILE_SLOW: f64 = 1.0 / 600.0;
const SLOW: f64 = 1.5;
/// Runs before a kind has a past.
const ENOUGH: u32 = 20;
/// What one run that has not ended counts at most, in what its kind used to take: one that hangs is no trend.
const MOST: f64 = 4.0;

/// What the kinds of a pool used to take.
pub(super) struct Slowdown {
    kinds: Vec<Past>,
    /// How long jobs take, in what they used to take.
    ratio: f64,
}

#[derive(Clone, Copy, Default)]
struct Past {
    /// Mean run in seconds, once enough of them ended.
    seconds: Option<f64>,
    /// Runs that were looked at.
    runs: u32,
}

impl Slowdown {
    pub(super) fn new(kinds: usize) -> Self {
        Self { kinds: vec![Past::default(); kinds], ratio: 1.0 }
    }

    pub(super) fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Compares what ended since the last look, and what runs: kind, and seconds so far.
    pub(super) fn look(&mut self, estimates: &Estimates, running: impl Iterator<Item = (usize, f64)>) {
        let (mut took, mut before) = (0.0, 0.0);
        for (kind, past) in self.kinds.iter_mut().enumerate() {
            let (seconds, runs) = (estimates.service(kind), estimates.runs(kind));
            let ended = f64::from(runs.saturating_sub(past.runs));
            past.runs = runs;
            if ended == 0.0 || runs < ENOUGH {
                continue;
            }
            let known = past.seconds.get_or_insert(seconds);
            took += ended * seconds;
            before += ended * *known;
            let pace = match seconds {
                faster if faster < *known => DOWN,
                slower if slower < SLOW * *known => UP,
                _ => UP_WHILE_SLOW,
            };
            *known += pace * (seconds - *known);
        }
        for (kind, seconds) in running {
            if let Some(known) = self.kinds[kind].seconds.filter(|known| seconds > *known) {
                took += seconds.min(MOST * known);
                before += known;
            }
        }
        if before > 0.0 {
            self.ratio = took / before;
        }
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
            let start = Duration::from_millis(50);
            let mut kinds = Self { estimates: Estimates::new(2, start), slowdown: Slowdown::new(2) };
            kinds.run(0, 100, 10);
            kinds.run(1, 100, 1000);
            kinds
        }

        /// So many runs of so many milliseconds, and a look.
        fn run(&mut self, kind: usize, runs: usize, millis: u64) -> f64 {
            (0..runs).for_each(|_| self.estimates.observe(kind, Duration::from_millis(millis)));
            self.slowdown.look(&self.estimates, std::iter::empty());
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
        let start = Duration::from_millis(50);
        let mut kinds = Kinds { estimates: Estimates::new(2, start), slowdown: Slowdown::new(2) };
        kinds.run(0, 19, 1);
        assert!((kinds.run(0, 200, 40) - 1.0).abs() < 0.01, "what is known now is what was first known well");
    }

    #[test]
    fn runs_that_do_not_end_count_as_well() {
        let mut kinds = Kinds::new();
        kinds.slowdown.look(&kinds.estimates, (0..8).map(|_| (0, 60.0)));
        assert!(kinds.slowdown.ratio() > 3.9);
        let mut kinds = Kinds::new();
        (0..100).for_each(|_| kinds.estimates.observe(0, Duration::from_millis(10)));
        kinds.slowdown.look(&kinds.estimates, std::iter::once((0, 60.0)));
        assert!(kinds.slowdown.ratio() < 1.1, "one that hangs is no trend");
    }
}
