//! Jobs that recur: the ticks of their calendars, each of which runs once over all servers that share the store.

use std::{str::FromStr, time::SystemTime};

use croner::Cron;
use jiff::{Zoned, tz::TimeZone};
use serde::Deserialize;
use tracing::warn;

use super::Inner;
use crate::{
    model::{Criticality, Job},
    store::{Fired, NewJob, Overlap, StoreError, Tick, Timestamp},
};

/// How the ids of the jobs of schedules begin. No caller may create such a job.
pub const SCHEDULE_PREFIX: &str = "schedule/";

/// `[schedule.NAME]`: a job that is created at each tick of a calendar.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Schedule {
    /// Its name, which the store keeps its last tick under.
    #[serde(skip)]
    pub name: String,
    /// Minutes, hours, days, months and weekdays, as [`Calendar::parse`] reads them.
    pub cron: String,
    /// Name of a time zone, such as `Europe/Berlin`.
    pub timezone: String,
    /// Kind of the jobs.
    pub kind: String,
    /// Their payload.
    pub payload: String,
    /// What a tick does while the run of an earlier one has not ended.
    pub overlap: Overlap,
}

/// When a schedule ticks.
#[derive(Debug, Clone)]
pub struct Calendar {
    cron: Cron,
    zone: TimeZone,
}

impl Calendar {
    /// A pattern of five fields, or of six with seconds first, in a time zone.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn parse(cron: &str, zone: &str) -> Result<Self, String> {
        let cron = Cron::from_str(cron).map_err(|error| error.to_string())?;
        let zone = TimeZone::get(zone).map_err(|error| error.to_string())?;
        Ok(Self { cron, zone })
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

/// The schedules of a process.
#[derive(Default)]
pub(super) struct Schedules {
    all: Vec<Scheduled>,
    /// When the first of them ticks next; `None` before the first look.
    next: Option<Timestamp>,
}

struct Scheduled {
    schedule: Schedule,
    calendar: Calendar,
    /// Its next tick; `None` before the first look, which is for a tick that all servers missed.
    next: Option<Timestamp>,
}

impl Schedules {
    /// Schedules with valid calendars; others are left out.
    pub(super) fn new(schedules: Vec<Schedule>) -> Self {
        let scheduled = |schedule: Schedule| {
            let calendar = Calendar::parse(&schedule.cron, &schedule.timezone).ok()?;
            Some(Scheduled { schedule, calendar, next: None })
        };
        Self { all: schedules.into_iter().filter_map(scheduled).collect(), next: None }
    }

    /// The schedules that have ticked until `now`, and the last tick of each.
    fn due(&self, now: Timestamp) -> impl Iterator<Item = (&Scheduled, Timestamp)> {
        let is_due = move |it: &&Scheduled| it.next.is_none_or(|next| next <= now);
        self.all.iter().filter(is_due).filter_map(move |it| Some((it, it.calendar.last(now)?)))
    }

    /// The ticks until `now` are in the store.
    fn passed(&mut self, now: Timestamp) {
        for it in &mut self.all {
            if it.next.is_none_or(|next| next <= now) {
                // A calendar may end; then it is looked at no more.
                it.next = Some(it.calendar.next(now).unwrap_or(Timestamp::from_millis(i64::MAX)));
            }
        }
        self.next = self.all.iter().filter_map(|it| it.next).min();
    }
}

impl Inner {
    /// Creates the jobs of the schedules that have ticked. Of several missed ticks, the last one counts.
    pub(super) async fn fire(&self) -> Result<(), StoreError> {
        let now = (self.clock)();
        if self.schedules.lock().next > Some(now) {
            return Ok(());
        }
        let ticks: Vec<_> = self.schedules.lock().due(now).filter_map(|(it, at)| self.tick_of(it, at)).collect();
        if ticks.is_empty() {
            self.schedules.lock().passed(now);
            return Ok(());
        }
        let names: Vec<_> = ticks.iter().map(|tick| tick.schedule.clone()).collect();
        let fired = self.note(self.store.fire(ticks).await)?;
        for (name, _) in names.iter().zip(fired).filter(|(_, fired)| *fired == Fired::Refused) {
            warn!(schedule = name, "the store had no room for the job of a schedule, or had another job of its id");
        }
        self.schedules.lock().passed(now);
        Ok(())
    }

    fn tick_of(&self, scheduled: &Scheduled, at: Timestamp) -> Option<Tick> {
        let Schedule { name, kind, payload, overlap, .. } = &scheduled.schedule;
        let labels = [("schedule".to_owned(), name.clone())].into();
        let criticality = Criticality::SheddablePlus;
        let job = Job { criticality, labels, ..Job::new(kind.as_str(), payload.clone()) };
        let pool = self.pools.all().iter().find(|pool| pool.kind(kind).is_some())?.name().to_string();
        let id = format!("{SCHEDULE_PREFIX}{name}/{}", humantime::format_rfc3339_seconds(SystemTime::from(at)));
        let policy = self.policies.load().get(kind).copied().unwrap_or_default();
        let job = NewJob {
            retry: policy.retry,
            retain_for: policy.retain_for,
            retain_dead_for: policy.retain_dead_for,
            ..NewJob::new(id, pool, job)
        };
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
        let mut schedules =
            Schedules::new(vec![Schedule { name: "hourly".into(), cron, timezone, kind, payload, overlap }]);
        for (now, due) in [
            ("2026-03-01T10:20:00Z", vec![("2026-03-01T10:00:00Z", true)]),
            ("2026-03-01T10:59:59Z", vec![]),
            ("2026-03-01T11:00:00Z", vec![("2026-03-01T11:00:00Z", false)]),
            ("2026-03-01T11:00:01Z", vec![]),
            ("2026-03-01T15:30:00Z", vec![("2026-03-01T15:00:00Z", false)]),
        ] {
            let found: Vec<_> = schedules.due(at(now)).map(|(it, tick)| (tick, it.next.is_none())).collect();
            assert_eq!(
                found,
                due.into_iter().map(|(tick, is_missed)| (at(tick), is_missed)).collect::<Vec<_>>(),
                "{now}"
            );
            schedules.passed(at(now));
        }
    }
}
