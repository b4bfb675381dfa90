//! The number of workers, chosen by the real machine for loads that come at random times.

mod world;

use std::time::Duration;

use self::world::{Callers, Service, Spread, World};
use crate::model::Criticality;

const SEEDS: u64 = 4;

/// When the pool is looked at for the first time: at another part of a second for each seed.
fn phase(seed: u64) -> Duration {
    Duration::from_millis(100 + 270 * (seed % 4))
}

fn is_monotonic(sizes: &[usize]) -> bool {
    sizes.is_sorted() || sizes.iter().rev().is_sorted()
}

/// Up and down, three times, in workers' worth of jobs: five seconds after a step up there are enough workers, or a little
/// later where chance has sent few jobs; five seconds after half a minute of quiet there are few; and the size changes in
/// one direction in each step.
#[test]
fn the_size_follows_steps_of_the_load_and_does_not_flap() {
    let (mut ups, mut in_time) = (0, 0);
    let steps = [(16, 1.0, 12.0), (16, 2.5, 12.0), (16, 0.3, 5.4), (16, 1.5, 8.0), (64, 1.0, 45.0), (64, 6.0, 30.0)];
    for (most, low, high) in steps {
        for (mean, spread) in [(0.1, Spread::Exponential), (0.5, Spread::None), (0.5, Spread::Exponential)] {
            for seed in 0..SEEDS {
                let case = format!("{low} to {high} of {most}, {mean} s {spread:?}, seed {seed}");
                let mut world = World::new(1, most, Service::own(mean, spread), seed, phase(seed));
                world.run(low / mean, 60);
                for _ in 0..3 {
                    let up = world.run(high / mean, 60);
                    assert!(up[6] as f64 >= high, "{case}: {up:?}");
                    ups += 1;
                    in_time += usize::from(up[4] as f64 >= high);
                    assert!(is_monotonic(&up), "{case}: {up:?}");
                    let down = world.run(low / mean, 60);
                    let was_busy = high / up[59] as f64 > 0.4;
                    assert!(!was_busy || down[..24].iter().all(|size| *size == down[0]), "{case}, too soon: {down:?}");
                    assert!(down[36] as f64 <= 2.0 * low + 3.0 * low.sqrt() + 4.0, "{case}: {down:?}");
                    assert!(is_monotonic(&down), "{case}: {down:?}");
                }
            }
        }
    }
    assert!(in_time * 25 >= ups * 24, "{in_time} of {ups} within five seconds");
}

/// What keeps the workers busy for a third of their time moves nothing, however long it lasts.
#[test]
fn a_load_within_the_band_leaves_the_size_alone() {
    for seed in 0..SEEDS {
        let mut world = World::new(1, 16, Service::own(0.1, Spread::Exponential), seed, phase(seed));
        world.run(120.0, 30);
        assert_eq!(world.run(54.0, 600), [16; 600]);
    }
}

/// All that is queued counts, whoever it is for, and so does what is refused where deadlines are short.
#[test]
fn whoever_sends_and_however_patient_they_are_the_pool_grows_as_fast() {
    let patient = Callers::default();
    let cases = [
        Callers { tenants: 100, ..patient },
        Callers { class: Criticality::Sheddable, tenants: 3, ..patient },
        Callers { deadline: Duration::from_secs(2), ..patient },
        Callers { deadline: Duration::from_millis(1100), tenants: 3, ..patient },
    ];
    for callers in cases {
        for seed in 0..SEEDS {
            let mut world = World::new(1, 16, Service::own(0.5, Spread::None), seed, phase(seed));
            world.callers = callers;
            world.run(1.0, 60);
            let up = world.run(24.0, 10);
            assert!(up[4] >= 12, "{callers:?}, seed {seed}: {up:?}");
        }
    }
}

