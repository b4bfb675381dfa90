use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::{
    Core, Host,
    admission::seconds,
    entry::{AGE, Entry, Place},
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
    jobs: usize,
    work: f64,
    in_lane: usize,
    at_gate: usize,
    /// Expected seconds of the jobs before it with its ordering key, running ones too.
    in_line: f64,
    /// Whether some of them came later.
    has_later: bool,
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
                Standing::Queued {
                    job,
                    position: self.position(&self.queued, AGE, index),
                    ahead: before.jobs,
                    expected: self.expected_start(now, entry, &before),
                    bound_by: self.binding(now, entry, &before),
                }
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

    fn expected_start(&self, now: Instant, entry: &Entry<H>, before: &Before) -> Duration {
        let workers = self.workers.live().max(1) as f64;
        let shared = if self.can_start() { 0.0 } else { (before.work + self.estimates.mean()) / workers };
        let service = self.estimates.measured(entry.kind).unwrap_or(0.0);
        let queued = [before.in_lane, before.at_gate].map(|jobs| jobs as f64);
        let limit = self.limits.wait_of_queued(entry.lane, entry.gate, queued, service, now);
        seconds(shared.max(before.in_line).max(limit.seconds))
    }

    /// The rule of the queues, counted: all of the classes above, those of its own tenant that came before, and of each
    /// other tenant of its class as many. Kinds that are at their limit are passed over.
    fn before(&self, now: Instant, index: usize, entry: &Entry<H>) -> Before {
        let mut before = Before::default();
        let mut others: FxHashMap<Option<usize>, Vec<&Entry<H>>> = FxHashMap::default();
        let mut own = 0;
        for (_, other) in self.entries.iter().filter(|(at, _)| *at != index) {
            let is_earlier = other.sequence < entry.sequence;
            let is_queued = matches!(other.place, Place::Ready | Place::Blocked | Place::Held);
            if entry.line.is_some() && other.line == entry.line && is_earlier {
                before.in_line += other.work;
            }
            if !is_queued {
                continue;
            }
            before.at_gate += usize::from(entry.gate.is_some() && other.gate == entry.gate && is_earlier);
            let is_same_lane = other.lane == entry.lane;
            if !is_same_lane && !self.limits.is_open(other.lane, now) {
                continue;
            }
            if other.class.rank() < entry.class.rank() {
                before.add(other, is_same_lane);
            } else if other.class == entry.class && other.tenant != entry.tenant {
                others.entry(other.tenant).or_default().push(other);
            } else if other.class == entry.class && is_earlier {
                own += 1;
                before.add(other, is_same_lane);
            }
        }
        for mut jobs in others.into_values() {
            jobs.sort_unstable_by_key(|other| other.sequence);
            for other in jobs.into_iter().take(own + 1) {
                before.has_later |= other.sequence > entry.sequence;
                before.add(other, other.lane == entry.lane);
            }
        }
        before
    }
}

impl Before {
    fn add<H: Host>(&mut self, other: &Entry<H>, is_same_lane: bool) {
        self.jobs += 1;
        self.work += other.work;
        self.in_lane += usize::from(is_same_lane && other.lane != OPEN);
    }
}
