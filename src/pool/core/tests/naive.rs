mod callers;
mod law;
mod limits;
mod lines;
mod margin;
mod operate;
mod room;
mod rules;
mod shares;

use std::time::Duration;

use self::{law::History, margin::Demand, room::Seen, shares::Shares};
use super::{
    super::{Caps, Counts},
    Answer, Event, Offer, Step, Told,
    drive::KindsLimits,
};
use crate::model::Outcome;

/// The rules of the pool, written down as plainly as possible: vectors, and everything is counted anew each time.
pub(super) struct Naive {
    pub(super) caps: Caps,
    pub(super) homes: usize,
    pub(super) now: Duration,
    pub(super) closed: bool,
    pub(super) shut: bool,
    pub(super) paused: bool,
    /// From four fifths of the queue on, until it is down to one fifth.
    pub(super) saturated: bool,
    /// The more important first, in order of arrival within a class.
    pub(super) waiting: Vec<Job>,
    /// In order of acceptance.
    pub(super) queued: Vec<Job>,
    pub(super) running: Vec<Run>,
    pub(super) workers: Vec<Worker>,
    /// Ids of idle workers, the one that parked last at the end.
    pub(super) parked: Vec<u32>,
    /// Workers that the pool should have.
    pub(super) configured: usize,
    hired: u32,
    jobs: u32,
    stamps: u64,
    /// Kind and seconds of each measured run, or of what came to one later.
    samples: Vec<(usize, Sample)>,
    /// When a job last ended that was measured, or was let through because none did, by kind.
    heard: [Option<Duration>; super::drive::KINDS],
    seen: Seen,
    limits: KindsLimits,
    /// Kind, limit key and time of each start.
    starts: Vec<(usize, u8, Duration)>,
    history: History,
    shares: Shares,
    demand: Demand,
    pub(super) counts: Counts,
    told: Vec<Told>,
}

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) job: u32,
    pub(super) offer: Offer,
    start_by: Duration,
    finish_by: Duration,
    /// Estimated seconds, as of acceptance.
    work: f64,
    /// Whether it was queued.
    was_queued: bool,
    /// Whether it was let through to see what its kind takes by now.
    pub(super) is_probe: bool,
    /// Whether it was there in a pause.
    pardoned: bool,
    /// When nothing held it back any more but its kind and the workers, in the order of such events.
    ready: Option<u64>,
    /// When it came to the front of its ordering key, where its kind has limits per key: the same numbers.
    at_gate: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) job: Job,
    pub(super) worker: u32,
    pub(super) decided: bool,
    since: Duration,
    /// Time that it was charged with, and the seconds of its sample; 0 where it gave none.
    took: Duration,
    counted: f64,
}

#[derive(Debug, Clone, Copy)]
enum Sample {
    Run(f64),
    More(f64),
    /// The next run of the kind counts for as much as all before it.
    Doubt,
}

#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) id: u32,
    pub(super) state: u32,
    pub(super) stuck: bool,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) total_run: Duration,
}

impl Naive {
    pub(super) fn new(caps: Caps, limits: KindsLimits, homes: usize) -> Self {
        Self {
            caps,
            homes,
            now: Duration::ZERO,
            closed: false,
            shut: false,
            paused: false,
            saturated: false,
            waiting: Vec::new(),
            queued: Vec::new(),
            running: Vec::new(),
            workers: Vec::new(),
            parked: Vec::new(),
            configured: 0,
            hired: 0,
            jobs: 0,
            stamps: 0,
            samples: Vec::new(),
            heard: [None; super::drive::KINDS],
            seen: Seen::default(),
            limits,
            starts: Vec::new(),
            history: History::default(),
            shares: Shares::default(),
            demand: Demand::default(),
            counts: Counts::default(),
            told: Vec::new(),
        }
    }

