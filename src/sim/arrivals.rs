//! Draws the arrivals of a load.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::load::{Arrival, Load, Pattern, Service};
use crate::model::Criticality;

/// Mean of the times in which an on-off load is on, and off.
const SWITCH: Duration = Duration::from_millis(500);
/// Mean size of a burst.
const BURST: f64 = 16.0;

/// Draws arrivals, in order of time.
pub(super) struct Arrivals<'a> {
    load: &'a Load,
    pattern: Pattern,
    mean: Duration,
    service: Service,
    /// Sums of the weights of the tenants, each up to and with its own.
    weights: Vec<f64>,
    dice: StdRng,
    now: Duration,
    /// Of a burst, those that are still to come at this instant.
    burst: u32,
    /// Until when an on-off load is on.
    on_until: Duration,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(load: &'a Load, pattern: Pattern, mean: Duration, service: Service) -> Self {
        let mut sum = 0.0;
        let weights = load.tenants.iter().map(|tenant| {
            sum += tenant.0;
            sum
        });
        let weights = weights.collect();
        let dice = StdRng::seed_from_u64(load.seed);
        Self { load, pattern, mean, service, weights, dice, now: Duration::ZERO, burst: 0, on_until: SWITCH }
    }

    /// Goes on to the next arrival; `None` where none is left.
    fn advance(&mut self) -> Option<()> {
        if self.burst > 0 {
            self.burst -= 1;
            return Some(());
        }
        let times = self.load.times_at(self.now)?;
        let rate = times * self.load.workers as f64 / self.mean.as_secs_f64();
        match self.pattern {
            Pattern::Poisson => {
                let gap = self.gap(1.0 / rate);
                self.now += gap;
            }
            Pattern::Bursts => {
                let gap = self.gap(BURST / rate);
                self.now += gap;
                // Geometric from 1 on: each further one comes with the same chance.
                while self.dice.random_bool(1.0 - 1.0 / BURST) {
                    self.burst += 1;
                }
            }
            Pattern::OnOff => {
                let mut gap = self.gap(0.5 / rate);
                // What is left of the gap when the load goes off goes on when it is on again.
                while self.now + gap >= self.on_until && self.now < self.load.end() {
                    gap -= self.on_until.saturating_sub(self.now).min(gap);
                    self.now = self.on_until + self.gap(SWITCH.as_secs_f64());
                    self.on_until = self.now + self.gap(SWITCH.as_secs_f64());
                }
                self.now += gap;
            }
        }
        self.load.times_at(self.now).map(|_| ())
    }

    fn gap(&mut self, mean_seconds: f64) -> Duration {
        Duration::from_secs_f64(-self.uniform().ln() * mean_seconds)
    }

    /// More than 0, at most 1.
    fn uniform(&mut self) -> f64 {
        1.0 - self.dice.random::<f64>()
    }

    /// A service time with mean 1.
    fn shape(&mut self) -> f64 {
        match self.service {
            Service::Exponential => -self.uniform().ln(),
            Service::Lognormal => {
                // σ² = ln(1 + cv²), μ = −σ²/2.
                let variance = 5.0_f64.ln();
                let normal = (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
                (variance.sqrt() * normal - variance / 2.0).exp()
            }
            Service::Bimodal => {
                if self.dice.random_bool(0.1) {
                    10.0 / 1.9
                } else {
                    1.0 / 1.9
                }
            }
            Service::HeavyTailed => {
                // The mean of a Pareto of shape 1.5 with minimum m, cut at 1,000 m, is about 2.937 m.
                (self.uniform().powf(-1.0 / 1.5)).min(1000.0) / 2.937
            }
        }
    }

    fn tenant(&mut self) -> usize {
        let drawn = self.dice.random::<f64>() * self.weights.last().copied().unwrap_or_default();
        self.weights.partition_point(|weight| *weight <= drawn).min(self.weights.len() - 1)
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.advance()?;
        let shape = self.shape();
        let slower = self.load.slow.filter(|slow| slow.holds(self.now)).map_or(1.0, |slow| slow.what);
        let deadline = if self.load.spread {
            self.load.deadline.mul_f64(self.dice.random_range(0.5..1.5))
        } else {
            self.load.deadline
        };
        let tenant = self.tenant();
        let class = self.load.tenants[tenant].1;
        let class = class.unwrap_or_else(|| Criticality::BY_IMPORTANCE[self.dice.random_range(0..4)]);
        let service = self.mean.mul_f64(shape * slower);
        let at = self.now;
        Some(Arrival { at, service, deadline, kind: 0, tenant, class, ordering_key: None, run_timeout: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::load::Source;

    #[test]
    fn all_patterns_and_spreads_have_the_same_mean() {
        for (pattern, service) in [
            (Pattern::Poisson, Service::Exponential),
            (Pattern::OnOff, Service::Bimodal),
            (Pattern::Bursts, Service::Lognormal),
            (Pattern::Poisson, Service::HeavyTailed),
        ] {
            let mean = Duration::from_millis(50);
            let mut load = Load::steady(2.0, 1_000, service, 1);
            load.source = Source::Drawn { pattern, mean, service };
            let (mut jobs, mut work) = (0.0, 0.0);
            for arrival in load.arrivals() {
                jobs += 1.0;
                work += arrival.service.as_secs_f64();
            }
            let (rate, mean) = (jobs / 1_000.0, work / jobs);
            assert!((rate / 320.0 - 1.0).abs() < 0.08, "{pattern:?}: {rate} jobs per second");
            assert!((mean / 0.05 - 1.0).abs() < 0.04, "{service:?}: {mean} s");
        }
    }

    #[test]
    fn a_load_that_falls_goes_on_at_the_lower_rate() {
        let load =
            Load { then: Some((0.5, Duration::from_secs(50))), ..Load::steady(4.0, 50, Service::Exponential, 3) };
        let early = load.arrivals().filter(|arrival| arrival.at < load.lasts).count() as f64;
        let late = load.arrivals().filter(|arrival| arrival.at >= load.lasts).count() as f64;
        assert!((early / late / 8.0 - 1.0).abs() < 0.1, "{early} and {late}");
    }
}
