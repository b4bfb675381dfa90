//! Decides about the jobs of a simulation: the scheduler of a pool under given settings, or in tests a policy to
//! compare it with.

use std::time::Duration;

use tokio::time::Instant;

use super::load::Arrival;
use crate::{
    model::{self, KindId, KindLimits, WhenFull},
    scheduler::{Arrival as Offer, Bounds, Caps, Core, Effect, Host, JobKey, Verdict, Withdrawal, Withdrawn},
};

/// Time between two samples of a pool that sizes itself.
const SAMPLE: Duration = Duration::from_secs(1);

/// The settings of a pool that the scheduler heeds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) caps: Caps,
    pub(crate) bounds: Bounds,
    /// For jobs without a policy of their own.
    pub(crate) when_full: WhenFull,
    /// By number; `None` is not served.
    pub(crate) kinds: Vec<Option<KindPlan>>,
}

/// The settings of a kind that the scheduler heeds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct KindPlan {
    pub(crate) limits: KindLimits,
    pub(crate) run_timeout: Option<Duration>,
}

impl Plan {
    /// A fixed number of workers, a bounded queue, and kinds without limits.
    pub(super) fn plain(workers: usize, queue: usize, kinds: usize) -> Self {
        Self {
            caps: Caps { jobs: queue, bytes: usize::MAX, waiting: 0, tenant_share: 0.25, stuck: 0 },
            bounds: Bounds { min: workers, max: workers },
            when_full: WhenFull::Reject,
            kinds: vec![Some(KindPlan::default()); kinds],
        }
    }
}

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
    /// When [`wake`](Self::wake) is due, if time alone can start a job or change the number of workers.
    fn wakes_at(&self) -> Option<Duration> {
        None
    }
    fn wake(&mut self, _now: Duration) -> Vec<Decision> {
        Vec::new()
    }
}

/// A decision about a job, which is named by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The job is refused, and may be retried after `retry_after`.
    Refuse { job: usize, retry_after: Option<Duration> },
    /// The job waits in the queue.
    Queue(usize),
    /// The job starts on a worker.
    Start(usize),
    /// The job leaves the queue without a run.
    Drop(usize),
}

/// The policy of the pool's scheduler.
pub(super) struct PoolPolicy {
    core: Core<Numbers>,
    origin: Instant,
    has_limits: bool,
    /// The next sample of a pool that sizes itself.
    sample_at: Duration,
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
    pub(super) fn new(plan: &Plan) -> Self {
        let mut core = Core::new(plan.caps, 0, 1);
        let origin = Instant::now();
        core.resize(origin, plan.bounds, || (), &mut Vec::new());
        let limits: Vec<KindLimits> = plan.kinds.iter().map(|kind| kind.unwrap_or_default().limits).collect();
        core.reconfigure(origin, plan.caps, &limits, &mut Vec::new());
        let has_limits = limits.iter().any(KindLimits::is_set);
        Self { core, origin, has_limits, sample_at: Duration::ZERO, keys: Vec::new() }
    }

    fn key(&self, job: usize) -> JobKey {
        self.keys[job].expect("a job that was accepted")
    }
}

fn decisions(effects: Vec<Effect<Numbers>>) -> impl Iterator<Item = Decision> {
    effects.into_iter().map(|effect| match effect {
        Effect::Start { waiter, .. } => Decision::Start(waiter),
        Effect::Ended { waiter, outcome, .. } if outcome.is_expired() => Decision::Drop(waiter),
        // Another job took its place, or a waiting caller gets none.
        Effect::Ended { waiter, .. } | Effect::Refused { waiter, .. } => {
            Decision::Refuse { job: waiter, retry_after: None }
        }
    })
}

impl Policy for PoolPolicy {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        let now = self.origin + now;
        let tenant = arrival.tenant.to_string();
        let name = |key: Option<usize>| key.map(|key| key.to_string()).unwrap_or_default();
        let [ordering_key, limit_key] = [arrival.ordering_key, arrival.limit_key].map(name);
        let finish_by = now + arrival.deadline;
        let offer = Offer {
            job,
            kind: KindId(arrival.kind),
            class: arrival.class,
            bytes: 0,
            start_by: finish_by,
            finish_by,
            tenant: &tenant,
            ordering_key: &ordering_key,
            limit_key: &limit_key,
            when_full: arrival.when_full,
            is_stored: arrival.is_stored,
            shard: 0,
        };
        let mut effects = Vec::new();
        let verdict = self.core.offer(now, offer, |_| job, &mut effects);
        self.keys.resize(self.keys.len().max(job + 1), None);
        let decision = match verdict {
            Verdict::Start(grant) => {
                self.keys[job] = Some(grant.key);
                Decision::Start(job)
            }
            Verdict::Queued(key) | Verdict::Waiting(key) => {
                self.keys[job] = Some(key);
                Decision::Queue(job)
            }
            Verdict::Refused(refusal) => Decision::Refuse { job, retry_after: refusal.retry_after },
        };
        std::iter::once(decision).chain(decisions(effects)).collect()
    }

    fn end(&mut self, now: Duration, job: usize, in_time: bool, ran: Duration) -> Vec<Decision> {
        let ending = if in_time { model::Outcome::Completed } else { model::Outcome::DeadlineExceeded };
        self.core.end(self.origin + now, self.key(job), ending, ran);
        self.give_back(now, job)
    }

    fn hold(&mut self, job: usize, ran: Duration) {
        let key = self.key(job);
        self.core.end(self.origin, key, model::Outcome::DeadlineExceeded, ran);
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
        let gone = match found {
            Withdrawn::Queued => Some(Decision::Drop(job)),
            Withdrawn::Waiting => Some(Decision::Refuse { job, retry_after: None }),
            Withdrawn::Gone => None,
        };
        gone.into_iter().chain(decisions(effects)).collect()
    }

    fn wakes_at(&self) -> Option<Duration> {
        let opens = self.has_limits.then(|| self.core.wake_at()).flatten().map(|at| at - self.origin);
        let samples = self.core.is_elastic().then_some(self.sample_at);
        opens.into_iter().chain(samples).min()
    }

    fn wake(&mut self, now: Duration) -> Vec<Decision> {
        let (at, mut effects) = (self.origin + now, Vec::new());
        if now >= self.sample_at {
            self.sample_at = now + SAMPLE;
            self.core.adjust_size(at, true, || (), &mut effects);
        }
        self.core.tick(at, &mut effects);
        decisions(effects).collect()
    }
}
