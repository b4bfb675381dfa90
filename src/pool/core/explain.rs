use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use super::{
    Core, Host,
    admission::seconds,
    backlogs::Backlogs,
    entry::{AGE, Entry, LINE, Place},
    gate::TIE,
    limits::OPEN,
    list::{Link, List},
    workers::Duty,
};
use crate::model::Limiter;

/// Where a job stands.
pub(crate) enum Standing<J> {
    /// Its caller waits for room.
    Waiting { job: J, position: usize },
    /// It is queued.
    Queued { job: J, position: usize, ahead: usize, expected: Duration, bound_by: Binding },
    /// It holds a worker. `ended`: its outcome is decided, and its handler still stops.
    Running { job: J, worker: u32, ended: bool, stuck: bool },
}

/// What keeps a queued job from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// No worker is free, and the jobs before it came before it or are more important.
    Workers,
    /// No worker is free, and jobs of tenants that had less worker time go first, though they came later.
    Tenants,
    /// A job with its ordering key is before it.
    OrderingKey,
    /// A limit of its kind.
    Limit(Limiter),
    /// An operator holds the jobs of the pool back.
    Pause,
}

/// What is expected to start before a queued job.
#[derive(Default)]
struct Before {
    /// Jobs behind ordering keys counted as others are, and not counted.
    all: Sum,
    free: Sum,
    /// Of each ordering key, the expected seconds of its jobs that may come to be free before the job starts.
    lines: Vec<Vec<f64>>,
    in_lane: usize,
    at_gate: usize,
    /// Expected seconds of the jobs before it with its ordering key, running ones too.
    in_line: f64,
    /// Whether some of them came later.
    has_later: bool,
}

#[derive(Default)]
struct Sum {
    jobs: usize,
    work: f64,
}

impl<H: Host> Core<H> {
    /// Where the job stands that `is` tells; `None` where there is none. It looks at every job.
    pub(crate) fn explain(&self, now: Instant, is: impl Fn(&H::Job) -> bool) -> Option<Standing<H::Job>> {
        let (index, entry) = self.entries.iter().find(|(_, entry)| is(&entry.job))?;
        let job = entry.job.clone();
        Some(match entry.place {
            Place::Waiting => {
                let position = self.waiting.iter(&self.entries).position(|at| at == index);
                Standing::Waiting { job, position: position.map_or(0, |before| before + 1) }
            }
            Place::Running { slot, ended } => {
                let (worker, duty) = self.workers.look(slot);
                Standing::Running { job, worker, ended, stuck: matches!(duty, Duty::Stuck { .. }) }
            }
            Place::Ready | Place::Blocked | Place::Held => {
                let before = self.before(now, index, entry);
                let (ahead, expected) = self.expected_start(now, entry, &before);
                let position = self.position(&self.queued, AGE, index);
                Standing::Queued { job, position, ahead, expected, bound_by: self.binding(now, entry, &before) }
            }
        })
    }

    fn position(&self, list: &List, link: Link, index: usize) -> usize {
        list.iter(&self.entries, link).position(|at| at == index).map_or(0, |before| before + 1)
    }

    fn binding(&self, now: Instant, entry: &Entry<H>, before: &Before) -> Binding {
        if self.paused.is_some() {
            return Binding::Pause;
        }
        match (entry.place, entry.gate) {
            (Place::Blocked, _) => Binding::OrderingKey,
            (Place::Held, Some(gate)) => Binding::Limit(self.limits.held_by(gate)),
            _ => match self.limits.closed_by(entry.lane, now) {
                Some(limiter) => Binding::Limit(limiter),
                None if before.has_later => Binding::Tenants,
                None => Binding::Workers,
            },
        }
    }

    /// Jobs that are expected to start before a queued one, and the time until it does.
    fn expected_start(&self, now: Instant, entry: &Entry<H>, before: &Before) -> (usize, Duration) {
        let workers = self.workers.live().max(1) as f64;
        let all = before.all.work / workers;
        let mut lines = Backlogs::default();
        before.lines.iter().for_each(|line| lines.change(0.0, line.iter().sum()));
        let by_lines = lines.time_beside(before.free.work, workers, 1.0);
        let shared = all.min(by_lines).max(before.in_line);
        let ahead = if by_lines < all { before.free.jobs + before.started_by(shared) } else { before.all.jobs };
        let service = self.estimates.measured(entry.kind).unwrap_or(0.0);
        let queued = [before.in_lane, before.at_gate].map(|jobs| jobs as f64);
        let limit = self.limits.wait_of_queued(entry.lane, entry.gate, queued, service, now);
        let shared = if self.can_start() { before.in_line } else { shared };
        (ahead, seconds(shared.max(limit.seconds)))
    }

