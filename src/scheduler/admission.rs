//! The admission policy: the expected wait of a job, and whether it is admitted. `src/scheduler/README.md` derives it.

mod capacity;
mod demand;
mod estimate;
mod safety_margin;

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Arrival, Core, Host,
    entry::{Entry, KindQueueId, Names, TenantId, slot},
    limit::{LimitWait, TIE, UNLIMITED},
};
use crate::model::{Criticality, KindId, Limiter, RejectionReason, WhenFull};

use capacity::Seen;
pub use demand::TenantRate;
use demand::{Rate, TenantDemand, WINDOW};
pub(super) use estimate::Estimates;
use safety_margin::SafetyMargin;

/// Largest expected wait, as a share of the budget, before the safety margin reduces it. The rest covers the run, and
/// errors of the estimate.
const WAIT_SHARE: f64 = 0.5;
/// Longest expected wait in mean service times of the pool, whatever the budget. It keeps callers with long deadlines
/// from building long queues.
const MAX_WAIT_IN_RUNS: f64 = 20.0;
/// Lower bound of the longest wait, so that pools of very short jobs still queue a burst.
const MIN_MAX_WAIT: Duration = Duration::from_millis(100);
/// Smallest share of the workers' time that a class keeps, whatever the classes above it use.
const MIN_LEFT: f64 = 0.05;
/// Bounds of the retry delay of a refusal.
const MIN_DELAY: Duration = Duration::from_millis(10);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// Longest retry delay for a limit, or for the start of a worker. It is longer because that time hardly changes.
const MAX_LIMIT_DELAY: Duration = Duration::from_secs(60);
/// Retry delay before the first start of a worker.
const UNKNOWN_START: Duration = Duration::from_secs(1);

/// Measurements of the load of a pool.
pub(super) struct Admission {
    pub(super) estimates: Estimates,
    /// By class.
    pub(super) safety_margins: [SafetyMargin; 4],
    /// Worker time of each class, in seconds per second: the expected time when jobs are accepted, and the difference
    /// when they end.
    taken: [Rate; 4],
    seen: Seen,
    pub(super) demand: TenantDemand,
    /// Number of the current rate window, and its end.
    window: u64,
    window_end: Option<Instant>,
}

/// A job to be judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) kind: KindId,
    pub(super) class: Criticality,
    pub(super) bytes: usize,
    pub(super) start_by: Instant,
    pub(super) finish_by: Instant,
    pub(super) names: Names<'a>,
    /// Its tenant, if the tenant has jobs in the pool or is ahead in worker time.
    pub(super) known_tenant: Option<TenantId>,
    pub(super) when_full: WhenFull,
    /// Expected seconds of the waiting callers' jobs before it.
    pub(super) behind: f64,
}

/// The expectations about a candidate.
#[derive(Debug, Clone, Copy)]
struct Expected {
    /// Seconds until it starts.
    wait: f64,
    /// The limit that causes the wait, if there is one.
    by: Option<Limiter>,
    /// Seconds of that until a worker attaches, if there is none.
    start: f64,
    /// Seconds that it runs.
    service: f64,
    /// Share of its budget that it may spend waiting.
    share: f64,
    patience: Duration,
    budget: Duration,
}

impl Admission {
    pub(super) fn new(kinds: usize) -> Self {
        Self {
            estimates: Estimates::new(kinds),
            safety_margins: [SafetyMargin::WIDEST; 4],
            taken: Default::default(),
            seen: Seen::default(),
            demand: TenantDemand::default(),
            window: 0,
            window_end: None,
        }
    }

    /// Ends the windows that are over at `now`. `is_idle` says that nothing is queued.
    pub(super) fn advance(&mut self, now: Instant, is_idle: bool) {
        let end = *self.window_end.get_or_insert_with(|| now + WINDOW);
        // Every event calls this. Comparing instants is five times as fast as subtracting them.
        if now < end {
            return;
        }
        let empty = u32::try_from((now - end).as_nanos() / WINDOW.as_nanos()).unwrap_or(u32::MAX - 1);
        self.safety_margins.iter_mut().for_each(|margin| margin.advance(empty, is_idle));
        self.taken.iter_mut().for_each(|taken| taken.advance(empty));
        self.window += u64::from(empty) + 1;
        self.demand.advance(self.window);
        self.window_end = Some(end + WINDOW * (empty + 1));
    }

    /// The number of the window that contains `now`.
    pub(super) fn window_at(&self, now: Instant) -> u64 {
        let Some(end) = self.window_end.filter(|end| *end <= now) else { return self.window };
        self.window + 1 + u64::try_from((now - end).as_nanos() / WINDOW.as_nanos()).unwrap_or(u64::MAX / 2)
    }

