use std::time::Duration;

use super::{
    super::{
        super::{Refusal, RefusalReason},
        Offer,
    },
    Naive, Sample,
};
use crate::model::WhenFull;

/// Everything that ever happened, by the window in which it did.
pub(super) struct History {
    /// Windows are turned when somebody arrives or a worker comes back; the last one is open.
    windows: Vec<Window>,
    end: Option<Duration>,
    /// Windows that are over, but for those of pauses.
    active: usize,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Window {
    /// Seconds of the jobs that were accepted, by class, and how much longer those took that ended.
    pub(super) taken: [f64; 4],
    /// Jobs that were queued and count in the margin of their class, and those of them that missed, by class.
    pub(super) queued: [f64; 4],
    pub(super) missed: [f64; 4],
    /// Whether nothing was queued when it was closed.
    rests: bool,
}

const WINDOW: Duration = Duration::from_millis(100);

impl Default for History {
    fn default() -> Self {
        Self { windows: vec![Window::default()], end: None, active: 0 }
    }
}

impl History {
    pub(super) fn turn(&mut self, now: Duration, paused: bool, rests: bool) {
        let mut end = *self.end.get_or_insert(now + WINDOW);
        while end <= now {
            end += WINDOW;
            self.open().rests = rests;
            self.windows.push(Window::default());
            self.active += usize::from(!paused);
        }
        self.end = Some(end);
    }

    pub(super) fn open(&mut self) -> &mut Window {
        self.windows.last_mut().expect("there is always one")
    }

    /// Number of the open window, among those in which jobs may start.
    pub(super) fn window(&self) -> usize {
        self.active
    }

    fn closed(&self) -> &[Window] {
        &self.windows[..self.windows.len() - 1]
    }

    /// Worker time of a class, in seconds per second.
    fn taken(&self, rank: usize) -> f64 {
        rate(self.closed().iter().map(|window| window.taken[rank]))
    }

    pub(super) fn margin(&self, rank: usize) -> f64 {
        margin(1.0, self.closed().iter().map(|window| (window.queued[rank], window.missed[rank], window.rests)))
    }
}

/// What a margin becomes that sees so many jobs queued and missed in each window, and whether nothing else was there.
pub(super) fn margin(start: f64, windows: impl Iterator<Item = (f64, f64, bool)>) -> f64 {
    let (mut margin, mut queued, mut missed) = (start, 0.0, 0.0);
    for (more_queued, more_missed, rests) in windows {
        queued += more_queued;
        missed += more_missed;
        margin = if rests && more_queued == 0.0 && more_missed == 0.0 {
            f64::midpoint(margin, 1.0)
        } else if missed > f64::max(0.01 * queued, 1.0) {
            f64::max(margin * 0.95, 0.1)
        } else {
            f64::min(margin + 0.01, 1.0)
        };
        (queued, missed) = (queued * 0.9, missed * 0.9);
    }
    margin
}

/// Amounts of windows as a rate: plain mean of the first ten; from then on each counts a tenth.
pub(super) fn rate(amounts: impl Iterator<Item = f64>) -> f64 {
    let amounts = amounts.map(|amount| amount / WINDOW.as_secs_f64()).enumerate();
    amounts.fold(0.0, |mean, (before, next)| mean + f64::max(0.1, 1.0 / (before + 1) as f64) * (next - mean))
}

impl Naive {
    /// Mean run of a kind; `None` of all.
    pub(super) fn service(&self, kind: Option<usize>) -> f64 {
        // Of a kind that was never measured, what the others take is the best guess.
        let kind = kind.filter(|kind| self.is_measured(Some(*kind)));
        let of_kind = self.samples.iter().filter(|(of, _)| kind.is_none_or(|kind| kind == *of));
        let (mut mean, mut runs, mut doubt) = (0.05, 0, false);
        for (_, sample) in of_kind {
            runs += i32::from(matches!(sample, Sample::Run(_)));
            let (off, least) = match sample {
                Sample::Run(seconds) => (seconds - mean, if std::mem::take(&mut doubt) { 0.5 } else { 0.05 }),
                Sample::More(seconds) => (*seconds, 0.05),
                Sample::Doubt => {
                    doubt = kind.is_some();
                    continue;
                }
            };
            mean += f64::max(least, 1.0 / f64::from(runs)) * off;
        }
        mean
    }

    pub(super) fn is_measured(&self, kind: Option<usize>) -> bool {
        self.samples.iter().any(|(of, _)| kind.is_none_or(|kind| kind == *of))
    }

