//! The number of workers that the real scheduler chooses for random loads.

mod simulation;

use std::{ops::Range, time::Duration};

use self::simulation::{Callers, Service, Simulation, Spread};
use super::sample;
use crate::model::Criticality;

fn seeds() -> Range<u64> {
    0..sample(4).into()
}

/// Time of the first sample, at another part of a second for each seed.
fn phase(seed: u64) -> Duration {
    Duration::from_millis(100 + 270 * (seed % 4))
}

fn is_monotonic(sizes: &[usize]) -> bool {
    sizes.is_sorted() || sizes.iter().rev().is_sorted()
}

/// The load steps up and down three times. The numbers are busy workers.
///
/// Five seconds after a step up the pool has enough workers, or a little later if few jobs arrive by chance. Five
/// seconds after 30 s of low load it has few. Within a step, its size changes in one direction only.
#[test]
fn the_size_follows_steps_of_the_load_and_does_not_flap() {
    let (mut ups, mut in_time) = (0, 0);
    let steps = [(16, 1.0, 12.0), (16, 2.5, 12.0), (16, 0.3, 5.4), (16, 1.5, 8.0), (64, 1.0, 45.0), (64, 6.0, 30.0)];
    for (most, low, high) in steps {
        for (mean, spread) in [(0.1, Spread::Exponential), (0.5, Spread::None), (0.5, Spread::Exponential)] {
            for seed in seeds() {
                let case = format!("{low} to {high} of {most}, {mean} s {spread:?}, seed {seed}");
                let mut simulation = Simulation::new(1, most, Service::own(mean, spread), seed, phase(seed));
                simulation.run(low / mean, 60);
                for _ in 0..3 {
                    let up = simulation.run(high / mean, 60);
                    assert!(up[6] as f64 >= high, "{case}: {up:?}");
                    ups += 1;
                    in_time += usize::from(up[4] as f64 >= high);
                    assert!(is_monotonic(&up), "{case}: {up:?}");
                    let down = simulation.run(low / mean, 60);
                    let was_busy = high / up[59] as f64 > 0.4;
                    assert!(!was_busy || down[..24].iter().all(|size| *size == down[0]), "{case}, too early: {down:?}");
                    assert!(down[36] as f64 <= 2.0 * low + 3.0 * low.sqrt() + 4.0, "{case}: {down:?}");
                    assert!(is_monotonic(&down), "{case}: {down:?}");
                }
            }
        }
    }
    assert!(in_time * 25 >= ups * 24, "{in_time} of {ups} within five seconds");
}

/// A load that keeps the workers busy for a third of their time is within the band, however long it lasts.
#[test]
fn a_load_within_the_band_does_not_change_the_size() {
    for seed in seeds() {
        let mut simulation = Simulation::new(1, 16, Service::own(0.1, Spread::Exponential), seed, phase(seed));
        simulation.run(120.0, 30);
        assert_eq!(simulation.run(54.0, 600), [16; 600]);
    }
}

/// Queued jobs of all tenants and classes count, and so do jobs that are refused because of short deadlines.
#[test]
fn a_pool_grows_as_fast_for_any_tenants_classes_and_deadlines() {
    let patient = Callers::default();
    let cases = [
        Callers { tenants: 100, ..patient },
        Callers { class: Criticality::Sheddable, tenants: 3, ..patient },
        Callers { deadline: Duration::from_secs(2), ..patient },
        Callers { deadline: Duration::from_millis(1100), tenants: 3, ..patient },
    ];
    for callers in cases {
        for seed in seeds() {
            let mut simulation = Simulation::new(1, 16, Service::own(0.5, Spread::None), seed, phase(seed));
            simulation.callers = callers;
            simulation.run(1.0, 60);
            let up = simulation.run(24.0, 10);
            assert!(up[4] >= 12, "{callers:?}, seed {seed}: {up:?}");
        }
    }
}

