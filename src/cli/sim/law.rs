use std::{ops::RangeInclusive, time::Duration};

use serde::Serialize;

use crate::pool::Law;

/// One constant of the law, with a value.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Constant {
    value: f64,
    set: fn(&mut Law, f64),
}

/// A constant: its name in `pool.NAME.admission`, what it may be, and where it belongs.
type Key = (&'static str, RangeInclusive<f64>, fn(&mut Law, f64));

/// With the bounds of the configuration. The service time is in seconds.
const KEYS: [Key; 6] = [
    ("service", 1e-6..=86_400.0, |law, value| law.service = Duration::from_secs_f64(value)),
    ("wait_share", f64::MIN_POSITIVE..=1.0, |law, value| law.wait_share = value),
    ("missed_share", 0.0..=1.0, |law, value| law.missed_share = value),
    ("longest_wait", 1.0..=1_000_000.0, |law, value| law.longest_wait = value),
    ("reserve", 0.0..=0.5, |law, value| law.reserve = value),
    ("head_start", 0.0..=1_000.0, |law, value| law.head_start = value),
];

/// The law as rows tell it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct LawView {
    service_ms: f64,
    wait_share: f64,
    missed_share: f64,
    longest_wait: f64,
    reserve: f64,
    head_start: f64,
}

impl From<Law> for LawView {
    fn from(law: Law) -> Self {
        let Law { service, wait_share, missed_share, longest_wait, reserve, head_start } = law;
        let service_ms = service.as_secs_f64() * 1e3;
        Self { service_ms, wait_share, missed_share, longest_wait, reserve, head_start }
    }
}

/// The law by default, but for these constants.
pub(super) fn law(constants: &[Constant]) -> Law {
    let mut law = Law::default();
    constants.iter().for_each(|constant| (constant.set)(&mut law, constant.value));
    law
}

/// Reads `KEY=VALUE`.
pub(super) fn constant(text: &str) -> Result<Constant, String> {
    let (name, value) = text.split_once('=').ok_or("send a key and a value, such as wait_share=0.4")?;
    let found = KEYS.into_iter().find(|key| key.0 == name);
    let (name, range, set) =
        found.ok_or_else(|| format!("no such key; choose from {}", KEYS.map(|key| key.0).join(", ")))?;
    let number = if name == "service" {
        humantime::parse_duration(value).ok().map(|time| time.as_secs_f64())
    } else {
        value.parse().ok()
    };
    let example = if name == "service" { "a time, such as 50ms" } else { "a number" };
    let number: f64 = number.ok_or_else(|| format!("{name} is {example}"))?;
    if range.contains(&number) {
        return Ok(Constant { value: number, set });
    }
    let unit = if name == "service" { " seconds" } else { "" };
    let low = if *range.start() == f64::MIN_POSITIVE { "above 0".to_owned() } else { range.start().to_string() };
    Err(format!("{name} is out of range: from {low} to {}{unit}", range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_constant_sets_what_it_names() {
        let texts =
            ["service=2s", "wait_share=0.4", "missed_share=0.3", "longest_wait=7", "reserve=0.1", "head_start=9"];
        let all = law(&texts.map(|text| constant(text).unwrap()));
        let expected = LawView {
            service_ms: 2000.0,
            wait_share: 0.4,
            missed_share: 0.3,
            longest_wait: 7.0,
            reserve: 0.1,
            head_start: 9.0,
        };
        assert_eq!(LawView::from(all), expected);
        assert_eq!(LawView::from(law(&[])), LawView::from(Law::default()));
    }

    #[test]
    fn what_is_no_constant_is_refused_with_what_is() {
        let cases = [
            ("wait_share", "send a key and a value"),
            ("wait=0.4", "choose from service, wait_share"),
            ("wait_share=0", "from above 0 to 1"),
            ("wait_share=NaN", "out of range"),
            ("reserve=0.6", "from 0 to 0.5"),
            ("service=5", "a time, such as 50ms"),
            ("service=0s", "out of range"),
            ("reserve=x", "a number"),
        ];
        for (text, told) in cases {
            let error = constant(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
