//! Tests of the sizer.

use proptest::{collection::vec, prelude::*, test_runner::RngSeed};

use super::*;

const BOUNDS: Bounds = Bounds { min: 2, max: 64 };

/// A sample of a pool.
fn seen(workers: usize, busy: f64, wait: f64) -> Sample {
    let done = workers as f64 * busy;
    let jobs = 10.0 * done;
    let unchanged = Sample { refused: 0.0, slowdown: 1.0, may_grow: true, run: 0.1, jobs, done, ..NOTHING };
    Sample { workers, busy, wait, ..unchanged }
}

const NOTHING: Sample = Sample {
    workers: 0,
    busy: 0.0,
    wait: 0.0,
    refused: 0.0,
    slowdown: 1.0,
    jobs: 0.0,
    done: 0.0,
    run: 0.0,
    may_grow: true,
};

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
fn a_pool_grows_by_a_quarter_after_three_busy_samples() {
    let mut sizer = Sizer::NEW;
    let sizes = follow(&mut sizer, 8, 6, |workers| seen(workers, 0.9, 0.0));
    assert_eq!(sizes, [8, 8, 10, 12, 15, 18]);
    assert_eq!(follow(&mut sizer, 18, 3, |workers| seen(workers, 0.79, 0.0)), [18, 18, 18]);
    assert_eq!(follow(&mut sizer, 60, 4, |workers| seen(workers, 0.9, 0.0)), [60, 60, 64, 64]);
}

#[test]
fn a_wait_counts_after_two_samples_and_a_long_wait_after_one() {
    assert_eq!(follow_anew(8, 4, |workers| seen(workers, 1.0, 1.1)), [8, 10, 12, 15]);
    assert_eq!(follow_anew(8, 3, |workers| seen(workers, 1.0, 3.0)), [8, 14, 24]);
    assert_eq!(follow_anew(4, 4, |workers| seen(workers, 1.0, 4.1)), [8, 16, 32, 64]);
    assert_eq!(follow_anew(2, 3, |workers| seen(workers, 1.0, 20.0)), [6, 18, 54]);
    let mut sizer = Sizer::NEW;
    for wait in [2.0, 0.5, 2.0, 0.5] {
        assert_eq!(follow(&mut sizer, 8, 1, |workers| seen(workers, 0.5, wait)), [8], "one sample is not a trend");
    }
}

#[test]
fn refused_jobs_count_like_waiting_ones() {
    let refused = |refused: f64| move |workers| Sample { refused, ..seen(workers, 0.7, 0.0) };
    assert_eq!(follow_anew(8, 6, refused(0.09)), [8; 6]);
    assert_eq!(follow_anew(8, 3, refused(0.1)), [8, 10, 12]);
    assert_eq!(follow_anew(8, 3, refused(0.4)), [8, 13, 21]);
    assert_eq!(follow_anew(8, 2, refused(0.5)), [16, 32]);
    assert_eq!(follow_anew(8, 1, refused(1.0)), [18], "no more than its load keeps busy for 0.3 of their time");
}

#[test]
fn a_pool_does_not_grow_so_far_that_its_load_would_be_low() {
    assert_eq!(follow_anew(8, 9, |workers| seen(workers, 0.3, 5.0)), [8; 9]);
    assert_eq!(follow_anew(8, 4, |workers| seen(workers, 3.6 / workers as f64, 5.0))[3], 12);
}

#[test]
fn a_pool_shrinks_to_its_demand_after_thirty_quiet_samples() {
    let mut sizer = Sizer::NEW;
    let sizes = follow(&mut sizer, 16, 60, load(1.0));
    assert!(sizes[..31].iter().all(|size| *size == 16), "{sizes:?}");
    assert_eq!(sizes[31..], [4; 29]);
    let mut sizer = Sizer::NEW;
    follow(&mut sizer, 16, 60, load(12.0));
    let sizes = follow(&mut sizer, 16, 60, load(1.0));
    assert!(sizes[..29].iter().all(|size| *size == 16), "{sizes:?}");
    assert!(sizes[29] == 4 && sizes[32..].iter().all(|size| *size == 4), "{sizes:?}");
    assert_eq!(follow_anew(16, 200, load(4.8)), [16; 200], "a load of 0.3 is not low");
    assert_eq!(follow_anew(16, 60, load(0.0))[59], BOUNDS.min);
}

#[test]
fn a_busy_spell_prevents_a_shrink_and_a_busy_sample_limits_it() {
    let mut sizer = Sizer::NEW;
    for _ in 0..10 {
        assert_eq!(follow(&mut sizer, 16, 20, load(1.0)), [16; 20]);
        assert_eq!(follow(&mut sizer, 16, 3, load(8.0)), [16; 3]);
    }
    let mut sizer = Sizer::NEW;
    follow(&mut sizer, 16, 20, load(1.0));
    follow(&mut sizer, 16, 1, load(8.0));
    let sizes = follow(&mut sizer, 16, 50, load(1.0));
    assert_eq!((sizes[9], sizes[10], sizes[49]), (16, 8, 4), "{sizes:?}");
}

#[test]
fn after_a_shrink_a_pool_grows_by_a_quarter_only_after_a_pause() {
    let shrunk = || {
        let mut sizer = Sizer::NEW;
        assert_eq!(follow(&mut sizer, 16, 32, load(1.0))[31], 4);
        sizer
    };
    assert_eq!(follow(&mut shrunk(), 8, 5, |workers| seen(workers, 1.0, 1.1)), [8, 8, 8, 10, 12]);
    assert_eq!(follow(&mut shrunk(), 8, 2, |workers| seen(workers, 1.0, 4.1)), [16, 32]);
}

/// Samples of a pool that never has enough workers, and whose jobs take `slowdown` times as long. `done` is the
/// finished work by number of workers.
fn slow(slowdown: f64, done: impl Fn(f64) -> f64) -> impl Fn(usize) -> Sample {
    move |workers| Sample { slowdown, done: done(workers as f64), ..seen(workers, 1.0, 9.0) }
}

#[test]
fn a_useless_step_is_reverted_and_tried_less_often() {
    let mut sizer = Sizer::NEW;
    let sizes = follow(&mut sizer, 8, 200, slow(4.0, |_| 2.0));
    assert!(sizes.iter().all(|size| [8, 16].contains(size)), "{sizes:?}");
    let begins: Vec<usize> = (1..200).filter(|at| sizes[at - 1] < sizes[*at]).collect();
    let pauses: Vec<usize> = begins.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.len() >= 3 && pauses.is_sorted() && pauses[0] < pauses[2], "{begins:?}");
    assert!(sizer.is_held_back());
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
    (shares, 0.0..200.0, 0.0..64.0, 0.001..20.0, any::<bool>()).prop_map(
        |((busy, wait, refused, slowdown), jobs, done, run, may_grow)| Sample {
            workers: 0,
            busy,
            wait,
            refused,
            slowdown,
            jobs,
            done,
            run,
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
