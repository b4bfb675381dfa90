//! `limit` of a kind: how much of it may run, for the sake of what it calls.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use super::field::within;
use super::section::Section;
use crate::model::{KindLimits, Limit, Rate};

/// Starts per second: one in a quarter of an hour, to what no timer could tell apart any more.
const RATE: RangeInclusive<f64> = 0.001..=1_000_000.0;
const MOST: RangeInclusive<i64> = 1..=1_000_000;
/// Limit keys that are told apart.
const KEYS: i64 = 10_000;
const MOST_KEYS: RangeInclusive<i64> = 1..=1 << 24;

/// Reads `limit`.
pub(super) fn read(section: &mut Section<'_>) -> KindLimits {
    let all = bounds(section);
    section.section("per_key", |section| {
        let per_key = bounds(section);
        let keys = if per_key.is_set() { section.integer("keys", KEYS, MOST_KEYS) } else { without_bounds(section) };
        KindLimits { all, per_key, keys }
    })
}

/// Keys that no bound is for: they are shown as not set, and setting them has no effect.
fn without_bounds(section: &mut Section<'_>) -> usize {
    let keys = section.optional("keys", within(MOST_KEYS));
    if !section.is_key_faulty("concurrency") && !section.is_key_faulty("rate") {
        section.needs("keys", "concurrency` or `rate");
    }
    usize::try_from(keys.unwrap_or(KEYS)).expect("the range of the key fits its type")
}

fn bounds(section: &mut Section<'_>) -> Limit {
    let count = |value: Option<i64>| value.and_then(|value| NonZeroU32::new(u32::try_from(value).ok()?));
    let concurrency = section.optional("concurrency", within(MOST));
    let rate = section.optional("rate", within(RATE));
    let burst = section.optional("burst", within(MOST));
    if rate.is_none() {
        section.needs("burst", "rate");
    }
    let rate = rate.map(|rate| Rate::per_second(rate, count(burst).unwrap_or_else(|| tenth(rate))));
    Limit { concurrency: count(concurrency), rate }
}

/// The starts of a tenth of a second, one at least: timers are not exact, and what they miss must not be lost.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in its range, over ten")]
fn tenth(rate: f64) -> NonZeroU32 {
    NonZeroU32::new((rate / 10.0) as u32).unwrap_or(NonZeroU32::MIN)
}