/// Jobs take three to five times as long as they did, and need 12 workers: how long until the pool has them?
#[test]
fn jobs_that_have_merely_grown_are_served_again() {
    let (mut took, mut let_go) = (Vec::new(), 0);
    for (before, after) in [(0.1, 0.3), (0.15, 0.5), (0.1, 0.5), (0.2, 0.6)] {
        for busy in [0.5, 1.5, 4.0] {
            for seed in 0..2 * SEEDS {
                let spread = if seed < SEEDS { Spread::None } else { Spread::Exponential };
                let mut world = World::new(1, 16, Service::own(before, spread), seed, phase(seed));
                world.callers.deadline = Duration::from_secs(20);
                world.run(busy / before, 120);
                world.service = Service::own(after, spread);
                let sizes = world.run(12.0 / after, 90);
                let late = sizes.iter().rposition(|size| *size < 12).map_or(0, |at| at + 2);
                assert!(late <= 75, "{before} to {after} s at {busy}, seed {seed}: {sizes:?}");
                let (came, served) = (world.came, world.served);
                world.run(12.0 / after, 60);
                let share = (world.served - served) as f64 / (world.came - came) as f64;
                assert!(share > 0.97, "{before} to {after} s at {busy}, seed {seed}: {share:.3} served");
                let_go += usize::from(!world.is_held_back());
                took.push((spread == Spread::None, late));
            }
        }
    }
    // One that has all of its workers has nothing to try.
    assert!(let_go * 4 > took.len() * 3, "{let_go} of {} are held back no more", took.len());
    let slowest_of = |alike: bool| took.iter().filter(|case| case.0 == alike).map(|case| case.1).max();
    let within_half_a_minute = took.iter().filter(|case| case.1 <= 30).count();
    assert!(slowest_of(true) <= Some(20) && slowest_of(false) <= Some(45), "{took:?}");
    assert!(within_half_a_minute * 20 >= took.len() * 19, "{took:?}");
}

/// A downstream that does so much a second and no more: the more workers wait for it, the longer each one does.
#[test]
fn a_downstream_that_is_at_its_limit_is_not_scaled_into() {
    for (connections, each, times) in [(8, 0.1, 3.0), (4, 0.1, 3.0), (2, 0.2, 2.0), (16, 0.2, 2.0)] {
        for seed in 0..2 {
            for deadline in [3600, 2] {
                let spread = if seed < 1 { Spread::None } else { Spread::Exponential };
                let case = format!("{connections} of {each} s, {spread:?}, deadline {deadline} s, seed {seed}");
                let service = Service::shared(connections, each, spread);
                let mut world = World::new(1, 256, service, seed, phase(seed));
                world.callers.deadline = Duration::from_secs(deadline);
                let capacity = connections as f64 / each;
                world.run(0.2 * capacity, 60);
                let sizes = world.run(times * capacity, 900);
                let mean = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
                assert!(mean <= 6.0 * connections as f64, "{case}: {mean:.1} workers");
                let served = world.served as f64 / (912.0 * capacity);
                assert!(served > 0.95, "{case}: {served:.3} of what it can do");
            }
        }
    }
}

/// A downstream that was slow for a while and is itself again: so is the pool.
#[test]
fn a_pool_grows_again_once_its_downstream_is_itself_again() {
    for seed in 0..SEEDS {
        let shared = |each: f64| Service::shared(8, each, Spread::Exponential);
        let mut world = World::new(2, 64, shared(0.1), seed, phase(seed));
        world.run(25.0, 60);
        world.service = shared(1.0);
        let slow = world.run(25.0, 120);
        assert!(world.is_held_back() && slow.iter().all(|size| *size <= 40), "seed {seed}: {slow:?}");
        world.service = shared(0.1);
        world.run(25.0, 60);
        assert!(!world.is_held_back(), "seed {seed}");
        world.service = Service::own(0.1, Spread::Exponential);
        let up = world.run(300.0, 30);
        assert!(up.iter().any(|size| *size >= 30), "seed {seed}: {up:?}");
    }
}
