use std::time::Duration;

use tokio::time::Instant;

use super::{
    Arrival, Core, Host,
    entry::{Names, slot},
    gate::{Ahead, LimitWait, TIE},
    law::{LEAST_LEFT, WAIT_SHARE, longest_wait},
    limits::OPEN,
    tenants::Share,
};
use crate::model::{Criticality, Limiter, RejectionReason, TenantPart, WhenFull};

const SHORTEST_PUSHBACK: Duration = Duration::from_millis(10);
const LONGEST_PUSHBACK: Duration = Duration::from_secs(5);
/// The same where a limit says when: that is no guess.
const LONGEST_TURN: Duration = Duration::from_secs(60);

/// How often the share of limited kinds is looked at.
const LOOKS: usize = 8;

/// Why an arrival was not accepted, and when to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    /// Before jitter, which the host adds. `None`: not here.
    pub(crate) retry_after: Option<Duration>,
}

/// What the rule asks of a job that wants to be queued.
#[derive(Debug, Clone, Copy)]
pub(super) struct Applicant<'a> {
    pub(super) kind: usize,
    pub(super) class: Criticality,
    pub(super) bytes: usize,
    pub(super) start_by: Instant,
    pub(super) finish_by: Instant,
    pub(super) tenant: &'a str,
    /// The same, where it has jobs in the pool, or owes for some.
    pub(super) known_tenant: Option<usize>,
    pub(super) ordering_key: &'a str,
    pub(super) limit_key: &'a str,
    pub(super) when_full: WhenFull,
    /// Expected seconds of the jobs of callers that wait for room before it.
    pub(super) behind: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    QueueFull,
    /// There are places, but who is queued waits for too long.
    QueueTooLong {
        expected: Duration,
    },
    DeadlineUnreachable {
        expected: Duration,
        needed: Duration,
        budget: Duration,
    },
    /// Longer than the caller would.
    WaitTooLong {
        expected: Duration,
        patience: Duration,
    },
    /// The tenant has its part of the queue.
    TenantShare(TenantPart),
    LimitExceeded {
        limit: Limiter,
        expected: Duration,
        budget: Duration,
    },
    /// Its caller waited for room, and its time is over.
    NoRoomInTime,
    Draining,
    /// The operator drains this pool alone.
    PoolDraining,
}

impl RefusalReason {
    pub(super) fn index(self) -> usize {
        let reason = match self {
            Self::QueueFull => RejectionReason::QueueFull,
            Self::QueueTooLong { expected } => RejectionReason::QueueTooLong { expected },
            Self::WaitTooLong { expected, patience } => RejectionReason::WaitTooLong { expected, patience },
            Self::DeadlineUnreachable { expected, needed, budget } => {
                RejectionReason::DeadlineUnreachable { expected, needed, budget }
            }
            Self::TenantShare(part) => RejectionReason::TenantShare { tenant: String::new(), part },
            Self::LimitExceeded { limit, expected, budget } => {
                RejectionReason::LimitExceeded { limit, expected, budget }
            }
            Self::NoRoomInTime => RejectionReason::NoRoomInTime,
            Self::Draining => RejectionReason::Draining,
            Self::PoolDraining => RejectionReason::PoolDraining,
        };
        reason.index()
    }
}

impl<H: Host> Core<H> {
    /// What a tenant is told that has its part of the queue.
    pub(super) fn over_its_part(&self, now: Instant, applicant: &Applicant<'_>) -> Option<Refusal> {
        let Applicant { class, known_tenant, bytes, .. } = *applicant;
        let part = self.over_part(class, known_tenant, bytes)?;
        let retry_after = Some(pushback(self.wait_of(now, applicant)));
        Some(Refusal { reason: RefusalReason::TenantShare(part), retry_after })
    }

