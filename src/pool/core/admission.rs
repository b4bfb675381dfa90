use std::time::Duration;

use tokio::time::Instant;

use super::{Arrival, Core, Host, law::LEAST_LEFT};
use crate::model::{Criticality, RejectionReason, WhenFull};

const SHORTEST_PUSHBACK: Duration = Duration::from_millis(10);
const LONGEST_PUSHBACK: Duration = Duration::from_secs(5);

/// Why an arrival was not accepted, and when to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    /// Before jitter, which the host adds. `None`: not here.
    pub(crate) retry_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    QueueFull,
    DeadlineUnreachable {
        expected: Duration,
        needed: Duration,
        budget: Duration,
    },
    QuotaExceeded,
    Draining,
    /// The operator drains this pool alone.
    PoolDraining,
}

impl RefusalReason {
    pub(super) fn index(self) -> usize {
        let reason = match self {
            Self::QueueFull => RejectionReason::QueueFull,
            Self::DeadlineUnreachable { expected, needed, budget } => {
                RejectionReason::DeadlineUnreachable { expected, needed, budget }
            }
            Self::QuotaExceeded => RejectionReason::QuotaExceeded,
            Self::Draining => RejectionReason::Draining,
            Self::PoolDraining => RejectionReason::PoolDraining,
        };
        reason.index()
    }
}

impl<H: Host> Core<H> {
    /// Whether `more` bytes and one more queued job fit.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.queued.len() < self.caps.jobs && self.fits(bytes)
    }

    pub(super) fn fits(&self, bytes: usize) -> bool {
        bytes <= self.caps.bytes - self.held_bytes
    }

    /// The rule at the door for a job that cannot start at once: what stands against queueing it, besides room.
    pub(super) fn objection(&self, now: Instant, arrival: &Arrival<'_, H::Job>) -> Option<Refusal> {
        let cap = self.tenant_cap();
        if !self.queues.tenants.allows(arrival.tenant, arrival.bytes, cap.0, cap.1) {
            return Some(Refusal {
                reason: RefusalReason::QuotaExceeded,
                retry_after: Some(pushback(self.wait_of(arrival))),
            });
        }
        // A guess from nothing refuses nobody.
        if !self.estimates.is_measured() {
            return None;
        }
        let wait = self.wait_of(arrival);
        let service = self.estimates.service(arrival.kind);
        let budget = arrival.finish_by.saturating_duration_since(now);
        let share = self.law.wait_share * self.margin.value;
        let patience = arrival.start_by.saturating_duration_since(now).as_secs_f64();
        let allowed = (share * budget.as_secs_f64()).min(patience);
        if wait > allowed || wait + service > budget.as_secs_f64() {
            let needed = (wait / share).max(wait + service);
            let reason =
                RefusalReason::DeadlineUnreachable { expected: seconds(wait), needed: seconds(needed), budget };
            return Some(Refusal { reason, retry_after: Some(pushback(wait - allowed + service)) });
        }
        let longest = self.law.longest_wait(self.estimates.mean().max(service));
        if wait > longest && arrival.when_full != WhenFull::Wait {
            let retry_after = Some(pushback(wait - longest + service));
            return Some(Refusal { reason: RefusalReason::QueueFull, retry_after });
        }
        None
    }

    pub(super) fn full(&self, arrival: &Arrival<'_, H::Job>) -> Refusal {
        Refusal { reason: RefusalReason::QueueFull, retry_after: Some(pushback(self.wait_of(arrival))) }
    }

    fn wait_of(&self, arrival: &Arrival<'_, H::Job>) -> f64 {
        let service = self.estimates.service(arrival.kind);
        self.wait(arrival.class, arrival.tenant, arrival.ordering_key, service)
    }

    /// Expected wait, in seconds, of a job of `tenant` that takes `service` seconds, if it were queued now.
    pub(super) fn wait(&self, class: Criticality, tenant: &str, ordering_key: &str, service: f64) -> f64 {
        let workers = self.workers.live().max(1) as f64;
        let above = self.queues.above(class);
        let taken = above.iter().map(|class| class.taken.per_second.max(0.0)).sum::<f64>() / workers;
        let left = (1.0 - taken).max(self.law.reserve).max(LEAST_LEFT);
        let share = self.queues.tenants.get(tenant).map(|tenant| &tenant.shares[class.rank()]);
        let share = share.filter(|share| share.jobs > 0);
        let (own_jobs, own_work) = share.map_or((0, 0.0), |share| (share.jobs, share.work));
        let ahead: f64 =
            above.iter().map(|class| class.work).sum::<f64>() + self.queues.class(class).ahead(own_work + service);
        // One mean service time is shared among the workers until the first of them is free.
        let shared = (ahead + self.estimates.mean()) / workers / left;
        let pace = share.and_then(|share| share.starts.per_second(self.window));
        let paced = pace.map_or(0.0, |pace| (own_jobs + 1) as f64 / pace);
        shared.max(paced).max(self.lines.work(ordering_key))
    }

    /// Most jobs and bytes of the queue for one tenant while another one is present.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a cap, not below zero")]
    fn tenant_cap(&self) -> (usize, usize) {
        let part = |cap: usize| (cap as f64 * self.caps.tenant_share) as usize;
        (part(self.caps.jobs).max(1), part(self.caps.bytes))
    }

    /// Whether evicting jobs below the class of `arrival` would make room for it.
    pub(super) fn can_shed_for(&self, arrival: &Arrival<'_, H::Job>) -> bool {
        let (bytes, jobs) = self.queues.evictable(arrival.class);
        // Subtractions, because a cap may be as large as its type.
        let jobs_fit = self.queued.len() - jobs < self.caps.jobs;
        jobs_fit && arrival.bytes <= self.caps.bytes - (self.held_bytes - bytes)
    }
}

/// When to come back after so many seconds.
pub(super) fn pushback(wait: f64) -> Duration {
    seconds(wait).clamp(SHORTEST_PUSHBACK, LONGEST_PUSHBACK)
}

/// A duration of so many seconds, which may be less than none or more than any.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
