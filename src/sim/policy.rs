//! Scheduling policies: the policy of the pool's scheduler, and in tests those that it is compared with.

use std::time::Duration;

use tokio::time::Instant;

use super::load::Arrival;
use crate::{
    model::{Outcome, WhenFull},
    scheduler::{Arrival as Offer, Bounds, Caps, Core, Effect, Host, JobKey, Verdict, Withdrawal, Withdrawn},
};

/// Decides which jobs to accept, and which to start next. Tests compare the pool's policy with others.
pub(super) trait Policy {
    /// A caller submits `job`, possibly again; the deadline is the remaining time. Returns the decisions about this job
    /// and others.
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision>;
    /// A running job ended, in time or stopped at its deadline, so its worker is free.
    fn end(&mut self, now: Duration, job: usize, in_time: bool, ran: Duration) -> Vec<Decision>;
    /// A running job that does not stop has reached its deadline, so its worker stays occupied.
    fn hold(&mut self, job: usize, ran: Duration);
    /// An occupied worker is free again.
    fn give_back(&mut self, now: Duration, job: usize) -> Vec<Decision>;
    /// Whether a running job is stopped at its deadline.
    fn stops_at_deadline(&self) -> bool {
        true
    }
    /// The deadline of a queued job has passed.
    fn expire(&mut self, now: Duration, job: usize) -> Vec<Decision>;
}

/// A decision about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The job is refused, and may be retried after `retry_after`.
    Refuse {
        job: usize,
        retry_after: Option<Duration>,
    },
    Queue {
        job: usize,
    },
    /// The job starts on a worker.
    Start {
        job: usize,
    },
    /// The job leaves the queue without a run.
    Drop {
        job: usize,
    },
}

/// The policy of the pool's scheduler.
pub(super) struct PoolPolicy {
    core: Core<Numbers>,
    origin: Instant,
    /// By job.
    keys: Vec<Option<JobKey>>,
}

struct Numbers;

impl Host for Numbers {
    type Job = usize;
    type Waiter = usize;
    type State = ();
}

impl PoolPolicy {
    pub(super) fn new(workers: usize, queue: usize, kinds: usize) -> Self {
        let caps = Caps { jobs: queue, bytes: usize::MAX, waiting: 0, tenant_share: 0.25, stuck: 0 };
        let mut core = Core::new(caps, kinds, 1);
        let origin = Instant::now();
        core.resize(origin, Bounds { min: workers, max: workers }, || (), &mut Vec::new());
        Self { core, origin, keys: Vec::new() }
    }

    fn key(&self, job: usize) -> JobKey {
        self.keys[job].expect("a job that was accepted")
    }
}

fn decisions(effects: Vec<Effect<Numbers>>) -> impl Iterator<Item = Decision> {
    effects.into_iter().map(|effect| match effect {
        Effect::Start { waiter, .. } => Decision::Start { job: waiter },
        Effect::Ended { waiter, .. } | Effect::Refused { waiter, .. } => Decision::Drop { job: waiter },
    })
}

impl Policy for PoolPolicy {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        let now = self.origin + now;
        let tenant = arrival.tenant.to_string();
        let ordering_key = arrival.ordering_key.map(|key| key.to_string()).unwrap_or_default();
        let finish_by = now + arrival.deadline;
        let offer = Offer {
            job,
            kind: arrival.kind,
            class: arrival.class,
            bytes: 0,
            start_by: finish_by,
            finish_by,
            tenant: &tenant,
            ordering_key: &ordering_key,
            limit_key: "",
            when_full: WhenFull::Reject,
            shard: 0,
        };
        let mut effects = Vec::new();
        let verdict = self.core.offer(now, offer, |_| job, &mut effects);
        self.keys.resize(self.keys.len().max(job + 1), None);
        let decision = match verdict {
            Verdict::Start(grant) => {
                self.keys[job] = Some(grant.key);
                Decision::Start { job }
            }
            Verdict::Queued(key) | Verdict::Waiting(key) => {
                self.keys[job] = Some(key);
                Decision::Queue { job }
            }
            Verdict::Refused(refusal) => Decision::Refuse { job, retry_after: refusal.retry_after },
        };
        std::iter::once(decision).chain(decisions(effects)).collect()
    }

    fn end(&mut self, now: Duration, job: usize, in_time: bool, ran: Duration) -> Vec<Decision> {
        let mut effects = Vec::new();
        let ending = if in_time { Outcome::Completed } else { Outcome::DeadlineExceeded };
        self.core.end(self.origin + now, self.key(job), ending, ran);
        self.core.release(self.origin + now, self.key(job), (), &mut effects);
        decisions(effects).collect()
    }

    fn hold(&mut self, job: usize, ran: Duration) {
        let key = self.key(job);
        self.core.end(self.origin, key, Outcome::DeadlineExceeded, ran);
        // The worker is not replaced, as if the pool had reached `max_stuck`.
        self.core.stick(self.origin, key, || (), &mut Vec::new());
    }

    fn give_back(&mut self, now: Duration, job: usize) -> Vec<Decision> {
        let mut effects = Vec::new();
        self.core.release(self.origin + now, self.key(job), (), &mut effects);
        decisions(effects).collect()
    }

    fn expire(&mut self, now: Duration, job: usize) -> Vec<Decision> {
        let mut effects = Vec::new();
        let found = self.core.withdraw(self.origin + now, self.key(job), Withdrawal::Expired, &mut effects);
        let gone = (found == Withdrawn::Queued).then_some(Decision::Drop { job });
        gone.into_iter().chain(decisions(effects)).collect()
    }
}
