//! A load: arrivals, service times, deadlines and tenants. It draws its jobs, or takes them from a recording.

use std::{sync::Arc, time::Duration};

use clap::ValueEnum;
use rand::{RngExt, SeedableRng, distr::weighted::WeightedIndex, rngs::StdRng};

use super::recording::Recording;
use crate::model::{Criticality, WhenFull};

/// Mean length of the on and off periods of an on-off load.
const SWITCH: Duration = Duration::from_millis(500);
/// Mean size of a burst.
const BURST: f64 = 16.0;

/// How long jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Coefficient of variation 1.
    Exponential,
    /// Coefficient of variation 2.
    Lognormal,
}

/// Distribution of arrivals over time. All patterns have the same mean rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// Independent of each other.
    Poisson,
    /// Alternates between twice the rate and no arrivals, each for half a second on average.
    // The lengths of the periods are exponential.
    OnOff,
    /// Sixteen arrivals on average at the same instant.
    // The size of a burst is geometric; the instants are independent.
    Bursts,
}

/// What refused callers do. As in gRPC's retry policy, they make at most five attempts, under one deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Retry {
    /// They do not retry.
    Never,
    /// They retry after the time in the refusal; without one, like `ignore`.
    Obey,
    /// Like `obey`, with gRPC's retry throttling: a client that is refused too often pauses its retries.
    // gRPC clients do this with `deploy/service-config.json`. Each tenant is one client.
    Grpc,
    /// They retry with their own back-off: 50 ms, doubled each time up to a second, plus or minus a fifth.
    Ignore,
}

/// Attempts of one call, including the first: the maximum of gRPC's retry policy.
pub(crate) const ATTEMPTS: u32 = 5;
/// The first back-off of callers that got no retry time, or ignore it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The back-off of a caller after `attempts` attempts.
pub(crate) fn own_pause(attempts: u32, dice: &mut StdRng) -> Duration {
    let pause = FIRST_PAUSE * 2_u32.pow(attempts - 1);
    pause.min(MAX_PAUSE).mul_f64(dice.random_range(0.8..1.2))
}

/// A condition during a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Disturbance<T> {
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    pub(crate) what: T,
}

impl<T> Disturbance<T> {
    pub(crate) fn holds(&self, at: Duration) -> bool {
        (self.from..self.until).contains(&at)
    }
}

/// The source of jobs.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Jobs are drawn: the arrival pattern, the mean service time, and its distribution.
    Drawn { pattern: Pattern, mean: Duration, service: Service },
    /// Jobs come from the log of a server.
    Recorded(Arc<Recording>),
}

/// A load that follows the main one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaterLoad {
    /// Load as a multiple of the workers' capacity.
    pub(crate) times: f64,
    pub(crate) lasts: Duration,
}

/// The jobs that arrive, and the workers that run them.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) workers: usize,
    pub(crate) source: Source,
    /// Load as a multiple of the workers' capacity, or of the recorded rate.
    pub(crate) times: f64,
    /// Length of the main load.
    pub(crate) lasts: Duration,
    /// The load after the main load, to measure the recovery. No other figure counts it.
    pub(crate) then: Option<LaterLoad>,
    pub(crate) deadline: Duration,
    /// Weight of each tenant and the class of its jobs; a class of `None` is drawn at random.
    pub(crate) tenants: Vec<(f64, Option<Criticality>)>,
    pub(crate) retry: Retry,
    /// Maximum number of jobs that the queue holds.
    pub(crate) queue: usize,
    /// Service times are multiplied during this period.
    pub(crate) slow: Option<Disturbance<f64>>,
    /// Workers that are occupied by jobs that do not stop, during this period.
    pub(crate) lost: Option<Disturbance<usize>>,
    pub(crate) seed: u64,
}

/// One job that arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) service: Duration,
    pub(crate) deadline: Duration,
    pub(crate) kind: usize,
    pub(crate) tenant: usize,
    pub(crate) class: Criticality,
    /// Jobs of one tenant with the same key run one after the other.
    pub(crate) ordering_key: Option<usize>,
    /// Jobs of one kind with the same key share its limits per key.
    pub(crate) limit_key: Option<usize>,
    /// Longest run, even if the deadline is later.
    pub(crate) run_timeout: Option<Duration>,
    pub(crate) when_full: WhenFull,
    /// A store has counted it for the limits that servers divide.
    pub(crate) is_stored: bool,
}

impl Arrival {
    /// When the deadline passes.
    pub(super) fn finish_by(&self) -> Duration {
        self.at + self.deadline
    }

    /// Whether the job needs more time than one run may take.
    pub(super) fn outruns_its_limit(&self) -> bool {
        self.run_timeout.is_some_and(|limit| self.service > limit)
    }
}

