//! The arrivals of a load, and the pauses before retries.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tonic::Status;
use waterwheel::Criticality;

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

/// The retry policy of refused callers. Their deadline limits all attempts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Never retry.
    Never,
    /// Retry after the delay that the server sends, or without one as [`Retry::Ignore`] does.
    Obey,
    /// Retry with their own back-off: 50 ms, doubled each time, up to a second, ±20 %.
    Ignore,
}

impl Retry {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Obey => "obey",
            Self::Ignore => "ignore",
        }
    }
}

/// Largest number of attempts of a call, including the first, as in gRPC's retry policy.
const ATTEMPTS: u32 = 5;

fn own_pause(attempts: u32, dice: &mut StdRng) -> Duration {
    let pause = Duration::from_millis(50) * 2_u32.pow(attempts - 1);
    pause.min(Duration::from_secs(1)).mul_f64(dice.random_range(0.8..1.2))
}

/// The trailer with the retry delay of the server. Anything but a number means no retry.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The advice of a refusal about the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryAdvice {
    Nothing,
    Never,
    After(Duration),
}

/// A retry that obeyed the retry delay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retried {
    pub(crate) delay: Duration,
    /// How much later than advised it was sent.
    pub(crate) late: Duration,
}

impl RetryAdvice {
    pub(crate) fn of(status: &Status) -> Self {
        let Some(pushback) = status.metadata().get(PUSHBACK) else { return Self::Nothing };
        let ms = pushback.to_str().ok().and_then(|text| text.parse().ok());
        ms.map_or(Self::Never, |ms| Self::After(Duration::from_millis(ms)))
    }
}

/// Time until the next attempt of a caller after `attempts` refusals. `None` if it does not retry.
pub(crate) fn pause(retry: Retry, advice: RetryAdvice, attempts: u32, dice: &mut StdRng) -> Option<Duration> {
    if attempts >= ATTEMPTS {
        return None;
    }
    match (retry, advice) {
        (Retry::Never, _) | (Retry::Obey, RetryAdvice::Never) => None,
        (Retry::Obey, RetryAdvice::After(pause)) => Some(pause),
        (Retry::Obey, RetryAdvice::Nothing) | (Retry::Ignore, _) => Some(own_pause(attempts, dice)),
    }
}

/// Reads `--retry`.
pub(crate) fn read_retry(text: &str) -> Result<Retry, String> {
    let all = [Retry::Never, Retry::Obey, Retry::Ignore];
    let found = all.into_iter().find(|retry| retry.name() == text);
    found.ok_or_else(|| format!("choose from {}", all.map(Retry::name).join(", ")))
}
