use jiff::ToSpan as _;

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
        // 02:30 does not exist on that day, and ticks at 03:00.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:59:00Z", "2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z"),
        ("0 2,14 * * *", "Europe/Berlin", "2026-03-29T00:59:59Z", "2026-03-28T13:00:00Z", "2026-03-29T01:00:00Z"),
        ("0 2,14 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T12:00:00Z"),
        // 02:00 comes twice on that day, and ticks the first time.
        ("0 2,14 * * *", "Europe/Berlin", "2026-10-24T23:59:59Z", "2026-10-24T12:00:00Z", "2026-10-25T00:00:00Z"),
        ("0 2,14 * * *", "Europe/Berlin", "2026-10-25T01:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T13:00:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
        // Each half hour, also in the hour that comes twice.
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"),
        // Samoa had no 30 December 2011.
        ("0 12 * * *", "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z"),
    ] {
        let calendar = Calendar::parse(cron, zone).expect(cron);
        let found = (calendar.last(at(now)), calendar.next(at(now)));
        assert_eq!(found, (Some(at(last)), Some(at(next))), "{cron} {zone} {now}");
    }
    assert!(Calendar::parse("61 * * * *", "UTC").is_err() && Calendar::parse("* * * * *", "Mars/Base").is_err());
    let far = Calendar::parse("0 0 * * *", "UTC").expect("a calendar");
    assert_eq!(far.next(Timestamp::from_millis(i64::MAX)), None);
}

const PATTERNS: [&str; 15] = [
    "30 2 * * *",
    "0 2,14 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "0,30 0,1 * * *",
    "*/20 1-3 * * *",
    "* 2 * * *",
    "0 */2 * * *",
    "15 0-4 * * *",
    "5-55/10 1,2,3 * * *",
    "10 0-22 * * *",
    "30 1 * * 0",
    "0 3 1 * *",
    "*/15 * * * *",
    "45 * * * *",
];

/// Changes of an hour, of half an hour and of two, at midnight and at odd times, one month apart, and none at all.
const ZONES: [&str; 15] = [
    "Europe/Berlin",
    "Europe/London",
    "Atlantic/Azores",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Santiago",
    "America/Nuuk",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Antarctica/Troll",
];

/// Against a walk over the minutes of the zone's clock, for most of a day around each change.
#[test]
fn ticks_around_each_change_of_two_years_are_those_of_a_walk_minute_by_minute() {
    let (start, end): (Instant, Instant) =
        ("2026-01-01T00:00Z".parse().expect("a time"), "2028-01-01T00:00Z".parse().expect("a time"));
    let (mut changes, mut ticks) = (0, 0);
    for name in ZONES {
        let zone = TimeZone::get(name).expect("a zone");
        let found = zone.following(start).map(|change| change.timestamp()).take_while(|change| *change < end);
        for change in found.collect::<Vec<_>>().into_iter().chain((name == "Asia/Kolkata").then_some(start)) {
            changes += 1;
            let minutes = (-900..900).map(|minute| change + minute.minutes());
            let clock: Vec<_> = minutes.map(|at| (at, zone.to_datetime(at))).collect();
            ticks += PATTERNS.map(|pattern| compare(pattern, name, &clock)).iter().sum::<usize>();
        }
    }
    assert!(changes > 50 && ticks > 10_000, "{changes} changes, {ticks} ticks");
}

/// `clock` has what the clock of the zone shows at each minute.
fn compare(pattern: &str, name: &str, clock: &[(Instant, DateTime)]) -> usize {
    let case = format!("{pattern} in {name} at {}", clock[900].0);
    let calendar = Calendar::parse(pattern, name).expect("a calendar");
    let expected: Vec<_> = walk(pattern, clock).into_iter().map(timestamp).collect();
    let end = timestamp(clock[clock.len() - 1].0);
    let found = std::iter::successors(calendar.next(timestamp(clock[0].0)), |tick| calendar.next(*tick));
    let found: Vec<_> = found.take_while(|tick| *tick <= end).collect();
    assert_eq!(found, expected, "{case}");
    for (index, tick) in expected.iter().enumerate() {
        let just_before = Timestamp::from_millis(tick.as_millis() - 1);
        assert_eq!((calendar.last(*tick), calendar.next(just_before)), (Some(*tick), Some(*tick)), "{case}");
        if index > 0 {
            assert_eq!(calendar.last(just_before), Some(expected[index - 1]), "{case}");
        }
    }
    expected.len()
}

/// The instants after the first one at which a job must start, as docs/jobs.md says it.
fn walk(pattern: &str, clock: &[(Instant, DateTime)]) -> Vec<Instant> {
    let fields = Fields::of(pattern);
    // Whatever was shown until then may come again.
    let mut latest = clock[0].1;
    let mut ticks = Vec::new();
    for (now, shown) in &clock[1..] {
        let is_tick = if fields.hours.len() == 24 {
            fields.name(*shown)
        } else {
            let new_times = std::iter::successors(Some(latest + 1.minute()), |time| Some(*time + 1.minute()));
            new_times.take_while(|time| time <= shown).any(|time| fields.name(time))
        };
        if is_tick {
            ticks.push(*now);
        }
        latest = latest.max(*shown);
    }
    ticks
}

/// The values of each field.
struct Fields {
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: Vec<i8>,
    weekdays: Vec<i8>,
}

impl Fields {
    fn of(pattern: &str) -> Self {
        let fields: Vec<_> = pattern.split(' ').collect();
        let values = |index: usize, least, most| {
            let parts = fields[index].split(',').flat_map(|part| {
                let (range, step) = part.split_once('/').unwrap_or((part, "1"));
                let (first, last) = match range.split_once('-') {
                    Some((first, last)) => (first.parse().expect("a number"), last.parse().expect("a number")),
                    None if range == "*" => (least, most),
                    None => (range.parse().expect("a number"), range.parse().expect("a number")),
                };
                (first..=last).step_by(step.parse().expect("a step"))
            });
            parts.collect::<Vec<i8>>()
        };
        Self { minutes: values(0, 0, 59), hours: values(1, 0, 23), days: values(2, 1, 31), weekdays: values(4, 0, 6) }
    }

    fn name(&self, time: DateTime) -> bool {
        self.minutes.contains(&time.minute())
            && self.hours.contains(&time.hour())
            && self.days.contains(&time.day())
            && self.weekdays.contains(&time.weekday().to_sunday_zero_offset())
    }
}