    /// The rule at the door, counted: all of the classes above, those of its own tenant that come before, and of each
    /// other tenant of its class as much work. Kinds that are at their limit are passed over.
    fn before(&self, now: Instant, index: usize, entry: &Entry<H>) -> Before {
        let mut before = Before::default();
        let mut others: FxHashMap<Option<usize>, Vec<&Entry<H>>> = FxHashMap::default();
        let mut lines: FxHashMap<Option<usize>, Vec<&Entry<H>>> = FxHashMap::default();
        let passing = self.passing(index, entry);
        let mut own = entry.work;
        for (at, other) in self.entries.iter().filter(|(at, _)| *at != index) {
            let is_earlier = other.sequence < entry.sequence;
            let is_queued = matches!(other.place, Place::Ready | Place::Blocked | Place::Held);
            let is_blocked = other.place == Place::Blocked;
            if entry.line.is_some() && other.line == entry.line && is_earlier {
                before.in_line += other.work;
            }
            let is_own = other.class == entry.class && other.tenant == entry.tenant;
            // Who comes to be free joins the back of its queue: of one tenant, it passes nobody who is free.
            let is_before = match (entry.place, other.place) {
                (Place::Ready, Place::Ready) if is_own && other.lane == entry.lane => passing.contains(&at),
                (Place::Blocked, Place::Ready | Place::Held) => true,
                (Place::Ready | Place::Held, Place::Blocked) => false,
                _ => is_earlier,
            };
            before.at_gate += usize::from(is_queued && entry.gate.is_some() && other.gate == entry.gate && is_before);
            let is_same_lane = other.lane == entry.lane;
            if !is_queued || !is_same_lane && !self.limits.is_open(other.lane, now) {
                continue;
            }
            if other.class.rank() < entry.class.rank() {
                before.add(other, is_same_lane);
            } else if is_own && is_before {
                own += other.work;
                before.add(other, is_same_lane);
            } else if other.class == entry.class && !is_own {
                others.entry(other.tenant).or_default().push(other);
            }
            let is_past_own_line = entry.line.is_some() && other.line == entry.line && !is_earlier;
            if is_blocked && other.class.rank() <= entry.class.rank() && (!is_own || is_before) && !is_past_own_line {
                lines.entry(other.line).or_default().push(other);
            }
        }
        for mut jobs in others.into_values() {
            jobs.sort_unstable_by_key(|other| other.sequence);
            let in_lane = |other: &&&Entry<H>| other.lane == entry.lane && other.lane != OPEN;
            let passing = before.all.add_up_to(own, jobs.iter().copied());
            before.in_lane += jobs.iter().take(passing).filter(in_lane).count();
            let free = || jobs.iter().copied().filter(|other| other.place != Place::Blocked);
            let passing = before.free.add_up_to(own, free());
            before.has_later |= free().take(passing).any(|other| other.sequence > entry.sequence);
        }
        before.lines = lines.into_values().map(in_order).collect();
        before
    }

    /// The ready jobs of its tenant and lane that go before a ready job. Some of those that came before it were blocked,
    /// and go after it.
    fn passing(&self, index: usize, entry: &Entry<H>) -> FxHashSet<usize> {
        let Some(tenant) = entry.tenant.filter(|_| entry.place == Place::Ready) else { return FxHashSet::default() };
        let Some(share) = self.queues.tenants.share(tenant, entry.slot()) else { return FxHashSet::default() };
        share.ready.iter(&self.entries, LINE).take_while(|at| *at != index).collect()
    }
}

/// Expected seconds of the jobs of a line, in the order in which they will start.
fn in_order<H: Host>(mut jobs: Vec<&Entry<H>>) -> Vec<f64> {
    jobs.sort_unstable_by_key(|job| job.sequence);
    jobs.iter().map(|job| job.work).collect()
}

impl Before {
    fn add<H: Host>(&mut self, other: &Entry<H>, is_same_lane: bool) {
        self.all.add(other);
        if other.place != Place::Blocked {
            self.free.add(other);
        }
        self.in_lane += usize::from(is_same_lane && other.lane != OPEN);
    }

    /// Blocked jobs that will have been through by `time`, each line at one worker.
    fn started_by(&self, time: f64) -> usize {
        let of_line = |line: &Vec<f64>| {
            let ends = line.iter().scan(0.0, |end, work| {
                *end += work;
                Some(*end)
            });
            ends.take_while(|end| *end <= time + TIE).count()
        };
        self.lines.iter().map(of_line).sum()
    }
}

impl Sum {
    fn add<H: Host>(&mut self, entry: &Entry<H>) {
        self.jobs += 1;
        self.work += entry.work;
    }

    /// Adds the first jobs of a tenant, up to `most` seconds: what a fair queue lets pass. Returns how many these are.
    fn add_up_to<'a, H>(&mut self, most: f64, jobs: impl Iterator<Item = &'a Entry<H>>) -> usize
    where
        H: Host + 'a,
    {
        let (mut passing, mut seconds) = (0, 0.0);
        for job in jobs {
            if seconds + TIE >= most {
                break;
            }
            passing += 1;
            seconds += job.work;
        }
        self.jobs += passing;
        // The last of them may reach beyond it.
        self.work += seconds.min(most);
        passing
    }
}