    /// A job of `class` asks to be admitted.
    pub(super) fn see(&mut self, class: Criticality, tenant: &str) {
        self.seen.note(class, tenant, self.window);
    }

    /// A job of `class` was accepted, or took `seconds` more than expected.
    pub(super) fn take(&mut self, class: Criticality, seconds: f64) {
        self.taken[class.rank()].add(seconds);
    }

    /// Share of `workers` that the classes above leave to `class`.
    fn left_for(&self, class: Criticality, workers: f64) -> f64 {
        let taken: f64 = self.taken[..class.rank()].iter().map(|taken| taken.per_second.max(0.0)).sum();
        (1.0 - taken / workers).max(MIN_LEFT)
    }
}

impl Expected {
    /// Seconds that it may spend waiting.
    fn allowed(&self) -> f64 {
        (self.share * self.budget.as_secs_f64()).min(self.patience.as_secs_f64())
    }

    /// Smallest timeout with which it would be accepted.
    fn needed(&self) -> Duration {
        seconds((self.wait / self.share).max(self.wait + self.service))
    }

    /// The reason while no worker is attached.
    fn no_workers(&self) -> RejectionReason {
        let needed = if self.start > 0.0 { self.needed() } else { Duration::ZERO };
        RejectionReason::NoWorkers { expected: seconds(self.wait), needed, budget: self.budget }
    }

    /// A refusal. The retry delay ends when the wait has fallen to `allowed` seconds and a job has run. If the queue is
    /// full, `allowed` is 0.
    fn refuse(self, reason: RejectionReason, allowed: f64) -> Refusal {
        let longest = if self.by.is_some() || self.start > 0.0 { MAX_LIMIT_DELAY } else { MAX_DELAY };
        let is_held = matches!(self.by, Some(Limiter::Hold | Limiter::KeyHold));
        // The time of a hold is known.
        let after = if is_held { self.wait } else { self.wait - allowed + self.service };
        let delay = seconds(after).clamp(MIN_DELAY, longest);
        Refusal { reason, retry_after: Some(delay) }
    }
}

impl<H: Host> Core<H> {
    /// The refusal for a tenant that has used up its part of the queue.
    pub(super) fn over_its_part(&self, now: Instant, candidate: &Candidate<'_>) -> Option<Refusal> {
        let Candidate { class, known_tenant, bytes, .. } = *candidate;
        let part = self.over_part(class, known_tenant, bytes)?;
        let share = RejectionReason::TenantShare { tenant: candidate.names.tenant.to_owned(), part };
        Some(self.expect(now, candidate).refuse(share, 0.0))
    }

    pub(super) fn full(&self, now: Instant, candidate: &Candidate<'_>) -> Refusal {
        self.expect(now, candidate).refuse(RejectionReason::QueueFull, 0.0)
    }

    /// The refusal of a job that does not wait, while no worker is attached.
    pub(super) fn without_workers(&self, now: Instant, candidate: &Candidate<'_>) -> Refusal {
        let expected = self.expect(now, candidate);
        let refusal = expected.refuse(expected.no_workers(), 0.0);
        let retry_after = refusal.retry_after.filter(|_| expected.start > 0.0).or(Some(UNKNOWN_START));
        Refusal { retry_after, ..refusal }
    }

    /// Judges a job that cannot start at once, without regard to the capacity of the queue.
    ///
    /// Returns whether the job is a probe: it would end too late, but by an estimate that may be outdated.
    ///
    /// # Errors
    /// The refusal, if it must not be queued.
    pub(super) fn judge(&self, now: Instant, candidate: &Candidate<'_>) -> Result<bool, Refusal> {
        let kind_queue = self.limits.kind_queue(candidate.kind);
        let expected = self.expect(now, candidate);
        let Expected { wait, by, start, service, share, patience, budget } = expected;
        let over = |limit| RejectionReason::LimitExceeded { limit, expected: seconds(wait), budget };
        if self.has_kind_cap(kind_queue) && self.queue.jobs_of(kind_queue) >= self.kind_cap() {
            return Err(expected.refuse(over(by.unwrap_or_else(|| self.limits.any(kind_queue))), 0.0));
        }
        // Before the first measurement, only a rate limit and the start of a worker refuse: their times are known.
        if !self.admission.estimates.is_measured() && by.is_none() && start <= 0.0 {
            return Ok(false);
        }
        let left = budget.as_secs_f64();
        let (is_probe, allowed) = (wait + service > left, expected.allowed());
        if wait > allowed || (is_probe && !self.admission.estimates.may_probe(candidate.kind, now)) {
            // A longer deadline does not help if the caller's own queue timeout is the bound.
            let late = if wait <= share * left && !is_probe {
                RejectionReason::WaitTooLong { expected: seconds(wait), patience }
            } else if start > 0.0 {
                expected.no_workers()
            } else {
                RejectionReason::DeadlineUnreachable { expected: seconds(wait), needed: expected.needed(), budget }
            };
            let refusal = expected.refuse(by.map_or(late, over), allowed);
            // A later try with the same deadline would have too little time as well.
            let is_final = service > left && by.is_none();
            return Err(Refusal { retry_after: refusal.retry_after.filter(|_| !is_final), ..refusal });
        }
        let each = self.admission.estimates.mean().max(self.limits.interval(kind_queue, by));
        let longest = (MAX_WAIT_IN_RUNS * each).max(MIN_MAX_WAIT.as_secs_f64());
        // Waiting callers may wait longer, but not because of a limit: then they would block callers of other kinds.
        if wait > longest + TIE && (candidate.when_full != WhenFull::Wait || by.is_some()) {
            let long = RejectionReason::QueueTooLong { expected: seconds(wait) };
            return Err(expected.refuse(by.map_or(long, over), longest));
        }
        Ok(is_probe)
    }

