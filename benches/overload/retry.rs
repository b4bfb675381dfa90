//! What refused callers do.

use std::time::Duration;

use rand::{RngExt, rngs::StdRng};
use tonic::Status;

/// What refused callers do. Their deadline bounds all of their attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// They go away.
    Never,
    /// They come back when they are told to; where nothing is told, as those that ignore it.
    Obey,
    /// They come back by a back-off of their own: 50 ms, doubled each time, up to a second, give or take a fifth.
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

/// Attempts of one call, the first among them: the most that gRPC's retry policy makes.
const ATTEMPTS: u32 = 5;

fn own_pause(attempts: u32, dice: &mut StdRng) -> Duration {
    let pause = Duration::from_millis(50) * 2_u32.pow(attempts - 1);
    pause.min(Duration::from_secs(1)).mul_f64(dice.random_range(0.8..1.2))
}

/// The trailer by which a server tells when to come back; anything but a number tells not to.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// What a refusal tells of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    Never,
    After(Duration),
}

/// A retry that was made when it was told to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retried {
    pub(crate) told: Duration,
    /// How much later than that it was sent.
    pub(crate) late: Duration,
}

impl Told {
    pub(crate) fn of(status: &Status) -> Self {
        let Some(pushback) = status.metadata().get(PUSHBACK) else { return Self::Nothing };
        let ms = pushback.to_str().ok().and_then(|text| text.parse().ok());
        ms.map_or(Self::Never, |ms| Self::After(Duration::from_millis(ms)))
    }
}

/// Time until a caller that was refused so many times comes back; `None` where it does not.
pub(crate) fn pause(retry: Retry, told: Told, attempts: u32, dice: &mut StdRng) -> Option<Duration> {
    if attempts >= ATTEMPTS {
        return None;
    }
    match (retry, told) {
        (Retry::Never, _) | (Retry::Obey, Told::Never) => None,
        (Retry::Obey, Told::After(pause)) => Some(pause),
        (Retry::Obey, Told::Nothing) | (Retry::Ignore, _) => Some(own_pause(attempts, dice)),
    }
}

/// Reads `--retry`.
pub(crate) fn read(text: &str) -> Result<Retry, String> {
    let all = [Retry::Never, Retry::Obey, Retry::Ignore];
    let found = all.into_iter().find(|retry| retry.name() == text);
    found.ok_or_else(|| format!("choose from {}", all.map(Retry::name).join(", ")))
}
