use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::model::Criticality;

/// How long jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Exponential,
    /// Coefficient of variation 2.
    Lognormal,
    /// Nine in ten are short; one in ten takes ten times the mean of the rest.
    Bimodal,
    /// Pareto with shape 1.5, cut at a thousand times its minimum.
    HeavyTailed,
}

impl Service {
    pub(crate) const ALL: [Self; 4] = [Self::Exponential, Self::Lognormal, Self::Bimodal, Self::HeavyTailed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exponential => "exponential",
            Self::Lognormal => "lognormal",
            Self::Bimodal => "bimodal",
            Self::HeavyTailed => "heavy-tailed",
        }
    }
}

/// What arrives.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) workers: usize,
    /// Mean service time, and how it is spread.
    pub(crate) mean: Duration,
    pub(crate) service: Service,
    /// Load as a multiple of what the workers can do, and until when; in order of time.
    pub(crate) phases: Vec<(Duration, f64)>,
    pub(crate) deadline: Duration,
    /// Deadlines are spread from half to one and a half of `deadline`.
    pub(crate) spread: bool,
    /// Weight of each tenant and the class of its jobs; a class of `None` is drawn at random.
    pub(crate) tenants: Vec<(f64, Option<Criticality>)>,
    /// From when until when service takes so many times longer.
    pub(crate) slow: Option<(Duration, Duration, f64)>,
    pub(crate) seed: u64,
}

/// One job that arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) service: Duration,
    pub(crate) deadline: Duration,
    pub(crate) tenant: usize,
    pub(crate) class: Criticality,
}

/// Draws arrivals, in order of time.
pub(crate) struct Arrivals {
    load: Load,
    dice: StdRng,
    now: Duration,
}

impl Load {
    /// Eight workers, 50 ms, half a second to answer: the case of the table in the heart's README.
    #[cfg(test)]
    pub(crate) fn steady(times: f64, seconds: u64, service: Service, seed: u64) -> Self {
        Self {
            workers: 8,
            mean: Duration::from_millis(50),
            service,
            phases: vec![(Duration::from_secs(seconds), times)],
            deadline: Duration::from_millis(500),
            spread: false,
            tenants: vec![(1.0, Some(Criticality::Critical))],
            slow: None,
            seed,
        }
    }

    /// When the last job arrives.
    pub(crate) fn end(&self) -> Duration {
        self.phases.last().map_or(Duration::ZERO, |phase| phase.0)
    }

    pub(crate) fn arrivals(&self) -> Arrivals {
        Arrivals { load: self.clone(), dice: StdRng::seed_from_u64(self.seed), now: Duration::ZERO }
    }

    fn times(&self, at: Duration) -> Option<f64> {
        self.phases.iter().find(|(until, _)| at < *until).map(|(_, times)| *times)
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let times = self.load.times(self.now)?;
        let rate = times * self.load.workers as f64 / self.load.mean.as_secs_f64();
        let gap = -self.uniform().ln() / rate;
        self.now += Duration::from_secs_f64(gap);
        self.load.times(self.now)?;
        let slower = self.load.slow.filter(|(from, until, _)| (*from..*until).contains(&self.now));
        let shape = self.shape();
        let service = self.load.mean.mul_f64(shape * slower.map_or(1.0, |slow| slow.2));
        let deadline = if self.load.spread {
            self.load.deadline.mul_f64(self.dice.random_range(0.5..1.5))
        } else {
            self.load.deadline
        };
        let tenant = self.tenant();
        let class = self.load.tenants[tenant].1;
        let class = class.unwrap_or_else(|| Criticality::BY_IMPORTANCE[self.dice.random_range(0..4)]);
        Some(Arrival { at: self.now, service, deadline, tenant, class })
    }
}

impl Arrivals {
    /// More than 0, at most 1.
    fn uniform(&mut self) -> f64 {
        1.0 - self.dice.random::<f64>()
    }

    /// A service time with mean 1.
    fn shape(&mut self) -> f64 {
        match self.load.service {
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
                // The mean of a Pareto of shape 1.5 with minimum m, cut at 1,000 m, is about 2.905 m.
                (self.uniform().powf(-1.0 / 1.5)).min(1000.0) / 2.905
            }
        }
    }

    fn tenant(&mut self) -> usize {
        let sum: f64 = self.load.tenants.iter().map(|tenant| tenant.0).sum();
        let mut left = self.dice.random::<f64>() * sum;
        let found = self.load.tenants.iter().position(|tenant| {
            left -= tenant.0;
            left < 0.0
        });
        found.unwrap_or(self.load.tenants.len() - 1)
    }
}