impl Load {
    /// The case of the table in the scheduler's README: eight workers, a service time of 50 ms, and a deadline of half
    /// a second.
    #[cfg(test)]
    pub(crate) fn steady(times: f64, seconds: u64, service: Service, seed: u64) -> Self {
        Self {
            workers: 8,
            source: Source::Drawn { pattern: Pattern::Poisson, mean: Duration::from_millis(50), service },
            times,
            lasts: Duration::from_secs(seconds),
            then: None,
            deadline: Duration::from_millis(500),
            tenants: vec![(1.0, Some(Criticality::Critical))],
            retry: Retry::Never,
            queue: 1024,
            slow: None,
            lost: None,
            seed,
        }
    }

    /// When no more jobs arrive.
    pub(crate) fn end(&self) -> Duration {
        self.lasts + self.then.map_or(Duration::ZERO, |then| then.lasts)
    }

    /// The end of the last disturbance, if there is one.
    pub(crate) fn disturbed_until(&self) -> Option<Duration> {
        let ends = [self.slow.map(|slow| slow.until), self.lost.map(|lost| lost.until), self.then.map(|_| self.lasts)];
        ends.into_iter().flatten().max().filter(|end| *end < self.end())
    }

    /// The load at that time, as a multiple of the workers' capacity; `None` after the end.
    pub(super) fn times_at(&self, at: Duration) -> Option<f64> {
        if at < self.lasts {
            return Some(self.times);
        }
        self.then.filter(|_| at < self.end()).map(|then| then.times)
    }

    /// Number of usable workers at that time.
    pub(super) fn workers_at(&self, at: Duration) -> usize {
        let lost = self.lost.filter(|lost| lost.holds(at)).map_or(0, |lost| lost.what);
        self.workers.saturating_sub(lost)
    }

    pub(super) fn tenant_count(&self) -> usize {
        match &self.source {
            Source::Drawn { .. } => self.tenants.len(),
            Source::Recorded(recording) => recording.tenants(),
        }
    }

    pub(super) fn kind_count(&self) -> usize {
        match &self.source {
            Source::Drawn { .. } => 1,
            Source::Recorded(recording) => recording.kinds(),
        }
    }

    /// All arrivals, ordered by time.
    pub(crate) fn arrivals(&self) -> Box<dyn Iterator<Item = Arrival> + '_> {
        match &self.source {
            Source::Drawn { pattern, mean, service } => Box::new(Arrivals::new(self, *pattern, *mean, *service)),
            Source::Recorded(recording) => Box::new(recording.arrivals(self)),
        }
    }
}

/// Draws arrivals, ordered by time.
struct Arrivals<'a> {
    load: &'a Load,
    pattern: Pattern,
    mean: Duration,
    service: Service,
    tenants: WeightedIndex<f64>,
    dice: StdRng,
    now: Duration,
    /// Jobs of the current burst that are still to arrive at this instant.
    burst: u32,
    /// End of the current on period.
    on_until: Duration,
}

impl<'a> Arrivals<'a> {
    fn new(load: &'a Load, pattern: Pattern, mean: Duration, service: Service) -> Self {
        let tenants = WeightedIndex::new(load.tenants.iter().map(|tenant| tenant.0)).expect("weights are positive");
        let dice = StdRng::seed_from_u64(load.seed);
        Self { load, pattern, mean, service, tenants, dice, now: Duration::ZERO, burst: 0, on_until: SWITCH }
    }

    /// Advances to the next arrival; `None` after the last one.
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
                // Geometric, at least 1: each further job arrives with the same probability.
                while self.dice.random_bool(1.0 - 1.0 / BURST) {
                    self.burst += 1;
                }
            }
            Pattern::OnOff => {
                let mut gap = self.gap(0.5 / rate);
                // The rest of a gap at the end of an on period continues in the next on period.
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

    /// Above 0 and at most 1.
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
        }
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.advance()?;
        let shape = self.shape();
        let slower = self.load.slow.filter(|slow| slow.holds(self.now)).map_or(1.0, |slow| slow.what);
        let tenant = self.dice.sample(&self.tenants);
        let class = self.load.tenants[tenant].1;
        let class = class.unwrap_or_else(|| Criticality::BY_IMPORTANCE[self.dice.random_range(0..4)]);
        let service = self.mean.mul_f64(shape * slower);
        let (at, deadline) = (self.now, self.load.deadline);
        Some(Arrival {
            at,
            service,
            deadline,
            kind: 0,
            tenant,
            class,
            ordering_key: None,
            limit_key: None,
            run_timeout: None,
            when_full: WhenFull::Reject,
            is_stored: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_patterns_and_service_times_have_the_same_mean() {
        for (pattern, service) in [
            (Pattern::Poisson, Service::Exponential),
            (Pattern::OnOff, Service::Exponential),
            (Pattern::Bursts, Service::Lognormal),
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
        let then = Some(LaterLoad { times: 0.5, lasts: Duration::from_secs(50) });
        let load = Load { then, ..Load::steady(4.0, 50, Service::Exponential, 3) };
        let early = load.arrivals().filter(|arrival| arrival.at < load.lasts).count() as f64;
        let late = load.arrivals().filter(|arrival| arrival.at >= load.lasts).count() as f64;
        assert!((early / late / 8.0 - 1.0).abs() < 0.1, "{early} and {late}");
    }
}
