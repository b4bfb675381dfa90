use proptest::{collection::vec, prelude::*};

use super::*;

const BOUNDS: Bounds = Bounds { min: 2, max: 64 };

/// A pool of so many workers, seen so.
fn seen(workers: usize, busy: f64, wait: f64) -> Sample {
    Sample { workers, busy, wait, slowdown: 1.0, may_grow: true }
}

/// The workers after each of the looks at a pool that follows what is decided.
fn follow(sizer: &mut Sizer, mut workers: usize, looks: usize, sample: impl Fn(usize) -> Sample) -> Vec<usize> {
    let mut sizes = Vec::new();
    for _ in 0..looks {
        (*sizer, workers) = sizer.decide(&sample(workers), BOUNDS);
        sizes.push(workers);
    }
    sizes
}

/// What a load of so many busy workers shows in a pool: all are busy, and a queue builds up, where there are fewer.
fn load(demand: f64) -> impl Fn(usize) -> Sample {
    move |workers| {
        let share = demand / workers as f64;
        seen(workers, share.min(1.0), if share > 1.0 { 2.0 } else { 0.0 })
    }
}

#[test]
fn a_pool_grows_by_a_quarter_once_it_was_busy_at_three_looks() {
    let mut sizer = Sizer::NEW;
    let sizes = follow(&mut sizer, 8, 6, |workers| seen(workers, 0.9, 0.0));
    assert_eq!(sizes, [8, 8, 10, 12, 15, 18]);
    assert_eq!(follow(&mut sizer, 18, 3, |workers| seen(workers, 0.79, 0.0)), [18, 18, 18]);
    assert_eq!(follow(&mut sizer, 60, 4, |workers| seen(workers, 0.9, 0.0)), [60, 60, 64, 64]);
}

#[test]
fn waits_count_at_two_looks_and_long_ones_for_twice_as_much() {
    assert_eq!(follow(&mut Sizer::NEW.clone(), 8, 4, |workers| seen(workers, 1.0, 1.1)), [8, 10, 12, 15]);
    assert_eq!(follow(&mut Sizer::NEW.clone(), 8, 4, |workers| seen(workers, 1.0, 4.1)), [8, 12, 18, 27]);
    assert_eq!(follow(&mut Sizer::NEW.clone(), 2, 4, |workers| seen(workers, 1.0, 1.1)), [2, 3, 4, 5]);
    let mut sizer = Sizer::NEW;
    for wait in [2.0, 0.5, 2.0, 0.5] {
        assert_eq!(follow(&mut sizer, 8, 1, |workers| seen(workers, 0.5, wait)), [8], "one look is no trend");
    }
}

#[test]
fn a_pool_does_not_grow_to_where_its_load_would_be_little() {
    assert_eq!(follow(&mut Sizer::NEW.clone(), 8, 9, |workers| seen(workers, 0.3, 5.0)), [8; 9]);
    assert_eq!(follow(&mut Sizer::NEW.clone(), 8, 4, |workers| seen(workers, 3.6 / workers as f64, 5.0))[3], 12);
}

#[test]
fn a_pool_shrinks_by_a_quarter_after_thirty_quiet_looks() {
    let mut sizer = Sizer::NEW;
    let sizes = follow(&mut sizer, 16, 40, load(1.0));
    assert!(sizes[..29].iter().all(|size| *size == 16), "{sizes:?}");
    assert_eq!(sizes[29..], [12, 9, 7, 6, 5, 4, 3, 3, 3, 3, 3]);
    let mut sizer = Sizer::NEW;
    follow(&mut sizer, 16, 29, load(1.0));
    follow(&mut sizer, 16, 1, load(8.0));
    assert_eq!(follow(&mut sizer, 16, 29, load(1.0)), [16; 29], "a busy look starts the count anew");
}

