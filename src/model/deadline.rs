//! The deadline of a job, computed from the caller's timeout. `src/rpc/timeout.rs` parses the header.

use std::time::Duration;

use tokio::time::Instant;

/// The instant by which a job must be answered, fixed when the job arrives.
///
/// The answer is sent at [`reply_by`](Self::reply_by), a margin before the deadline. A status that is sent exactly at
/// the deadline loses the race against the caller's own timer. The margin includes a hundredth of the budget, because
/// gRPC of C++, Python, Ruby and PHP rounds `grpc-timeout` up to two or three digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    arrival: Instant,
    end: Instant,
    reply_by: Instant,
}

/// Computes deadlines from callers' timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "programs", derive(serde::Deserialize))]
pub struct DeadlinePolicy {
    /// Budget of a job whose caller sets no timeout. Default 30 s.
    pub default: Duration,
    /// Largest budget of any job. Default ten minutes.
    pub max: Duration,
    /// Time before the deadline at which the answer is sent. A hundredth of the budget is added; the sum is at most a
    /// tenth of the budget. Default 10 ms.
    pub reply_margin: Duration,
}

impl Default for DeadlinePolicy {
    fn default() -> Self {
        Self {
            default: Duration::from_secs(30),
            max: Duration::from_secs(600),
            reply_margin: Duration::from_millis(10),
        }
    }
}

impl DeadlinePolicy {
    /// The deadline of a job that arrived at `arrival` with the caller's timeout `asked`.
    #[must_use]
    pub fn fix(&self, arrival: Instant, asked: Option<Duration>) -> Deadline {
        let budget = asked.unwrap_or(self.default).min(self.max);
        Deadline::new(arrival, budget, self.reply_margin)
    }

    /// The timeout that leaves `time` until the answer is sent, in whole milliseconds. Up to 2 ms are added for what
    /// passes before the job is judged.
    #[must_use]
    pub fn timeout_for(&self, time: Duration) -> Duration {
        let with_margin = time.saturating_add(self.reply_margin).saturating_mul(100) / 99;
        let timeout = with_margin.min(time.saturating_mul(10) / 9);
        Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).saturating_add(2))
    }
}

impl Deadline {
    /// A deadline `budget` after `arrival`. The answer is sent earlier, by `margin` plus a hundredth of the budget, but
    /// at most by a tenth of it.
    #[must_use]
    pub fn new(arrival: Instant, budget: Duration, margin: Duration) -> Self {
        let end = after(arrival, budget);
        let budget = end - arrival;
        let margin = margin.saturating_add(budget / 100).min(budget / 10);
        Self { arrival, end, reply_by: end - margin }
    }

    /// The same deadline, for a job that arrives later.
    #[must_use]
    pub fn shared_by(self, arrival: Instant) -> Self {
        Self { arrival, ..self }
    }

    /// When the job arrived.
    #[must_use]
    pub fn arrival(&self) -> Instant {
        self.arrival
    }

    /// When the caller stops waiting.
    #[must_use]
    pub fn end(&self) -> Instant {
        self.end
    }

    /// Latest time to send the answer.
    #[must_use]
    pub fn reply_by(&self) -> Instant {
        self.reply_by
    }

    /// Time from the arrival to the end.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.end - self.arrival
    }

    /// Time left at `now` until the answer must be sent; zero afterwards.
    #[must_use]
    pub fn left(&self, now: Instant) -> Duration {
        self.reply_by.saturating_duration_since(now)
    }
}

/// The instant `wait` after `from`. If that overflows the clock, the instant a century after `from`.
fn after(from: Instant, wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    from.checked_add(wait).unwrap_or_else(|| from + CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margin_never_takes_more_than_a_tenth_of_the_budget() {
        let arrival = Instant::now();
        let policy = DeadlinePolicy::default();
        for (asked, early) in [(Some(50), 5), (Some(1_000), 20), (None, 310)] {
            let deadline = policy.fix(arrival, asked.map(Duration::from_millis));
            assert_eq!(deadline.end() - deadline.reply_by(), Duration::from_millis(early));
        }
    }

    #[test]
    fn a_needed_timeout_leaves_the_time_and_hardly_more() {
        let (arrival, policy) = (Instant::now(), DeadlinePolicy::default());
        for time in [1, 50, 99, 101, 1_416, 60_000].map(Duration::from_millis) {
            let left = policy.fix(arrival, Some(policy.timeout_for(time))).left(arrival);
            assert!(time < left && left <= time + Duration::from_millis(2), "{time:?}: {left:?}");
        }
    }

    #[test]
    fn the_server_caps_timeouts() {
        let arrival = Instant::now();
        let deadline = DeadlinePolicy::default().fix(arrival, Some(Duration::from_secs(86_400)));
        assert_eq!(deadline.budget(), Duration::from_secs(600));
    }
}
