//! The ticks of a pattern in a time zone, also where the zone's clock is set forward or back.

#[cfg(test)]
mod tests;

use std::str::FromStr;

use croner::Cron;
use jiff::{
    SignedDuration, Timestamp as Instant,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

use crate::store::Timestamp;

/// The smallest step of a time zone's clock.
const STEP: SignedDuration = SignedDuration::from_nanos(1);

/// The ticks of a schedule.
///
/// Each time of the zone's clock that the pattern names ticks once. One that the clock leaves out ticks at the end of
/// the gap, and one that it shows twice ticks the first time. A pattern that names every hour ticks whenever the clock
/// shows a time that it names, so that it never pauses for an hour.
#[derive(Debug, Clone)]
pub struct Calendar {
    cron: Cron,
    zone: TimeZone,
    names_every_hour: bool,
}

impl Calendar {
    /// A pattern of five fields, or of six with seconds first, in a time zone.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub fn parse(cron: &str, zone: &str) -> Result<Self, String> {
        let cron = Cron::from_str(cron).map_err(|error| error.to_string())?;
        let zone = TimeZone::get(zone).map_err(|error| error.to_string())?;
        let names_every_hour = cron.pattern.hours.values().len() == 24;
        let calendar = Self { cron, zone, names_every_hour };
        match calendar.next(Timestamp::from_millis(0)) {
            Some(_) => Ok(calendar),
            None => Err("it has no tick on any date".to_owned()),
        }
    }

    /// The last tick that is not after `now`.
    pub fn last(&self, now: Timestamp) -> Option<Timestamp> {
        let now = Instant::from_millisecond(now.as_millis()).ok()?;
        let tick = if self.names_every_hour {
            self.last_shown(now)?
        } else {
            self.tick(self.cron.find_previous_occurrence(&self.latest_shown(now)?, true).ok()?)?
        };
        Some(timestamp(tick))
    }

    /// The first tick after `now`.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let now = Instant::from_millisecond(now.as_millis()).ok()?;
        let tick = if self.names_every_hour {
            self.next_shown(now)?
        } else {
            self.tick(self.cron.find_next_occurrence(&self.latest_shown(now)?, false).ok()?)?
        };
        Some(timestamp(tick))
    }

    /// When the clock last showed a time that the pattern names, between two changes of the clock.
    fn last_shown(&self, mut now: Instant) -> Option<Instant> {
        loop {
            let offset = self.zone.to_offset(now);
            let named = self.cron.find_previous_occurrence(&offset.to_datetime(now), true).ok()?;
            let tick = offset.to_timestamp(named).ok()?;
            match self.zone.preceding(now.checked_add(STEP).ok()?).next() {
                Some(change) if tick < change.timestamp() => now = change.timestamp().checked_sub(STEP).ok()?,
                _ => return Some(tick),
            }
        }
    }

    /// When the clock next shows a time that the pattern names.
    fn next_shown(&self, mut now: Instant) -> Option<Instant> {
        let mut is_included = false;
        loop {
            let offset = self.zone.to_offset(now);
            let named = self.cron.find_next_occurrence(&offset.to_datetime(now), is_included).ok()?;
            let tick = offset.to_timestamp(named).ok()?;
            match self.zone.following(now).next() {
                Some(change) if tick >= change.timestamp() => (now, is_included) = (change.timestamp(), true),
                _ => return Some(tick),
            }
        }
    }

    /// The latest time that the zone's clock has shown until `now`: it may have been set back since.
    fn latest_shown(&self, now: Instant) -> Option<DateTime> {
        let shown = self.zone.to_datetime(now);
        let Some(change) = self.zone.preceding(now.checked_add(STEP).ok()?).next() else { return Some(shown) };
        Some(shown.max(self.zone.to_datetime(change.timestamp().checked_sub(STEP).ok()?)))
    }

    /// When the clock shows a time first, or would have without a gap.
    fn tick(&self, named: DateTime) -> Option<Instant> {
        let time = self.zone.to_ambiguous_timestamp(named);
        let is_left_out = matches!(time.offset(), AmbiguousOffset::Gap { .. });
        let first = time.earlier().ok()?;
        if is_left_out { Some(self.zone.following(first).next()?.timestamp()) } else { Some(first) }
    }
}

fn timestamp(at: Instant) -> Timestamp {
    Timestamp::from_millis(at.as_millisecond())
}