    pub(super) fn apply(&mut self, event: Event) -> Step {
        let answer = match event {
            Event::Offer(offer) => self.offer(offer),
            Event::End { job, outcome, run } => Answer::Decided(self.end(job, outcome, run)),
            Event::Release { job } => self.release(job),
            Event::Withdraw { job, why } => Answer::Found(self.withdraw(job, why)),
            Event::Stick { job } => Answer::Replaced(self.stick(job)),
            Event::AddWorker => {
                self.configured += 1;
                self.hire();
                self.settle();
                Answer::Done
            }
            Event::Resize { min, max } => Answer::Dropped(self.resize(self.configured.clamp(min, max))),
            Event::Pause => Answer::Paused(self.pause()),
            Event::Resume => {
                self.resume();
                Answer::Done
            }
            Event::Shut => {
                self.shut = true;
                self.turn_away();
                self.resume();
                Answer::Done
            }
            Event::Open => {
                self.shut = false;
                Answer::Done
            }
            Event::Cancel { job } => Answer::Hit(self.cancel(job)),
            Event::Close => {
                self.closed = true;
                self.turn_away();
                self.resume();
                Answer::Done
            }
            Event::Abandon => {
                for job in std::mem::take(&mut self.queued) {
                    self.counts.cancelled += 1;
                    self.history.open().taken[job.offer.class.rank()] -= job.work;
                    self.told.push(Told::Ended { job: job.job, outcome: Outcome::Drained, retry_after: None });
                }
                self.refresh();
                Answer::Done
            }
            Event::Retire => {
                let leaving = std::mem::take(&mut self.parked);
                self.configured -= leaving.len();
                let mut states: Vec<u32> = leaving.iter().map(|id| self.worker(*id).state).collect();
                self.workers.retain(|worker| !leaving.contains(&worker.id));
                states.sort_unstable();
                Answer::Dropped(states)
            }
            Event::Pass { by } => {
                self.now += by;
                Answer::Done
            }
            Event::Tick => {
                self.settle();
                Answer::Done
            }
        };
        Step { answer, told: std::mem::take(&mut self.told) }
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.queued.iter().map(|job| job.offer.bytes).sum()
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(|job| job.offer.bytes).sum()
    }

    pub(super) fn live(&self) -> usize {
        self.able().min(self.configured)
    }

    /// Workers that are not stuck.
    fn able(&self) -> usize {
        self.workers.iter().filter(|worker| !worker.stuck).count()
    }

    pub(super) fn unreplaced(&self) -> usize {
        self.configured - self.live()
    }

    /// The ready jobs as they will start.
    pub(super) fn ready(&self) -> Vec<u32> {
        let mut ready: Vec<&Job> = self.queued.iter().filter(|job| job.ready.is_some()).collect();
        ready.sort_by_key(|job| (job.offer.class.rank(), job.ready));
        ready.iter().map(|job| job.job).collect()
    }

    pub(super) fn held_by(&self, tenant: u8) -> usize {
        self.queued.iter().filter(|job| job.offer.tenant == tenant).count()
    }

    pub(super) fn home_of(&self, worker: u32) -> usize {
        worker as usize % self.homes
    }

    fn worker(&mut self, id: u32) -> &mut Worker {
        self.workers.iter_mut().find(|worker| worker.id == id).expect("a worker of the model")
    }

    fn key_is_free(&self, key: u8) -> bool {
        let runs = self.running.iter().any(|run| run.job.offer.key == key);
        key == 0 || !(runs || self.queued.iter().any(|job| job.offer.key == key))
    }
}

fn within(bytes: usize, more: usize, cap: usize) -> bool {
    bytes.checked_add(more).is_some_and(|all| all <= cap)
}

/// An instant so many milliseconds from `now`, which may lie before it.
pub(super) fn millis(now: Duration, from_now: i64) -> Duration {
    let distance = Duration::from_millis(from_now.unsigned_abs());
    if from_now < 0 { now.saturating_sub(distance) } else { now + distance }
}