    /// The rule at the door for a job that cannot start at once, but for room. Returns whether it is a
    /// probe: it would end too late by an estimate that may be out of date.
    ///
    /// # Errors
    /// What stands against queueing it.
    pub(super) fn judge(&self, now: Instant, arrival: &Applicant<'_>) -> Result<bool, Refusal> {
        let lane = self.limits.lane(arrival.kind);
        let limit = self.limit_wait(now, arrival);
        // A guess from nothing refuses nobody. What a rate says is no guess.
        let is_measured = self.estimates.is_measured();
        if !is_measured && limit.by.is_none() && !self.has_lane_cap(lane) {
            return Ok(false);
        }
        let shared = if is_measured { self.shared_wait(arrival) } else { 0.0 };
        let wait = shared.max(limit.seconds);
        // A tie goes to the limit, whichever way the sums are rounded.
        let by = limit.by.filter(|_| limit.seconds + TIE >= shared);
        // What its own kind takes is known once it was measured.
        let service = self.estimates.measured(arrival.kind).unwrap_or(0.0);
        let budget = arrival.finish_by.saturating_duration_since(now);
        let left = budget.as_secs_f64();
        let over = |limit| RefusalReason::LimitExceeded { limit, expected: seconds(wait), budget };
        if self.has_lane_cap(lane) && self.queues.jobs_of(lane) >= self.lane_cap() {
            let reason = over(by.unwrap_or_else(|| self.limits.any(lane)));
            return Err(Refusal { reason, retry_after: Some(pushback_of(by, wait + service)) });
        }
        let share = WAIT_SHARE * self.margin(arrival);
        let patience = arrival.start_by.saturating_duration_since(now).as_secs_f64();
        let allowed = (share * left).min(patience);
        let is_probe = wait + service > left;
        if wait > allowed || (is_probe && !self.estimates.may_probe(arrival.kind, now)) {
            // A bound of the caller on the wait alone is not met by a longer deadline.
            let by_patience = wait <= share * left && !is_probe;
            let late = if by_patience {
                let patience = arrival.start_by.saturating_duration_since(now);
                RefusalReason::WaitTooLong { expected: seconds(wait), patience }
            } else {
                let needed = seconds((wait / share).max(wait + service));
                RefusalReason::DeadlineUnreachable { expected: seconds(wait), needed, budget }
            };
            let reason = by.map_or(late, over);
            return Err(Refusal { reason, retry_after: Some(pushback_of(by, wait - allowed + service)) });
        }
        let each = self.estimates.mean().max(self.limits.interval(lane, by));
        let longest = longest_wait(each);
        // Callers that wait for room may wait longer, but not for a limit: they would hold up those of other kinds.
        if wait > longest + TIE && (arrival.when_full != WhenFull::Wait || by.is_some()) {
            let retry_after = Some(pushback_of(by, wait - longest + service));
            let long = RefusalReason::QueueTooLong { expected: seconds(wait) };
            return Err(Refusal { reason: by.map_or(long, over), retry_after });
        }
        Ok(is_probe)
    }

    /// The margin of the class. A tenant that asks for less than its share of the workers is exempt: its jobs hardly wait.
    fn margin(&self, arrival: &Applicant<'_>) -> f64 {
        let (own, live) = (self.estimates.service(arrival.kind), self.workers.live());
        let is_light = self.demand.is_light(arrival.tenant, own, live, self.window);
        if is_light { 1.0 } else { self.margins[arrival.class.rank()].value }
    }

    pub(super) fn full(&self, now: Instant, arrival: &Applicant<'_>) -> Refusal {
        Refusal { reason: RefusalReason::QueueFull, retry_after: Some(pushback(self.wait_of(now, arrival))) }
    }

    fn wait_of(&self, now: Instant, arrival: &Applicant<'_>) -> f64 {
        self.shared_wait(arrival).max(self.limit_wait(now, arrival).seconds)
    }

    fn shared_wait(&self, arrival: &Applicant<'_>) -> f64 {
        let Applicant { kind, class, known_tenant, ordering_key, behind, .. } = *arrival;
        let (lane, service) = (self.limits.lane(kind), self.estimates.service(kind));
        self.wait(class, lane, known_tenant, ordering_key, service) + behind / self.workers.live().max(1) as f64
    }

    /// What the limits of its kind add to the wait of a job.
    fn limit_wait(&self, now: Instant, arrival: &Applicant<'_>) -> LimitWait {
        let lane = self.limits.lane(arrival.kind);
        if lane == OPEN {
            return LimitWait::NONE;
        }
        let is_blocked = !self.lines.is_free(arrival.ordering_key);
        let own = self.own(slot(lane, arrival.class), arrival.known_tenant);
        let own = own.map_or(0.0, |share| share.load_before(is_blocked));
        let service = self.estimates.measured(arrival.kind).unwrap_or(0.0);
        let wait = |in_lane| self.limits.wait(lane, arrival.limit_key, Ahead { in_lane, is_blocked }, service, now);
        let before = self.queues.ahead(lane, arrival.class, own + 1.0);
        let all = wait(before);
        let Some(lines) = self.lines.backlogs(arrival.class).filter(|_| service > 0.0) else { return all };
        // Of what stands behind ordering keys, no more than each line can do until then.
        let free = self.queues.free_ahead(lane, arrival.class, own + 1.0);
        (1..LOOKS).fold(all, |last, _| wait(before.min(free + lines.up_to(last.seconds) / service)))
    }

    /// Whether jobs of a lane may take but a part of the queue: where others are to have room, too.
    fn has_lane_cap(&self, lane: usize) -> bool {
        lane != OPEN && self.limits.has_others()
    }

    fn lane_cap(&self) -> usize {
        self.caps.jobs.div_ceil(2).max(1)
    }

    fn own(&self, slot: usize, tenant: Option<usize>) -> Option<&Share> {
        tenant.and_then(|tenant| self.queues.tenants.share(tenant, slot)).filter(|share| share.jobs > 0)
    }