    /// Whether a job could be queued if its tenant and its keys had no other jobs.
    pub(super) fn could_be_queued_alone(&self, now: Instant, candidate: &Candidate<'_>) -> bool {
        let names = Names { ordering_key: "", limit_key: "", ..candidate.names };
        let expected = self.expect(now, &Candidate { known_tenant: None, names, ..*candidate });
        let is_in_time = expected.wait + expected.service <= expected.budget.as_secs_f64();
        is_in_time && expected.wait <= expected.allowed()
    }

    fn expect(&self, now: Instant, candidate: &Candidate<'_>) -> Expected {
        let limit = self.limit_wait(now, candidate);
        let start = self.start_wait(now);
        let is_guess = (limit.by.is_some() || start > 0.0) && !self.admission.estimates.is_measured();
        let shared = start + if is_guess { 0.0 } else { self.shared_wait(candidate) };
        let [patience, budget] = [candidate.start_by, candidate.finish_by].map(|at| at.saturating_duration_since(now));
        Expected {
            wait: shared.max(limit.seconds),
            // The tolerance lets the limit win a tie, independent of rounding.
            by: limit.by.filter(|_| limit.seconds + TIE >= shared),
            start,
            // A measured kind uses its own service time.
            service: self.admission.estimates.measured(candidate.kind).unwrap_or(0.0),
            share: WAIT_SHARE * self.safety_margin(candidate),
            patience,
            budget,
        }
    }

    /// The safety margin of the class. It does not apply to a tenant whose demand is below its fair part of the
    /// workers, because its jobs hardly wait.
    fn safety_margin(&self, candidate: &Candidate<'_>) -> f64 {
        let (own, live) = (self.admission.estimates.service(candidate.kind), self.workers.live());
        let is_light = self.admission.demand.is_light(candidate.names.tenant, own, live, self.admission.window);
        if is_light { 1.0 } else { self.admission.safety_margins[candidate.class.rank()].value }
    }

    fn shared_wait(&self, candidate: &Candidate<'_>) -> f64 {
        let Candidate { kind, class, known_tenant, names, behind, .. } = *candidate;
        let (kind_queue, service) = (self.limits.kind_queue(kind), self.admission.estimates.service(kind));
        self.wait(class, kind_queue, known_tenant, names, service) + behind / self.workers.live().max(1) as f64
    }

    /// The wait that the limits of its kind add.
    fn limit_wait(&self, now: Instant, candidate: &Candidate<'_>) -> LimitWait {
        let kind_queue = self.limits.kind_queue(candidate.kind);
        if kind_queue == UNLIMITED {
            return LimitWait::NONE;
        }
        let own = self.own_load(slot(kind_queue, candidate.class), candidate.known_tenant, candidate.names);
        let before = self.queue.ahead(kind_queue, candidate.class, own + 1.0);
        let service = self.admission.estimates.measured(candidate.kind).unwrap_or(0.0);
        let is_free = self.queue.keys.is_free(candidate.names);
        let at_key = self.limits.behind(kind_queue, candidate.names.limit_key, is_free);
        self.limits.wait(kind_queue, before, at_key, service, now)
    }

    /// Whether a kind may use only a part of the queue, because other kinds need capacity too.
    fn has_kind_cap(&self, kind_queue: KindQueueId) -> bool {
        kind_queue != UNLIMITED && self.limits.has_others()
    }

    fn kind_cap(&self) -> usize {
        self.caps.jobs.div_ceil(2).max(1)
    }