#[test]
fn after_it_shrank_a_pool_rests_before_it_grows() {
    let mut sizer = Sizer::NEW;
    follow(&mut sizer, 16, 30, load(1.0));
    assert_eq!(follow(&mut sizer, 12, 5, |workers| seen(workers, 1.0, 1.1)), [12, 12, 12, 15, 18]);
}

#[test]
fn a_pool_whose_jobs_slow_down_grows_by_one_step() {
    let slow = |slowdown: f64| move |workers| Sample { slowdown, ..seen(workers, 1.0, 9.0) };
    let mut sizer = Sizer::NEW;
    assert_eq!(follow(&mut sizer, 8, 60, slow(4.0)).last(), Some(&10));
    assert_eq!(follow(&mut sizer, 10, 9, slow(1.6)).last(), Some(&10), "it is still slow");
    assert_eq!(follow(&mut sizer, 10, 3, slow(1.4)), [15, 22, 33]);
    assert_eq!(follow(&mut sizer, 33, 3, slow(1.9)), [49, 64, 64]);
}

#[test]
fn a_pool_that_may_not_grow_still_shrinks() {
    let held = |busy: f64| move |workers| Sample { may_grow: false, ..seen(workers, busy, 0.0) };
    let mut sizer = Sizer::NEW;
    assert_eq!(follow(&mut sizer, 8, 9, held(1.0)), [8; 9]);
    assert_eq!(follow(&mut sizer, 8, 31, held(0.1)).last(), Some(&5));
}

/// A sample of a pool, whatever may be seen of it.
fn any_sample() -> impl Strategy<Value = (f64, f64, f64, bool)> {
    (0.0..=1.0, 0.0..8.0, 0.5..5.0, any::<bool>())
}

proptest! {
    #[test]
    fn sizes_stay_within_the_bounds_and_move_by_steps(
        start in 2usize..=64,
        looks in vec(any_sample(), 1..400),
    ) {
        let (mut sizer, mut workers) = (Sizer::NEW, start);
        for (busy, wait, slowdown, may_grow) in looks {
            let (next, size) = sizer.decide(&Sample { workers, busy, wait, slowdown, may_grow }, BOUNDS);
            prop_assert!((BOUNDS.min..=BOUNDS.max).contains(&size));
            prop_assert!(size <= workers + (workers / 2).max(1) && size + (workers / 4).max(1) >= workers);
            prop_assert!(size <= workers || may_grow);
            (sizer, workers) = (next, size);
        }
    }

    /// Whatever a steady load is, the size moves in one direction and comes to rest.
    #[test]
    fn a_steady_load_makes_no_pool_flap(start in 2usize..=64, demand in 0.0..80.0) {
        let mut sizes = vec![start];
        sizes.extend(follow(&mut Sizer::NEW.clone(), start, 200, load(demand)));
        prop_assert!(sizes.is_sorted() || sizes.iter().rev().is_sorted(), "{sizes:?}");
        let rest = sizes[150];
        prop_assert!(sizes[150..].iter().all(|size| *size == rest), "{sizes:?}");
        prop_assert!(rest == BOUNDS.max || demand <= rest as f64, "{rest} for {demand}");
        prop_assert!(rest == BOUNDS.min || demand >= 0.3 * (rest as f64 - 1.0) - 1.0, "{rest} for {demand}");
    }

    /// While jobs are slow, the pool grows by no more than a step, however long that lasts.
    #[test]
    fn a_slow_downstream_is_not_scaled_into(start in 2usize..=64, looks in vec(any_sample(), 1..400)) {
        let (mut sizer, mut workers) = (Sizer::NEW, start);
        for (busy, wait, slowdown, may_grow) in looks {
            let slowdown = slowdown.max(SLOW_NO_MORE).max(if workers == start { SLOW } else { 0.0 });
            (sizer, workers) = sizer.decide(&Sample { workers, busy, wait, slowdown, may_grow }, BOUNDS);
            prop_assert!(workers <= start + (start / 4).max(1), "{workers} from {start}");
        }
    }
}
