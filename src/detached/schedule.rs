//! Recurring jobs: each tick of a calendar runs once over all servers that share the store.

mod calendar;

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::SystemTime,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::Deserialize;
use tracing::warn;

use super::Inner;
use crate::{
    model::{Criticality, Job},
    store::{Fired, NewJob, Overlap, Tick, Timestamp},
};

pub use calendar::Calendar;

/// Prefix of the ids of scheduled jobs. Callers must not create jobs with such ids.
pub const SCHEDULE_PREFIX: &str = "schedule/";

/// `[schedule.NAME]`: creates a job at each tick of a calendar.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Schedule {
    /// Name of the schedule. The store keeps its last tick under this name.
    #[serde(skip)]
    pub name: String,
    /// Minutes, hours, days, months and weekdays, in the syntax of [`Calendar::parse`].
    pub cron: String,
    /// Name of a time zone, such as `Europe/Berlin`.
    pub timezone: String,
    /// Kind of the jobs.
    pub kind: String,
    /// Their payload.
    pub payload: String,
    /// What a tick does if the run of an earlier tick has not ended.
    pub overlap: Overlap,
}

/// The schedules of this process.
#[derive(Default)]
pub(super) struct Schedules {
    all: Vec<Scheduled>,
    /// Whether the store must still forget all schedules but these.
    must_forget_others: AtomicBool,
}

impl Schedules {
    /// Ticks before `now` were missed.
    pub(super) fn new(schedules: Vec<Schedule>, now: Timestamp) -> Self {
        let all = schedules.into_iter().filter_map(|schedule| Scheduled::new(schedule, now)).collect();
        Self { all, must_forget_others: AtomicBool::new(true) }
    }
}

struct Scheduled {
    schedule: Schedule,
    calendar: Calendar,
    /// When it was set. Ticks until then were missed.
    since: Timestamp,
    /// From the last check to the next tick; empty before the first check.
    quiet: Mutex<Range<Timestamp>>,
}

impl Scheduled {
    /// `None` if its calendar is invalid.
    fn new(schedule: Schedule, since: Timestamp) -> Option<Self> {
        let calendar = Calendar::parse(&schedule.cron, &schedule.timezone).ok()?;
        Some(Self { schedule, calendar, since, quiet: Mutex::new(since..since) })
    }

    /// The last tick up to `now`, if it may not have fired. A clock that was set back has passed no tick.
    fn due(&self, now: Timestamp) -> Option<Timestamp> {
        let is_due = now >= self.quiet.lock().end;
        if is_due { self.calendar.last(now) } else { None }
    }

    /// All ticks up to `now` have fired.
    fn pass(&self, now: Timestamp) {
        let mut quiet = self.quiet.lock();
        if !quiet.contains(&now) {
            // A calendar may have no further tick.
            *quiet = now..self.calendar.next(now).unwrap_or(Timestamp::from_millis(i64::MAX));
        }
    }
}

impl Inner {
    /// Creates the jobs of due schedules, and makes the store forget other schedules. Of several missed ticks, only the
    /// last one fires. What fails by an outage of the store is tried again by the next call.
    pub(super) async fn fire(&self) {
        let (now, schedules) = ((self.clock)(), self.schedules.load_full());
        if schedules.must_forget_others.load(Relaxed) {
            let names = schedules.all.iter().map(|it| it.schedule.name.clone()).collect();
            if self.note(self.store.keep_schedules(names).await).is_err_and(|error| error.is_outage()) {
                return;
            }
            schedules.must_forget_others.store(false, Relaxed);
        }
        let due = schedules.all.iter().filter_map(|scheduled| {
            let tick = scheduled.due(now).and_then(|at| self.tick_of(scheduled, at, now));
            if tick.is_none() {
                scheduled.pass(now);
            }
            tick.map(|tick| self.fire_due(scheduled, tick, now))
        });
        join_all(due).await;
    }

    /// Fires a tick of a schedule, the last one up to `now`.
    async fn fire_due(&self, scheduled: &Scheduled, tick: Tick, now: Timestamp) {
        let schedule = &scheduled.schedule.name;
        match self.note(self.store.fire(tick).await) {
            Ok(Fired::Refused) => {
                let reason = "the store is full, the quota is used up, or another job has its id";
                warn!(schedule, "the job of a schedule was not created: {reason}");
            }
            Ok(_) => {}
            Err(error) if error.is_outage() => return,
            Err(error) => warn!(schedule, cause = %error, "the job of a schedule was not created"),
        }
        scheduled.pass(now);
    }

    /// The schedules, by name, each with its next ticks.
    pub(super) fn next_ticks(&self, count: usize) -> Vec<(Schedule, Vec<Timestamp>)> {
        let now = (self.clock)();
        let next = |Scheduled { schedule, calendar, .. }: &Scheduled| {
            let ticks = std::iter::successors(calendar.next(now), |tick| calendar.next(*tick));
            (schedule.clone(), ticks.take(count).collect())
        };
        let mut all: Vec<_> = self.schedules.load().all.iter().map(next).collect();
        all.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        all
    }

    fn tick_of(&self, scheduled: &Scheduled, at: Timestamp, now: Timestamp) -> Option<Tick> {
        let Schedule { name, cron, timezone, kind, payload, overlap } = &scheduled.schedule;
        let labels = [("schedule".to_owned(), name.clone())].into();
        let criticality = Criticality::SheddablePlus;
        let job = Job { criticality, labels, ..Job::new(kind.as_str(), payload.clone()) };
        let pool = self.pools.all().iter().find(|pool| pool.kind(kind).is_some())?.name().to_string();
        let id = format!("{SCHEDULE_PREFIX}{name}/{}", humantime::format_rfc3339_seconds(SystemTime::from(at)));
        let policy = self.policies.load().get(kind).copied().unwrap_or_default();
        Some(Tick {
            schedule: name.clone(),
            pattern: format!("{cron} {timezone}"),
            at,
            now,
            overlap: *overlap,
            job: NewJob { policy, ..NewJob::new(id, pool, job) },
            is_missed: at <= scheduled.since,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from(humantime::parse_rfc3339(text).expect("a time"))
    }

    #[test]
    fn of_missed_ticks_the_last_one_is_due_and_each_is_due_once() {
        let [cron, timezone, kind, payload] = ["0 * * * *", "UTC", "k", ""].map(str::to_owned);
        let overlap = Overlap::Skip;
        let schedule = Schedule { name: "hourly".into(), cron, timezone, kind, payload, overlap };
        let hourly = Scheduled::new(schedule, at("2026-03-01T10:20:00Z")).expect("a calendar");
        for (now, due) in [
            ("2026-03-01T10:20:01Z", Some(("2026-03-01T10:00:00Z", true))),
            ("2026-03-01T10:59:59Z", None),
            ("2026-03-01T11:00:00Z", Some(("2026-03-01T11:00:00Z", false))),
            ("2026-03-01T11:00:01Z", None),
            // The clock jumps forward, and back.
            ("2026-03-01T15:30:00Z", Some(("2026-03-01T15:00:00Z", false))),
            ("2026-03-01T11:40:00Z", None),
            ("2026-03-01T11:59:59Z", None),
            ("2026-03-01T12:00:00Z", Some(("2026-03-01T12:00:00Z", false))),
        ] {
            let found = hourly.due(at(now)).map(|tick| (tick, tick <= hourly.since));
            assert_eq!(found, due.map(|(tick, is_missed)| (at(tick), is_missed)), "{now}");
            hourly.pass(at(now));
        }
    }
}