    /// A kind was measured for the first time: what was a guess is known.
    pub(super) fn revalue(&mut self, kind: usize) {
        let work = self.service(Some(kind));
        for job in self.queued.iter_mut().filter(|job| job.offer.kind == kind) {
            self.history.open().taken[job.offer.class.rank()] += work - job.work;
            job.work = work;
        }
        self.waiting.iter_mut().filter(|job| job.offer.kind == kind).for_each(|job| job.work = work);
    }

    pub(in super::super) fn expected(&self, rank: usize) -> Duration {
        duration(self.behind_all(rank) + self.callers_before(rank))
    }

    /// Seconds until the last of the queued jobs of a class has started.
    pub(super) fn behind_all(&self, rank: usize) -> f64 {
        self.behind(rank, f64::INFINITY)
    }

    /// Seconds that the jobs of callers take that wait for room, of a class and of those above it.
    pub(super) fn callers_before(&self, rank: usize) -> f64 {
        let before = self.waiting.iter().filter(|caller| caller.offer.class.rank() <= rank);
        before.map(|caller| caller.work).sum::<f64>() / self.live().max(1) as f64
    }

    /// What the jobs of a lane count that pass before one of a tenant that has `own` there, its own included: all of the
    /// classes above, and of each tenant as much as its own. In the lane of a kind with limits, each counts one.
    pub(super) fn ahead(&self, lane: usize, rank: usize, own: f64) -> f64 {
        let above: f64 = (0..rank).flat_map(|above| (0..4).map(move |of| self.backlog(lane, of, above))).sum();
        above + fair([0, 1, 2, 3].map(|of| self.backlog(lane, of, rank)), own)
    }

    pub(super) fn backlog(&self, lane: usize, of: u8, rank: usize) -> f64 {
        let jobs = self.queued.iter().filter(|job| job.offer.tenant == of && job.offer.class.rank() == rank);
        let jobs = jobs.filter(|job| self.lane(job.offer.kind) == lane);
        jobs.map(|job| if lane == 0 { job.work } else { 1.0 }).sum()
    }

    /// Seconds that a job which takes `service` would wait for the others.
    fn shared(&self, rank: usize, lane: usize, tenant: u8, key: u8, service: f64) -> f64 {
        let unit = if lane == 0 { 1.0 } else { service };
        let shared = self.behind(rank, self.before_own(lane, tenant, rank, key) * unit + service);
        let with_key = |job: &&super::Job| key != 0 && job.offer.key == key;
        let running = self.running.iter().map(|run| &run.job);
        let keyed: f64 = self.queued.iter().chain(running).filter(with_key).map(|job| job.work).sum();
        shared.max(keyed)
    }

    /// Seconds until a job starts whose tenant has `own` seconds to do in a class.
    fn behind(&self, rank: usize, own: f64) -> f64 {
        let workers = self.live().max(1) as f64;
        let taken = (0..rank).map(|above| self.history.taken(above).max(0.0)).sum::<f64>() / workers;
        let left = (1.0 - taken).max(0.05);
        let shared = self.through(rank, own, self.ahead(0, rank, own));
        shared.min(self.beside_lines(rank, own, workers, left)) / left
    }

    /// Seconds that the workers need for `open` seconds of work, and for the limited kinds beside it.
    fn through(&self, rank: usize, own: f64, open: f64) -> f64 {
        let workers = self.live().max(1) as f64;
        let limited = self.limited(rank, own);
        // Kinds with limits do no more than these let them until then: all of it at first, less with each of seven looks.
        let until = |wait: f64| limited.iter().map(|(work, pace)| work.min(pace * wait)).sum::<f64>();
        let all: f64 = limited.iter().map(|(work, _)| work).sum();
        (0..7).fold((open + all) / workers, |wait, _| (open + until(wait)) / workers)
    }

    pub(super) fn wait_of(&self, offer: &Offer, behind: f64) -> f64 {
        (self.shared_of(offer) + behind).max(self.limit_wait(offer).0)
    }

    fn shared_of(&self, offer: &Offer) -> f64 {
        let service = self.service(Some(offer.kind));
        self.shared(offer.class.rank(), self.lane(offer.kind), offer.tenant, offer.key, service)
    }