    /// Load of a tenant's jobs that start before another job of it. Jobs that are not ready are skipped, unless the
    /// ordering key is in use.
    fn own_load(&self, slot: usize, tenant: Option<TenantId>, names: Names<'_>) -> f64 {
        let flow = tenant.and_then(|tenant| self.queue.tenants.flow(tenant, slot));
        let is_free = self.queue.keys.is_free(names);
        flow.map_or(0.0, |flow| if is_free { flow.ready_load } else { flow.load })
    }

    /// Expected wait in seconds, if a job of `tenant` that takes `service` seconds were queued now. Limits of its kind
    /// are not included.
    fn wait(
        &self,
        class: Criticality,
        kind_queue: KindQueueId,
        tenant: Option<TenantId>,
        names: Names<'_>,
        service: f64,
    ) -> f64 {
        let own =
            self.own_load(slot(kind_queue, class), tenant, names) * if kind_queue == UNLIMITED { 1.0 } else { service };
        self.wait_behind(class, own + service).max(self.queue.keys.work(names))
    }

    /// Seconds until a job of `class` starts, if its tenant has `own` seconds queued, including this job. Without
    /// `own`, the job is the last of all queued jobs.
    pub(super) fn wait_behind(&self, class: Criticality, own: f64) -> f64 {
        let workers = self.workers.live().max(1) as f64;
        self.ahead(class, own) / workers / self.admission.left_for(class, workers)
    }

    /// Seconds of work that starts before a job of `class`, if its tenant has `own` seconds, including this job. A kind
    /// with a limit contributes at most what its limit allows in that time.
    fn ahead(&self, class: Criticality, own: f64) -> f64 {
        let open = self.queue.ahead(UNLIMITED, class, own);
        let (mut all, mut pace) = (open, 0.0);
        for kind_queue in self.limits.kind_queues().skip(1) {
            let service = self.admission.estimates.service(self.limits.kind(kind_queue)).max(f64::MIN_POSITIVE);
            let ahead = self.queue.ahead(kind_queue, class, own / service) * service;
            all += ahead;
            pace += if ahead > 0.0 { self.limits.pace(kind_queue, service) } else { 0.0 };
        }
        let workers = self.workers.live().max(1) as f64;
        if pace < workers { all.min(open * workers / (workers - pace)) } else { all }
    }

    /// Expected seconds of the waiting callers' jobs before an arrival. If the arrival could be queued now, only
    /// callers of its own tenant are before it. Otherwise other tenants' callers are too: of each tenant, at most as
    /// much as its own tenant has.
    pub(super) fn behind(&self, arrival: &Arrival<'_, H::Job>, has_place: bool) -> f64 {
        if self.queue.waiting.is_empty() {
            return 0.0;
        }
        let (above, own) = self.queue.waiting.work_of(arrival.tenant, arrival.class);
        if has_place {
            return above + own;
        }
        // Without tenant parts, only the order of arrival matters.
        let has_parts = self.caps.tenant_share < 1.0;
        let max = if has_parts { own + self.admission.estimates.service(arrival.kind) } else { f64::INFINITY };
        self.queue.waiting.fair_work_ahead_of(arrival.class, max)
    }

    /// The candidate of an arrival.
    pub(super) fn candidate<'a>(&self, arrival: &Arrival<'a, H::Job>) -> Candidate<'a> {
        let Arrival { kind, class, bytes, start_by, finish_by, when_full, .. } = *arrival;
        let names = Names::of(arrival);
        let known_tenant = self.queue.tenants.find(names.tenant);
        Candidate { kind, class, bytes, start_by, finish_by, names, known_tenant, when_full, behind: 0.0 }
    }

    /// The candidate of a waiting caller.
    pub(super) fn waiting_candidate(&self, index: usize) -> Candidate<'_> {
        let entry = &self.entries[index];
        let Entry { kind, class, bytes, start_by, finish_by, .. } = *entry;
        let (names, when_full) = (entry.names(), WhenFull::Wait);
        let known_tenant = self.queue.tenants.find(names.tenant);
        Candidate { kind, class, bytes, start_by, finish_by, names, known_tenant, when_full, behind: 0.0 }
    }
}

/// The retry delay after an expected wait of `wait` seconds.
pub(super) fn retry_delay(wait: f64) -> Duration {
    seconds(wait).clamp(MIN_DELAY, MAX_DELAY)
}

/// A duration of `seconds`, limited to the range of durations.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Why an arrival was not accepted, and when to retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: RejectionReason,
    /// Without jitter, which the host adds. `None` means never on this server.
    pub(crate) retry_after: Option<Duration>,
}
