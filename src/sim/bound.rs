//! The best that any policy could do with a load.

use std::{collections::VecDeque, time::Duration};

use super::load::Load;

/// Grain of the bound.
const STEP: Duration = Duration::from_millis(100);

/// The most worker time that anybody could have put to use, of jobs that arrive in the course of a load.
///
/// It is what a server without grain gets done: in each tenth of a second it works off the oldest of what is there and
/// still in time. Where the load is steady this is `min(demand, capacity)`; where it comes and goes, a lull does not make
/// up for a rush that is too long ago.
#[derive(Debug, Clone, Default)]
pub(super) struct Bound {
    /// Worker seconds asked for, and the longest deadline in steps, by step of arrival.
    demand: Vec<(f64, usize)>,
}

impl Bound {
    pub(super) fn ask(&mut self, at: Duration, service: Duration, deadline: Duration) {
        let step = steps(at);
        if self.demand.len() <= step {
            self.demand.resize(step + 1, (0.0, 0));
        }
        let (demand, longest) = &mut self.demand[step];
        // Nobody has anything of a job that takes longer than it may.
        *demand += if service < deadline { service.as_secs_f64() } else { 0.0 };
        *longest = (*longest).max(steps(deadline) + 1);
    }

    /// Worker seconds that could have been used until `end`.
    pub(super) fn could(&self, load: &Load, end: Duration) -> f64 {
        let mut left: VecDeque<(usize, f64)> = VecDeque::new();
        let mut used = 0.0;
        let mut at = Duration::ZERO;
        for (step, (demand, longest)) in self.demand.iter().copied().chain(std::iter::repeat((0.0, 0))).enumerate() {
            if at >= end {
                break;
            }
            left.push_back((step + longest, demand));
            let mut room = load.workers_at(at) as f64 * STEP.min(end - at).as_secs_f64();
            while let Some((until, work)) = left.front_mut()
                && (room > 0.0 || *until < step)
            {
                let done = if *until < step { 0.0 } else { work.min(room) };
                used += done;
                room -= done;
                *work -= done;
                if *work <= 0.0 || *until < step {
                    left.pop_front();
                }
            }
            at += STEP;
        }
        used
    }
}

fn steps(time: Duration) -> usize {
    usize::try_from(time.as_millis() / STEP.as_millis()).unwrap_or(usize::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::load::Service;

    /// Eight workers, asked for so many seconds of work in each of the given tenths; deadlines of half a second.
    fn could(demand: &[f64], tenths: u32) -> f64 {
        let mut bound = Bound::default();
        for (step, demand) in demand.iter().enumerate() {
            for _ in 0..(demand * 100.0).round() as usize {
                let at = STEP * u32::try_from(step).unwrap();
                bound.ask(at, Duration::from_millis(10), Duration::from_millis(500));
            }
        }
        bound.could(&Load::steady(1.0, 10, Service::Exponential, 0), STEP * tenths)
    }

    #[test]
    fn a_steady_load_could_have_what_it_asks_for_or_all_workers() {
        assert!((could(&[0.4; 20], 20) - 8.0).abs() < 1e-6, "half of the capacity");
        assert!((could(&[4.0; 20], 20) - 16.0).abs() < 1e-6, "five times the capacity");
    }

    #[test]
    fn a_lull_makes_up_for_the_last_rush_alone() {
        assert!((could(&[2.4, 0.0, 0.0], 3) - 2.4).abs() < 1e-6, "within the deadline");
        // Of 20 seconds, 0.8 fit into the tenth in which they come and into each of the six until they are too late.
        let rush = could(&[20.0], 40);
        assert!((rush - 0.8 * 7.0).abs() < 1e-6, "{rush}");
    }

    #[test]
    fn a_job_that_takes_longer_than_it_may_is_of_no_use_to_anybody() {
        let mut bound = Bound::default();
        bound.ask(Duration::ZERO, Duration::from_secs(60), Duration::from_millis(500));
        bound.ask(Duration::ZERO, Duration::from_millis(400), Duration::from_millis(500));
        let could = bound.could(&Load::steady(1.0, 10, Service::Exponential, 0), Duration::from_secs(10));
        assert!((could - 0.4).abs() < 1e-6, "{could}");
    }
}
