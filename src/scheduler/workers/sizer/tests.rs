//! Bounds of the sizer for any samples. `scheduler/tests/sizing.rs` has the loads that a pool follows.

use proptest::{collection::vec, prelude::*, test_runner::RngSeed};

use super::*;

const BOUNDS: Bounds = Bounds { min: 2, max: 64 };

/// A sample of a pool.
fn seen(workers: usize, busy: f64, wait: f64) -> Sample {
    let done = workers as f64 * busy;
    let jobs = 10.0 * done;
    Sample { workers, busy, wait, jobs, done, ..NOTHING }
}

const NOTHING: Sample =
    Sample { workers: 0, busy: 0.0, wait: 0.0, refused: 0.0, slowdown: 1.0, jobs: 0.0, done: 0.0, may_grow: true };

/// The number of workers after each sample, for a pool that follows the decisions of the sizer.
fn follow(sizer: &mut Sizer, mut workers: usize, samples: usize, sample: impl Fn(usize) -> Sample) -> Vec<usize> {
    let mut sizes = Vec::new();
    for _ in 0..samples {
        let (next, decision) = sizer.decide(&sample(workers), BOUNDS);
        (*sizer, workers) = (next, decision.workers);
        sizes.push(workers);
    }
    sizes
}

fn follow_anew(workers: usize, samples: usize, sample: impl Fn(usize) -> Sample) -> Vec<usize> {
    follow(&mut Sizer::NEW.clone(), workers, samples, sample)
}

/// Samples of a load that needs `demand` busy workers. With fewer workers, all are busy and a queue builds up.
fn load(demand: f64) -> impl Fn(usize) -> Sample {
    move |workers| {
        let share = demand / workers as f64;
        seen(workers, share.min(1.0), if share > 1.0 { 2.0 } else { 0.0 })
    }
}

#[test]
fn a_pool_that_may_not_grow_still_shrinks() {
    let held = |busy: f64| move |workers| Sample { may_grow: false, ..seen(workers, busy, 0.0) };
    let mut sizer = Sizer::NEW;
    assert_eq!(follow(&mut sizer, 8, 9, held(1.0)), [8; 9]);
    assert_eq!(follow(&mut sizer, 8, 80, held(0.0)).last(), Some(&2));
}

/// An arbitrary sample.
fn any_sample() -> impl Strategy<Value = Sample> {
    let shares = (0.0..=1.0, 0.0..8.0, 0.0..=1.0, 0.5..5.0);
    (shares, 0.0..200.0, 0.0..64.0, any::<bool>()).prop_map(
        |((busy, wait, refused, slowdown), jobs, done, may_grow)| Sample {
            workers: 0,
            busy,
            wait,
            refused,
            slowdown,
            jobs,
            done,
            may_grow,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn sizes_stay_within_the_bounds_and_grow_to_three_times_at_most(
        start in 2usize..=64,
        samples in vec(any_sample(), 1..400),
    ) {
        let (mut sizer, mut workers) = (Sizer::NEW, start);
        for sample in samples {
            let sample = Sample { workers, ..sample };
            let (next, decision) = sizer.decide(&sample, BOUNDS);
            let size = decision.workers;
            prop_assert!((BOUNDS.min..=BOUNDS.max).contains(&size));
            prop_assert!(size <= 3 * workers);
            prop_assert!(size <= workers || sample.may_grow);
            (sizer, workers) = (next, size);
        }
    }

    /// Under a steady load, the size changes in one direction only and becomes constant.
    #[test]
    fn a_steady_load_makes_no_pool_flap(start in 2usize..=64, demand in 0.0..80.0) {
        let mut sizes = vec![start];
        sizes.extend(follow_anew(start, 200, load(demand)));
        prop_assert!(sizes.is_sorted() || sizes.iter().rev().is_sorted(), "{sizes:?}");
        let rest = sizes[150];
        prop_assert!(sizes[150..].iter().all(|size| *size == rest), "{sizes:?}");
        prop_assert!(rest == BOUNDS.max || demand <= rest as f64, "{rest} for {demand}");
        let needed = demand + 3.0 * demand.sqrt() + 2.0;
        prop_assert!(demand >= 0.3 * rest as f64 - 1.0 || rest as f64 <= needed, "{rest} for {demand}");
    }
}
