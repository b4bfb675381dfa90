use std::time::Duration;

use rustc_hash::FxHashMap;
use slab::Slab;
use tokio::time::Instant;

use super::{Arrival, Core, Host};
use crate::model::RejectionReason;

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
    DeadlineUnreachable { expected: Duration, budget: Duration },
    QuotaExceeded,
    Draining,
}

impl RefusalReason {
    pub(super) fn index(self) -> usize {
        let reason = match self {
            Self::QueueFull => RejectionReason::QueueFull,
            Self::DeadlineUnreachable { expected, budget } => RejectionReason::DeadlineUnreachable { expected, budget },
            Self::QuotaExceeded => RejectionReason::QuotaExceeded,
            Self::Draining => RejectionReason::Draining,
        };
        reason.index()
    }
}

/// The tenants that have queued jobs.
#[derive(Default)]
pub(super) struct Tenants {
    by_name: FxHashMap<Box<str>, usize>,
    tenants: Slab<Tenant>,
}

struct Tenant {
    name: Box<str>,
    jobs: usize,
}

impl Tenants {
    pub(super) fn join(&mut self, name: &str) -> usize {
        let tenant = match self.by_name.get(name) {
            Some(tenant) => *tenant,
            None => {
                let tenant = self.tenants.insert(Tenant { name: name.into(), jobs: 0 });
                self.by_name.insert(name.into(), tenant);
                tenant
            }
        };
        self.tenants[tenant].jobs += 1;
        tenant
    }

    pub(super) fn leave(&mut self, tenant: usize) {
        self.tenants[tenant].jobs -= 1;
        if self.tenants[tenant].jobs == 0 {
            let gone = self.tenants.remove(tenant);
            self.by_name.remove(&gone.name);
        }
    }

    /// Whether `name` may queue one more, given that one tenant may hold `most` while another is present.
    fn allows(&self, name: &str, most: usize) -> bool {
        match self.by_name.get(name) {
            Some(tenant) => self.tenants.len() == 1 || self.tenants[*tenant].jobs < most,
            None => true,
        }
    }

    #[cfg(test)]
    pub(super) fn jobs_of(&self, name: &str) -> usize {
        self.by_name.get(name).map_or(0, |tenant| self.tenants[*tenant].jobs)
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
        let expected = self.estimates.wait(arrival.class, self.workers.live());
        let budget = arrival.start_by.saturating_duration_since(now);
        // A guess from nothing refuses nobody.
        if self.estimates.is_measured() && expected > budget {
            let retry_after = Some(pushback(expected.saturating_sub(budget)));
            return Some(Refusal { reason: RefusalReason::DeadlineUnreachable { expected, budget }, retry_after });
        }
        if !self.tenants.allows(arrival.tenant, self.tenant_cap()) {
            return Some(Refusal { reason: RefusalReason::QuotaExceeded, retry_after: Some(pushback(expected)) });
        }
        None
    }

    pub(super) fn full(&self, arrival: &Arrival<'_, H::Job>) -> Refusal {
        let expected = self.estimates.wait(arrival.class, self.workers.live());
        Refusal { reason: RefusalReason::QueueFull, retry_after: Some(pushback(expected)) }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a cap, above zero")]
    fn tenant_cap(&self) -> usize {
        ((self.caps.jobs as f64 * self.caps.tenant_share) as usize).max(1)
    }

    /// Whether evicting jobs below the class of `arrival` would make room for it.
    pub(super) fn can_shed_for(&self, arrival: &Arrival<'_, H::Job>) -> bool {
        let (bytes, jobs) = self.queues.evictable(arrival.class);
        // Subtractions, because a cap may be as large as its type.
        let jobs_fit = self.queued.len() - jobs < self.caps.jobs;
        jobs_fit && arrival.bytes <= self.caps.bytes - (self.held_bytes - bytes)
    }
}

/// When to come back after `wait`.
pub(super) fn pushback(wait: Duration) -> Duration {
    wait.clamp(SHORTEST_PUSHBACK, LONGEST_PUSHBACK)
}
