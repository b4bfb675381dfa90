//! The pool's own scheduler as a policy.

use std::time::Duration;

use tokio::time::Instant;

use super::policy::{Decision, Policy};
use crate::{
    model::{Outcome, WhenFull},
    scheduler::{Arrival as Offer, Caps, Core, Effect, Host, JobKey, Verdict, Withdrawal, Withdrawn},
    sim::load::Arrival,
};

/// The machine of the pool itself.
pub(super) struct Ours {
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

impl Ours {
    pub(super) fn new(workers: usize, queue: usize, kinds: usize) -> Self {
        let caps = Caps { jobs: queue, bytes: usize::MAX, waiting: 0, tenant_share: 0.25, stuck: 0 };
        let mut core = Core::new(caps, kinds, 1);
        let origin = Instant::now();
        for _ in 0..workers {
            core.add_worker(origin, (), &mut Vec::new());
        }
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

impl Policy for Ours {
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
        // Nobody takes its place: the pool is smaller, as where more workers are stuck than it replaces.
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
