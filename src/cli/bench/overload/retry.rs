//! What refused callers do.

use std::time::Duration;

use rand::rngs::StdRng;
use tonic::Status;

use crate::sim::{ATTEMPTS, Retry, own_pause};

/// The trailer by which a server tells when to come back; anything but a number tells not to.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// What a refusal tells of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    Never,
    After(Duration),
}

/// A retry that was made when it was told to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retried {
    pub(super) told: Duration,
    /// How much later than that it was sent.
    pub(super) late: Duration,
}

impl Told {
    pub(super) fn of(status: &Status) -> Self {
        let Some(pushback) = status.metadata().get(PUSHBACK) else { return Self::Nothing };
        let ms = pushback.to_str().ok().and_then(|text| text.parse().ok());
        ms.map_or(Self::Never, |ms| Self::After(Duration::from_millis(ms)))
    }
}

/// How long until a caller comes back who was refused so many times; `None` where it does not.
pub(super) fn pause(retry: Retry, told: Told, attempts: u32, dice: &mut StdRng) -> Option<Duration> {
    if attempts >= ATTEMPTS {
        return None;
    }
    match (retry, told) {
        (Retry::Never, _) | (Retry::Obey | Retry::Grpc, Told::Never) => None,
        (Retry::Obey | Retry::Grpc, Told::After(pause)) => Some(pause),
        (Retry::Obey | Retry::Grpc, Told::Nothing) | (Retry::Ignore, _) => Some(own_pause(attempts, dice)),
    }
}

/// Reads `--retry`. The throttling of grpc's clients is left to those.
pub(super) fn read(text: &str) -> Result<Retry, String> {
    let all = [Retry::Never, Retry::Obey, Retry::Ignore];
    let found = all.into_iter().find(|retry| retry.name() == text);
    found.ok_or_else(|| format!("choose from {}", all.map(Retry::name).join(", ")))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn callers_come_back_as_they_do() {
        let mut dice = StdRng::seed_from_u64(1);
        let mut told = |pushback: Option<&str>, retry, attempts| {
            let mut status = Status::resource_exhausted("");
            if let Some(pushback) = pushback {
                status.metadata_mut().insert(PUSHBACK, pushback.parse().unwrap());
            }
            pause(retry, Told::of(&status), attempts, &mut dice)
        };
        let ms = Duration::from_millis;
        assert_eq!(told(Some("37"), Retry::Never, 1), None);
        assert_eq!(told(Some("37"), Retry::Obey, 1), Some(ms(37)));
        assert_eq!(told(Some("37"), Retry::Obey, ATTEMPTS), None);
        assert_eq!(told(Some("-1"), Retry::Obey, 1), None);
        for (pushback, retry) in [(None, Retry::Obey), (Some("5000"), Retry::Ignore), (Some("-1"), Retry::Ignore)] {
            let own = told(pushback, retry, 2).unwrap();
            assert!(own >= ms(80) && own <= ms(120), "{own:?}");
        }
        assert!(read("grpc").unwrap_err().contains("never, obey, ignore"));
        assert_eq!(read("obey"), Ok(Retry::Obey));
    }
}
