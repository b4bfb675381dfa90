//! A replica: a server process that runs detached jobs, with its pool, handlers and schedules.

use std::{collections::BTreeMap, num::NonZeroUsize, ops::Range, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::{random_bool, random_range};
use tokio::{sync::Notify, time::sleep};
use waterwheel::{
    Job, Output, Pool, Pools,
    detached::{Detached, Schedule},
    handler::{Context, Handler, Kind},
    model::{FailureCode, HandlerError},
    store::{Clock, JobStore, KindPolicy, Overlap, RetryPolicy, Timestamp},
};

use super::{HOUR, MINUTE, REFUSED, START, link::Link, model::Model};

const WORKERS: NonZeroUsize = NonZeroUsize::new(8).expect("not 0");
const SCHEDULES: u64 = 1000;

/// The behaviour of the handler of a kind.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    /// Range of its run time, in milliseconds.
    lasts: Range<u64>,
    /// Chance that it fails.
    fails: f64,
}

pub(crate) const KINDS: [Work; 4] = [
    Work { name: "quick", lasts: 10..3_000, fails: 0.0 },
    Work { name: "slow", lasts: 1_000..100_000, fails: 0.0 },
    Work { name: "flaky", lasts: 10..3_000, fails: 0.5 },
    Work { name: "broken", lasts: 10..3_000, fails: 1.0 },
];

struct Worker {
    work: Work,
    link: Arc<Link>,
}

impl Handler for Worker {
    async fn handle(&mut self, _: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let attempt = cx.attempt().expect("a detached job").to_string();
        tokio::select! {
            () = sleep(Duration::from_millis(random_range(self.work.lasts.clone()))) => {}
            _ = cx.cancelled() => return Err(HandlerError::Stopped),
        }
        self.link.awake().await;
        if random_bool(self.work.fails) {
            let code = if random_bool(0.1) { REFUSED } else { FailureCode::Unavailable };
            return Err(HandlerError::new(code, "the handler fails"));
        }
        Ok(Output::new(attempt))
    }
}

pub(crate) struct Replica {
    pub(crate) link: Arc<Link>,
    clock: Clock,
    /// The current process.
    detached: Mutex<Detached>,
    crash: Notify,
}

impl Replica {
    /// A replica whose clock is ahead by `ahead` milliseconds.
    pub(crate) fn new(store: &Arc<dyn JobStore>, model: &Arc<Mutex<Model>>, clock: &Clock, ahead: i64) -> Self {
        let link = Arc::new(Link::new(store.clone(), model.clone()));
        let clock = clock.clone();
        let clock: Clock = Arc::new(move || Timestamp::from_millis(clock().as_millis() + ahead));
        let detached = Mutex::new(detached(&link, &clock));
        Self { link, clock, detached, crash: Notify::new() }
    }

    pub(crate) fn detached(&self) -> Detached {
        self.detached.lock().clone()
    }

    /// Runs jobs until it is stopped. After a crash, a new process starts.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.link.begin();
            tokio::select! {
                () = self.detached().run() => return,
                () = self.crash.notified() => {}
            }
            *self.detached.lock() = detached(&self.link, &self.clock);
        }
    }

    /// Ends the process without any cleanup, and starts a new one.
    pub(crate) fn crash(&self) {
        self.crash.notify_one();
    }
}

fn detached(link: &Arc<Link>, clock: &Clock) -> Detached {
    let mut pool = Pool::builder("work").workers(WORKERS);
    for work in KINDS {
        let link = link.clone();
        pool = pool.kind(Kind::new(work.name, move || Worker { work: work.clone(), link: link.clone() }));
    }
    let policies: BTreeMap<_, _> = KINDS.map(|work| (work.name.to_owned(), policy(work.name))).into();
    let detached = Detached::new(link.clone(), clock.clone(), Pools::new(vec![pool.build()]), policies);
    detached.set_schedules(TestSchedule::all().into_iter().map(Schedule::from).collect());
    detached
}

/// Jobs have three attempts, or five. Results are kept for 15 minutes, dead letters for 30.
pub(crate) fn policy(kind: &str) -> KindPolicy {
    let (max_attempts, max) = if kind == "flaky" { (5, MINUTE / 6) } else { (3, 5 * MINUTE) };
    let retry = RetryPolicy { max_attempts, initial: Duration::from_secs(2), max };
    KindPolicy { retry, retain_for: HOUR / 4, retain_dead_for: HOUR / 2, has_key_limit: false }
}

/// A schedule that ticks at `first` and then every `period`, in minutes of the day.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TestSchedule {
    number: u64,
    period: u64,
    first: u64,
}

impl TestSchedule {
    pub(crate) fn all() -> Vec<Self> {
        let schedule = |number| {
            let period = match number {
                0..10 => 1,
                10..110 => 15,
                110..900 => 60,
                _ => 24 * 60,
            };
            Self { number, period, first: number * 7 % period }
        };
        (0..SCHEDULES).map(schedule).collect()
    }

    fn name(self) -> String {
        format!("schedule-{}", self.number)
    }

    /// The ticks after the start of the simulation until `now`.
    pub(crate) fn ticks(self, now: Timestamp) -> impl Iterator<Item = (String, Timestamp)> {
        let day = Timestamp::from_millis(START.as_millis() / 86_400_000 * 86_400_000);
        let ticks = (self.first..).step_by(self.period as usize).map(move |minute| day.plus(MINUTE * minute as u32));
        ticks.skip_while(|at| *at <= START).take_while(move |at| *at <= now).map(move |at| (self.name(), at))
    }
}

impl From<TestSchedule> for Schedule {
    fn from(schedule: TestSchedule) -> Self {
        let TestSchedule { number, period, first } = schedule;
        let cron = match period {
            1 => "* * * * *".to_owned(),
            15 => format!("{first}-59/15 * * * *"),
            60 => format!("{first} * * * *"),
            _ => format!("{} {} * * *", first % 60, first / 60),
        };
        let overlap = if number % 2 == 0 { Overlap::Skip } else { Overlap::Queue };
        let kind = KINDS[[0, 0, 1, 2, 0, 0, 0, 3, 2, 0][number as usize % 10]].name.to_owned();
        Self { name: schedule.name(), cron, timezone: "UTC".to_owned(), kind, payload: "payload".to_owned(), overlap }
    }
}
