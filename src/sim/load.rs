//! A load: arrivals, service times, deadlines, tenants.

use std::{sync::Arc, time::Duration};

use rand::{RngExt, rngs::StdRng};

use super::{arrivals::Arrivals, recording::Recording};
use crate::model::Criticality;

/// How long jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Exponential,
    /// Coefficient of variation 2.
    Lognormal,
    /// Nine in ten are short; one in ten takes ten times as long.
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

/// How arrivals are spread over time. The mean rate is the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Independent of each other.
    Poisson,
    /// Twice the rate, and none at all, in turn; each for a time that is exponential with mean half a second.
    OnOff,
    /// Sixteen on average at the same instant: the number is geometric, the instants are independent.
    Bursts,
}

impl Pattern {
    pub(crate) const ALL: [Self; 3] = [Self::Poisson, Self::OnOff, Self::Bursts];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::OnOff => "on-off",
            Self::Bursts => "bursts",
        }
    }
}

/// What refused callers do. Their deadline bounds all of their attempts, and they make five at most, as gRPC's
/// retry policy allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// They go away.
    Never,
    /// They come back when they are told to; where nothing is told, as those who ignore it.
    Obey,
    /// The same, as gRPC's own clients do with `deploy/service-config.json`: a client that is refused too often gives up
    /// its retries for a while. Each tenant is one client.
    Grpc,
    /// They come back by a back-off of their own: 50 ms, doubled each time, up to a second, give or take a fifth.
    Ignore,
}

impl Retry {
    pub(crate) const ALL: [Self; 4] = [Self::Never, Self::Obey, Self::Grpc, Self::Ignore];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Obey => "obey",
            Self::Grpc => "grpc",
            Self::Ignore => "ignore",
        }
    }
}

/// Attempts of one call, the first among them: the most that gRPC's retry policy makes.
pub(crate) const ATTEMPTS: u32 = 5;
/// The back-off of callers that are told nothing, or do not listen.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// How long a caller waits by a back-off of its own, after so many attempts.
pub(crate) fn own_pause(attempts: u32, dice: &mut StdRng) -> Duration {
    let pause = FIRST_PAUSE * 2_u32.pow(attempts - 1);
    pause.min(MAX_PAUSE).mul_f64(dice.random_range(0.8..1.2))
}

/// Something that is so from an instant to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spell<T> {
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    pub(crate) what: T,
}

impl<T> Spell<T> {
    pub(crate) fn holds(&self, at: Duration) -> bool {
        (self.from..self.until).contains(&at)
    }
}

/// Where jobs come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// They are drawn: how arrivals are spread, the mean service time, and how that is spread.
    Drawn { pattern: Pattern, mean: Duration, service: Service },
    /// A server logged them.
    Recorded(Arc<Recording>),
}

/// What arrives, at what.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) workers: usize,
    pub(crate) source: Source,
    /// Load as a multiple of what the workers can do, or of the rate that was recorded.
    pub(crate) times: f64,
    /// For how long.
    pub(crate) lasts: Duration,
    /// What it falls to then, and for how long: to see when all is well again. It is not part of the other figures.
    pub(crate) then: Option<(f64, Duration)>,
    pub(crate) deadline: Duration,
    /// Deadlines are spread from half to one and a half of `deadline`.
    pub(crate) spread: bool,
    /// Weight of each tenant and the class of its jobs; a class of `None` is drawn at random.
    pub(crate) tenants: Vec<(f64, Option<Criticality>)>,
    pub(crate) retry: Retry,
    /// Most jobs that the queue holds.
    pub(crate) queue: usize,
    /// Service takes so many times longer.
    pub(crate) slow: Option<Spell<f64>>,
    /// So many workers are held by jobs that do not stop.
    pub(crate) lost: Option<Spell<usize>>,
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
    /// A run is stopped after so long, whatever is left until the deadline.
    pub(crate) run_timeout: Option<Duration>,
}

impl Arrival {
    /// Whether it takes longer than one run may.
    pub(super) fn outruns_its_limit(&self) -> bool {
        self.run_timeout.is_some_and(|limit| self.service > limit)
    }
}

impl Load {
    /// Eight workers, 50 ms, half a second to answer: the case of the table in the heart's README.
    #[cfg(test)]
    pub(crate) fn steady(times: f64, seconds: u64, service: Service, seed: u64) -> Self {
        Self {
            workers: 8,
            source: Source::Drawn { pattern: Pattern::Poisson, mean: Duration::from_millis(50), service },
            times,
            lasts: Duration::from_secs(seconds),
            then: None,
            deadline: Duration::from_millis(500),
            spread: false,
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
        self.lasts + self.then.map_or(Duration::ZERO, |then| then.1)
    }

    /// When the last of what is out of the ordinary is over, where anything is.
    pub(crate) fn calm_from(&self) -> Option<Duration> {
        let ends = [self.slow.map(|slow| slow.until), self.lost.map(|lost| lost.until), self.then.map(|_| self.lasts)];
        ends.into_iter().flatten().max().filter(|end| *end < self.end())
    }

    /// How many times what the workers can do arrives at that instant; `None` where all is over.
    pub(super) fn times_at(&self, at: Duration) -> Option<f64> {
        if at < self.lasts {
            return Some(self.times);
        }
        self.then.filter(|_| at < self.end()).map(|then| then.0)
    }

    /// Worker time per second at that instant.
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

    /// All arrivals, in order of time.
    pub(crate) fn arrivals(&self) -> Box<dyn Iterator<Item = Arrival> + '_> {
        match &self.source {
            Source::Drawn { pattern, mean, service } => Box::new(Arrivals::new(self, *pattern, *mean, *service)),
            Source::Recorded(recording) => Box::new(recording.arrivals(self)),
        }
    }
}