    /// Expected wait, in seconds, of a job of `tenant` that takes `service` seconds, if it were queued now, without the
    /// limits of its kind.
    fn wait(&self, class: Criticality, lane: usize, tenant: Option<usize>, ordering_key: &str, service: f64) -> f64 {
        let share = self.own(slot(lane, class), tenant);
        let line = self.lines.work(ordering_key);
        let own_load = share.map_or(0.0, |share| share.load_before(line.is_some()));
        let own_work = if lane == OPEN { own_load } else { own_load * service };
        self.wait_behind(class, own_work + service).max(line.unwrap_or(0.0))
    }

    /// Seconds until a job of `class` starts whose tenant has `own` seconds to do, its own included. Without a bound, it
    /// is the last of all that is queued.
    pub(super) fn wait_behind(&self, class: Criticality, own: f64) -> f64 {
        let workers = self.workers.live().max(1) as f64;
        let above = self.queues.above(class);
        let taken = above.iter().map(|class| class.taken.per_second.max(0.0)).sum::<f64>() / workers;
        let left = (1.0 - taken).max(LEAST_LEFT);
        let all = self.with_limited(own, |lane, own| self.queues.ahead(lane, class, own), |work| work / workers);
        let Some(lines) = self.lines.backlogs(class) else { return all / left };
        // The same, but for what stands behind ordering keys: each line takes one worker at most until then.
        let free = |lane, own| self.queues.free_ahead(lane, class, own);
        let by_lines = self.with_limited(own, free, |work| lines.time_beside(work, workers, 1.0 / left));
        all.min(by_lines) / left
    }

    /// Seconds until the workers are through with what is `ahead` in the open lane, and with what kinds with limits may do
    /// meanwhile; `through` says how long they take for so many seconds. Each look is an upper bound, and leaves less to do
    /// meanwhile in the next one.
    fn with_limited(&self, own: f64, ahead: impl Fn(usize, f64) -> f64, through: impl Fn(f64) -> f64) -> f64 {
        let lanes = || {
            (1..=self.limits.lanes()).map(|lane| {
                let service = self.estimates.service(self.limits.kind(lane));
                let ahead = if service > 0.0 { ahead(lane, own / service) } else { 0.0 };
                (ahead * service, self.limits.pace(lane, service))
            })
        };
        let open = ahead(OPEN, own);
        let mut wait = f64::INFINITY;
        for _ in 0..LOOKS.min(1 + (LOOKS - 1) * self.limits.lanes()) {
            let limited: f64 = lanes().map(|(work, pace)| if work > 0.0 { work.min(pace * wait) } else { 0.0 }).sum();
            wait = through(open + limited);
        }
        wait
    }

    /// Expected seconds of the jobs of callers before an arrival that would wait for room, too. Where it has a place now,
    /// its own tenant's are before it: it has more of its time left than they have, and must not pass them for that. Where
    /// it has none, the others' are, too: of each as much as of its own.
    pub(super) fn behind(&self, arrival: &Arrival<'_, H::Job>, has_place: bool) -> f64 {
        if self.waiting.is_empty() {
            return 0.0;
        }
        let (above, own) = self.waiting.work_of(arrival.tenant, arrival.class);
        if has_place {
            return above + own;
        }
        // Without parts, nothing but their arrival tells tenants apart.
        let has_parts = self.caps.tenant_share < 1.0;
        let most = if has_parts { own + self.estimates.service(arrival.kind) } else { f64::INFINITY };
        self.waiting.fair_work_ahead_of(arrival.class, most)
    }

    /// An arrival; nobody waits before it.
    pub(super) fn applicant<'a>(&self, arrival: &Arrival<'a, H::Job>) -> Applicant<'a> {
        Applicant {
            kind: arrival.kind,
            class: arrival.class,
            bytes: arrival.bytes,
            start_by: arrival.start_by,
            finish_by: arrival.finish_by,
            tenant: arrival.tenant,
            known_tenant: self.queues.tenants.find(arrival.tenant),
            ordering_key: arrival.ordering_key,
            limit_key: arrival.limit_key,
            when_full: arrival.when_full,
            behind: 0.0,
        }
    }

    /// A caller that waited for room.
    pub(super) fn waiting_applicant(&self, index: usize) -> Applicant<'_> {
        let entry = &self.entries[index];
        let Names { tenant, ordering_key, limit_key } = entry.names();
        Applicant {
            kind: entry.kind,
            class: entry.class,
            bytes: entry.bytes,
            start_by: entry.start_by,
            finish_by: entry.finish_by,
            tenant,
            known_tenant: self.queues.tenants.find(tenant),
            ordering_key,
            limit_key,
            when_full: WhenFull::Wait,
            behind: 0.0,
        }
    }
}

/// When to come back after so many seconds.
pub(super) fn pushback(wait: f64) -> Duration {
    seconds(wait).clamp(SHORTEST_PUSHBACK, LONGEST_PUSHBACK)
}

/// The same, where a limit may be the reason.
fn pushback_of(by: Option<Limiter>, wait: f64) -> Duration {
    let longest = if by.is_some() { LONGEST_TURN } else { LONGEST_PUSHBACK };
    seconds(wait).clamp(SHORTEST_PUSHBACK, longest)
}

/// A duration of so many seconds, which may be less than none or more than any.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