/// Jobs become three to five times slower, and need 12 workers. Checks the time until the pool has them.
#[test]
fn jobs_that_take_longer_get_more_workers() {
    let slowdowns = [(0.1, 0.3), (0.15, 0.5), (0.1, 0.5), (0.2, 0.6)];
    let (mut alike, mut random) = (Vec::new(), Vec::new());
    for (before, after) in slowdowns {
        for busy in [0.5, 1.5, 4.0] {
            for seed in seeds() {
                alike.push(slow_down(before, after, busy, Spread::None, seed));
                random.push(slow_down(before, after, busy, Spread::Exponential, seed));
            }
        }
    }
    let slowest_of = |growths: &[Regrowth]| growths.iter().map(|growth| growth.seconds).max();
    assert!(slowest_of(&alike) <= Some(20) && slowest_of(&random) <= Some(45), "{alike:?}, {random:?}");
    let all = [alike, random].concat();
    let within_half_a_minute = all.iter().filter(|growth| growth.seconds <= 30).count();
    assert!(within_half_a_minute * 20 >= all.len() * 19, "{all:?}");
    // A pool that has enough workers is no longer held back.
    let let_go = all.iter().filter(|growth| !growth.is_held_back).count();
    assert!(let_go * 4 > all.len() * 3, "only {let_go} of {} are no longer held back", all.len());
}

/// How a pool grew after its jobs had become slower.
#[derive(Debug, Clone, Copy)]
struct Regrowth {
    /// Until it had twelve workers.
    seconds: usize,
    is_held_back: bool,
}

fn slow_down(before: f64, after: f64, busy: f64, spread: Spread, seed: u64) -> Regrowth {
    let case = format!("{before} to {after} s at {busy}, {spread:?}, seed {seed}");
    let mut simulation = Simulation::new(1, 16, Service::own(before, spread), seed, phase(seed));
    simulation.callers.deadline = Duration::from_secs(20);
    simulation.run(busy / before, 120);
    simulation.service = Service::own(after, spread);
    let sizes = simulation.run(12.0 / after, 90);
    let seconds = sizes.iter().rposition(|size| *size < 12).map_or(0, |at| at + 2);
    assert!(seconds <= 75, "{case}: {sizes:?}");
    let (arrived, served) = (simulation.arrived, simulation.served);
    simulation.run(12.0 / after, 60);
    let share = (simulation.served - served) as f64 / (simulation.arrived - arrived) as f64;
    assert!(share > 0.97, "{case}: {share:.3} served");
    Regrowth { seconds, is_held_back: simulation.is_held_back() }
}

/// A downstream with a fixed capacity. With more workers, each of them only waits longer.
#[test]
fn a_pool_does_not_grow_for_a_downstream_at_its_capacity() {
    let seconds = sample(900);
    let downstreams = [(8, 0.1, 3.0), (4, 0.1, 3.0), (2, 0.2, 2.0), (16, 0.2, 2.0)];
    for (connections, each, times) in downstreams {
        for (seed, spread) in [(0, Spread::None), (1, Spread::Exponential)] {
            for deadline in [3600, 2] {
                let case = format!("{connections} of {each} s, {spread:?}, deadline {deadline} s, seed {seed}");
                let service = Service::shared(connections, each, spread);
                let mut simulation = Simulation::new(1, 256, service, seed, phase(seed));
                simulation.callers.deadline = Duration::from_secs(deadline);
                let capacity = connections as f64 / each;
                simulation.run(0.2 * capacity, 60);
                let sizes = simulation.run(times * capacity, seconds);
                let mean = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
                assert!(mean <= 6.0 * connections as f64, "{case}: {mean:.1} workers");
                let served = simulation.served as f64 / (f64::from(12 + seconds) * capacity);
                assert!(served > 0.95, "{case}: {served:.3} of its capacity");
            }
        }
    }
}

#[test]
fn a_pool_grows_again_when_its_downstream_has_recovered() {
    for seed in seeds() {
        let shared = |each: f64| Service::shared(8, each, Spread::Exponential);
        let mut simulation = Simulation::new(2, 64, shared(0.1), seed, phase(seed));
        simulation.run(25.0, 60);
        simulation.service = shared(1.0);
        let slow = simulation.run(25.0, 120);
        assert!(simulation.is_held_back() && slow.iter().all(|size| *size <= 40), "seed {seed}: {slow:?}");
        simulation.service = shared(0.1);
        simulation.run(25.0, 60);
        assert!(!simulation.is_held_back(), "seed {seed}");
        simulation.service = Service::own(0.1, Spread::Exponential);
        let up = simulation.run(300.0, 30);
        assert!(up.iter().any(|size| *size >= 30), "seed {seed}: {up:?}");
    }
}
