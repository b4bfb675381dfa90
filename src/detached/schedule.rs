//! Recurring jobs: each tick of a calendar runs once over all servers that share the store.

use std::{str::FromStr, time::SystemTime};

use croner::Cron;
use jiff::{Zoned, tz::TimeZone};
use serde::Deserialize;
use tracing::warn;

use super::Inner;
use crate::{
    model::{Criticality, Job},
    store::{Fired, NewJob, Overlap, Tick, Timestamp},
};

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

/// The ticks of a schedule.
#[derive(Debug, Clone)]
pub struct Calendar {
    cron: Cron,
    zone: TimeZone,
}

impl Calendar {
    /// A pattern of five fields, or of six with seconds first, in a time zone.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub fn parse(cron: &str, zone: &str) -> Result<Self, String> {
        let cron = Cron::from_str(cron).map_err(|error| error.to_string())?;
        let zone = TimeZone::get(zone).map_err(|error| error.to_string())?;
        let calendar = Self { cron, zone };
        match calendar.next(Timestamp::from_millis(0)) {
            Some(_) => Ok(calendar),
            None => Err("it has no tick on any date".to_owned()),
        }
    }

    /// The last tick that is not after `now`.
    #[must_use]
    pub fn last(&self, now: Timestamp) -> Option<Timestamp> {
        let now = self.zoned(now)?;
        self.cron.find_previous_occurrence(&now, true).ok().map(|at| timestamp(&at))
    }

    /// The first tick after `now`.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let now = self.zoned(now)?;
        self.cron.find_next_occurrence(&now, false).ok().map(|at| timestamp(&at))
    }

    fn zoned(&self, at: Timestamp) -> Option<Zoned> {
        Some(jiff::Timestamp::from_millisecond(at.as_millis()).ok()?.to_zoned(self.zone.clone()))
    }
}

fn timestamp(at: &Zoned) -> Timestamp {
    Timestamp::from_millis(at.timestamp().as_millisecond())
}

/// A schedule of this process.
pub(super) struct Scheduled {
    schedule: Schedule,
    calendar: Calendar,
    /// The next tick; `None` before the first check, which looks for a tick that all servers missed.
    next: Option<Timestamp>,
}

impl Scheduled {
    /// `None` if its calendar is invalid.
    pub(super) fn new(schedule: Schedule) -> Option<Self> {
        let calendar = Calendar::parse(&schedule.cron, &schedule.timezone).ok()?;
        Some(Self { schedule, calendar, next: None })
    }

    /// The last tick up to `now` that has not fired.
    fn due(&self, now: Timestamp) -> Option<Timestamp> {
        if self.next > Some(now) { None } else { self.calendar.last(now) }
    }

    /// All ticks up to `now` are stored.
    fn pass(&mut self, now: Timestamp) {
        if self.next <= Some(now) {
            // A calendar may have no further tick.
            self.next = Some(self.calendar.next(now).unwrap_or(Timestamp::from_millis(i64::MAX)));
        }
    }
}

impl Inner {
    /// Creates the jobs of due schedules. Of several missed ticks, only the last one fires. If the store fails, the
    /// next call tries again.
    pub(super) async fn fire(&self) {
        let now = (self.clock)();
        if self.schedules.lock().iter().all(|it| it.next > Some(now)) {
            return;
        }
        let due = |it: &Scheduled| self.tick_of(it, it.due(now)?);
        let ticks: Vec<_> = self.schedules.lock().iter().filter_map(due).collect();
        if !ticks.is_empty() {
            let names: Vec<_> = ticks.iter().map(|tick| tick.schedule.clone()).collect();
            let Ok(fired) = self.note(self.store.fire(ticks).await) else { return };
            for (name, _) in names.iter().zip(fired).filter(|(_, fired)| *fired == Fired::Refused) {
                warn!(
                    schedule = name,
                    "the job of a schedule was not created: the store is full, or has another job with its id"
                );
            }
        }
        self.schedules.lock().iter_mut().for_each(|it| it.pass(now));
    }

    fn tick_of(&self, scheduled: &Scheduled, at: Timestamp) -> Option<Tick> {
        let Schedule { name, kind, payload, overlap, .. } = &scheduled.schedule;
        let labels = [("schedule".to_owned(), name.clone())].into();
        let criticality = Criticality::SheddablePlus;
        let job = Job { criticality, labels, ..Job::new(kind.as_str(), payload.clone()) };
        let pool = self.pools.all().iter().find(|pool| pool.kind(kind).is_some())?.name().to_string();
        let id = format!("{SCHEDULE_PREFIX}{name}/{}", humantime::format_rfc3339_seconds(SystemTime::from(at)));
        let policy = self.policies.load().get(kind).copied().unwrap_or_default();
        let job = NewJob { policy, ..NewJob::new(id, pool, job) };
        Some(Tick { schedule: name.clone(), at, overlap: *overlap, job, is_missed: scheduled.next.is_none() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from(humantime::parse_rfc3339(text).expect("a time"))
    }

    #[test]
    fn a_calendar_keeps_to_its_zone_and_its_summer_time() {
        for (cron, zone, now, last, next) in [
            ("0 3 * * *", "UTC", "2026-03-01T03:00:00Z", "2026-03-01T03:00:00Z", "2026-03-02T03:00:00Z"),
            ("0 3 * * *", "Europe/Berlin", "2026-07-01T00:30:00Z", "2026-06-30T01:00:00Z", "2026-07-01T01:00:00Z"),
            ("*/15 * * * * *", "UTC", "2026-03-01T00:00:16Z", "2026-03-01T00:00:15Z", "2026-03-01T00:00:30Z"),
            ("0 9 * * MON", "UTC", "2026-11-24T00:00:00Z", "2026-11-23T09:00:00Z", "2026-11-30T09:00:00Z"),
            // 02:30 does not exist on that day, and runs at 03:00.
            ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:59:00Z", "2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z"),
        ] {
            let calendar = Calendar::parse(cron, zone).expect(cron);
            assert_eq!(
                (calendar.last(at(now)), calendar.next(at(now))),
                (Some(at(last)), Some(at(next))),
                "{cron} {zone}"
            );
        }
        assert!(Calendar::parse("61 * * * *", "UTC").is_err() && Calendar::parse("* * * * *", "Mars/Base").is_err());
    }

    #[test]
    fn of_missed_ticks_the_last_one_is_due_and_each_is_due_once() {
        let [cron, timezone, kind, payload] = ["0 * * * *", "UTC", "k", ""].map(str::to_owned);
        let overlap = Overlap::Skip;
        let schedule = Schedule { name: "hourly".into(), cron, timezone, kind, payload, overlap };
        let mut hourly = Scheduled::new(schedule).expect("a calendar");
        for (now, due) in [
            ("2026-03-01T10:20:00Z", Some(("2026-03-01T10:00:00Z", true))),
            ("2026-03-01T10:59:59Z", None),
            ("2026-03-01T11:00:00Z", Some(("2026-03-01T11:00:00Z", false))),
            ("2026-03-01T11:00:01Z", None),
            ("2026-03-01T15:30:00Z", Some(("2026-03-01T15:00:00Z", false))),
        ] {
            let found = hourly.due(at(now)).map(|tick| (tick, hourly.next.is_none()));
            assert_eq!(found, due.map(|(tick, is_missed)| (at(tick), is_missed)), "{now}");
            hourly.pass(at(now));
        }
    }
}