    /// What the rule says against queueing a job, if anything; else whether it is a probe.
    pub(super) fn judge(
        &self,
        offer: &Offer,
        start_by: Duration,
        finish_by: Duration,
        behind: f64,
    ) -> Result<bool, Refusal> {
        let (for_limit, limit) = self.limit_wait(offer);
        let of_kind = |job: &&super::Job| job.offer.kind == offer.kind;
        let others = (0..self.limits.len()).any(|kind| self.lane(kind) == 0);
        let half = self.lane(offer.kind) > 0 && others;
        let most = self.caps.jobs.div_ceil(2).max(1);
        let half_is_full = half && self.queued.iter().filter(of_kind).count() >= most;
        let known = self.is_measured(None);
        let shared = if known { self.shared_of(offer) + behind } else { 0.0 };
        let service = if self.is_measured(Some(offer.kind)) { self.service(Some(offer.kind)) } else { 0.0 };
        let wait = shared.max(for_limit);
        let limit = limit.filter(|_| for_limit + 1e-9 >= shared);
        let budget = finish_by.saturating_sub(self.now);
        let over = |limit| RefusalReason::LimitExceeded { limit, expected: duration(wait), budget };
        if half_is_full {
            let reason = over(limit.unwrap_or_else(|| self.first_limit(offer.kind)));
            return Err(Refusal { reason, retry_after: come_back_within(limit.is_some(), wait + service) });
        }
        if !known && limit.is_none() {
            return Ok(false);
        }
        let share = 0.5 * self.margin_of(offer);
        let allowed = f64::min(share * budget.as_secs_f64(), start_by.saturating_sub(self.now).as_secs_f64());
        let is_probe = wait + service > budget.as_secs_f64();
        if wait > allowed || (is_probe && !self.may_probe(offer.kind)) {
            let needed = f64::max(wait / share, wait + service);
            let (expected, patience) = (duration(wait), start_by.saturating_sub(self.now));
            let by_deadline = wait > share * budget.as_secs_f64() || wait + service > budget.as_secs_f64();
            let late = if by_deadline {
                RefusalReason::DeadlineUnreachable { expected, needed: duration(needed), budget }
            } else {
                RefusalReason::WaitTooLong { expected, patience }
            };
            let reason = limit.map_or(late, over);
            return Err(Refusal { reason, retry_after: come_back_within(limit.is_some(), wait - allowed + service) });
        }
        let each = self.service(None).max(self.interval(offer.kind, limit));
        let longest = f64::max(20.0 * each, 0.1);
        let bound = offer.when_full != WhenFull::Wait || limit.is_some();
        let reason = limit.map_or(RefusalReason::QueueTooLong { expected: duration(wait) }, over);
        if wait > longest + 1e-9 && bound {
            return Err(Refusal { reason, retry_after: come_back_within(limit.is_some(), wait - longest + service) });
        }
        Ok(is_probe)
    }

    /// Whether a job may be queued that would end too late by an estimate that may be out of date.
    fn may_probe(&self, kind: usize) -> bool {
        let silence = f64::max(10.0, 10.0 * self.service(Some(kind)));
        self.heard[kind].is_none_or(|heard| self.now - heard >= duration(silence))
    }

    /// Whether a queued job would most likely not end in time.
    pub(super) fn is_late(&self, job: &super::Job) -> bool {
        job.start_by <= self.now || self.is_hopeless(job)
    }

    pub(super) fn is_hopeless(&self, job: &super::Job) -> bool {
        if job.is_probe {
            return false;
        }
        let kind = Some(job.offer.kind);
        let half = if self.is_measured(kind) { self.service(kind) / 2.0 } else { 0.0 };
        job.finish_by.saturating_sub(self.now) <= duration(half)
    }
}

/// What a fair queue lets pass before the job of a tenant that has `own` there: of each backlog as much.
pub(super) fn fair(backlogs: [f64; 4], own: f64) -> f64 {
    up_to(&backlogs, own)
}

/// The sum of backlogs, of each so much at most. Those of the same power of two are taken together.
pub(super) fn up_to(backlogs: &[f64], most: f64) -> f64 {
    by_power(backlogs).map(|(count, sum)| f64::min(sum, count * most)).sum()
}

/// Number and sum of the backlogs of each power of two.
pub(super) fn by_power(backlogs: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    let power = |load: f64| (load / 1e-6).log2().ceil().max(0.0) as usize;
    let some = move || backlogs.iter().copied().filter(|load| *load > 0.0);
    let first = move |at: usize, load: f64| !some().take(at).any(|other| power(other) == power(load));
    some().enumerate().filter(move |(at, load)| first(*at, *load)).map(move |(_, load)| {
        let members = some().filter(|other| power(*other) == power(load));
        members.fold((0.0, 0.0), |(count, sum), load| (count + 1.0, sum + load))
    })
}

pub(super) fn come_back(seconds: f64) -> Option<Duration> {
    Some(duration(seconds).clamp(Duration::from_millis(10), Duration::from_secs(5)))
}

/// Where a limit says when, it is no guess.
fn come_back_within(limit: bool, seconds: f64) -> Option<Duration> {
    Some(duration(seconds).clamp(Duration::from_millis(10), Duration::from_secs(if limit { 60 } else { 5 })))
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
