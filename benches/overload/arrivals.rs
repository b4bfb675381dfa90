use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use waterwheel::Criticality;

use crate::retry::Retry;

/// Classes that callers without credentials may use.
const CLASSES: [Criticality; 4] =
    [Criticality::Critical, Criticality::Critical, Criticality::SheddablePlus, Criticality::Sheddable];

/// An open loop: Poisson arrivals of jobs with exponential service times.
pub(crate) struct Load {
    pub(crate) per_second: f64,
    pub(crate) lasts: Duration,
    pub(crate) deadline: Duration,
    /// Whether to draw the class of each job.
    pub(crate) classes: bool,
    pub(crate) retry: Retry,
    pub(crate) seed: u64,
}

/// One job that arrives.
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    /// Service time, in multiples of the mean.
    pub(crate) shape: f64,
    pub(crate) class: Criticality,
}

impl Load {
    /// All arrivals, in order of time.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = Arrival> {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let (per_second, lasts, classes) = (self.per_second, self.lasts, self.classes);
        let mut now = Duration::ZERO;
        std::iter::from_fn(move || {
            let mut exponential = || -(1.0 - dice.random::<f64>()).ln();
            now += Duration::from_secs_f64(exponential() / per_second);
            let shape = exponential();
            let class = if classes { CLASSES[dice.random_range(0..4)] } else { Criticality::Critical };
            (now < lasts).then_some(Arrival { at: now, shape, class })
        })
    }
}
