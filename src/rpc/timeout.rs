//! Parses and formats the header `grpc-timeout`, and that of calls by JSON. `src/model/deadline.rs` computes the
//! deadline from it.

use std::time::Duration;

use http::HeaderMap;

use crate::{auth::Rpc, model::DeadlinePolicy};

/// Name of the header.
pub const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Name of the header of calls by the Connect protocol, which has milliseconds.
pub(super) const CONNECT_TIMEOUT: &str = "connect-timeout-ms";

/// Largest value in eight digits.
const MAX_VALUE: u128 = 99_999_999;

/// Nanoseconds of each unit, from the finest to the coarsest.
const UNITS: [(u128, char); 6] =
    [(1, 'n'), (1_000, 'u'), (1_000_000, 'm'), (1_000_000_000, 'S'), (60_000_000_000, 'M'), (3_600_000_000_000, 'H')];

/// The text is not a `grpc-timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("grpc-timeout must be 1 to 8 digits and one of the units H, M, S, m, u, n, such as 250m")]
pub struct InvalidTimeout;

/// Parses a `grpc-timeout`.
///
/// # Errors
/// [`InvalidTimeout`] unless the text is 1 to 8 digits and one unit.
pub fn parse(text: &str) -> Result<Duration, InvalidTimeout> {
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or(InvalidTimeout)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidTimeout);
    }
    let value: u128 = digits.parse().map_err(|_| InvalidTimeout)?;
    let (nanos, _) = UNITS.into_iter().find(|(_, letter)| unit.starts_with(*letter)).ok_or(InvalidTimeout)?;
    Ok(Duration::from_nanos_u128(value * nanos))
}

/// The timeout in the headers of a call; `None` if its caller sent none.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<Duration>, InvalidTimeout> {
    headers.get(GRPC_TIMEOUT).map(|value| parse(value.to_str().unwrap_or_default())).transpose()
}

/// Parses a `connect-timeout-ms`; `None` unless the text is 1 to 10 digits.
pub(super) fn parse_millis(text: &str) -> Option<Duration> {
    let is_number = (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).map(Duration::from_millis)
}

/// `timeout` in the finest unit that can represent it, rounded down so that a callee never gets more time than is left.
/// At most 99,999,999 hours.
pub fn format(timeout: Duration) -> String {
    let nanos = timeout.as_nanos();
    let fits = UNITS.into_iter().find(|(unit, _)| nanos / unit <= MAX_VALUE);
    fits.map_or_else(|| format!("{MAX_VALUE}H"), |(unit, letter)| format!("{}{letter}", nanos / unit))
}

/// The time limit of a call's stream, from its path and headers.
pub fn stream_limit(policy: DeadlinePolicy) -> impl Fn(&str, &HeaderMap) -> Option<Duration> {
    move |path, headers| limit(policy, Rpc::at(path), headers)
}

/// The time limit of a call: the deadline of its job, or the caller's timeout for calls without one job. Calls for many
/// jobs, and watches, have no limit unless the caller sets one.
pub(super) fn limit(policy: DeadlinePolicy, rpc: Option<Rpc>, headers: &HeaderMap) -> Option<Duration> {
    let by_json = || parse_millis(headers.get(CONNECT_TIMEOUT)?.to_str().ok()?);
    let asked = read(headers).unwrap_or_default().max(by_json());
    match rpc {
        Some(Rpc::Submit | Rpc::Stream) => Some(asked.unwrap_or(policy.default).min(policy.max)),
        Some(Rpc::SubmitMany) => asked.map(|asked| asked.min(policy.max)),
        _ => asked,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    #[test]
    fn units_and_bounds() {
        let cases = [
            ("1H", Duration::from_secs(3_600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("6n", Duration::from_nanos(6)),
            ("0n", Duration::ZERO),
            ("00000007S", Duration::from_secs(7)),
            ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn nothing_else_is_a_timeout() {
        let faults =
            ["", "S", "1", "1s", "1h", "123456789S", "-1S", "+1S", " 1S", "1S ", "1.5S", "1 S", "1é", "é", "1ms"];
        for text in faults {
            assert_eq!(parse(text), Err(InvalidTimeout), "{text:?}");
        }
    }

    #[test]
    fn finest_unit_that_fits_and_the_cap() {
        let cases = [
            (Duration::ZERO, "0n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_999), "100000u"),
            (Duration::from_secs(2), "2000000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999H"),
        ];
        for (timeout, expected) in cases {
            assert_eq!(format(timeout), expected);
        }
    }

    #[test]
    fn calls_that_run_jobs_end_with_them_and_others_when_their_callers_say() {
        let limit = stream_limit(DeadlinePolicy::default());
        let (minute, day) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(86_400)));
        let (default, max) = (Some(Duration::from_secs(30)), Some(Duration::from_secs(600)));
        for (path, [unsaid, short, long, unsound]) in [
            ("/waterwheel.v1.WorkerPoolService/Submit", [default, minute, max, default]),
            ("/waterwheel.v1.WorkerPoolService/Stream", [default, minute, max, default]),
            ("/waterwheel.v1.WorkerPoolService/SubmitMany", [None, minute, max, None]),
            ("/waterwheel.v1.WorkerPoolService/WatchStats", [None, minute, day, None]),
            ("/grpc.health.v1.Health/Watch", [None, minute, day, None]),
            ("", [None, minute, day, None]),
        ] {
            let of = |timeout: Option<&'static str>| {
                let timeout = timeout.map(|timeout| (GRPC_TIMEOUT.parse().unwrap(), timeout.parse().unwrap()));
                limit(path, &timeout.into_iter().collect())
            };
            assert_eq!([of(None), of(Some("1M")), of(Some("24H")), of(Some("soon"))], [unsaid, short, long, unsound]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_and_never_more(secs in 0..400_000_000_000_u64, nanos in 0..1_000_000_000_u32, shift in 0..60_u32) {
            let timeout = Duration::new(secs >> (shift % 39), nanos >> (shift / 2));
            let read = parse(&format(timeout)).expect("own output");
            prop_assert!(read <= timeout);
            // Eight digits in the finest unit that fits: a millionth part is lost at most, but for minutes and hours.
            prop_assert!(timeout - read <= timeout / 600_000 || timeout > Duration::from_secs(99_999_999 * 3_600));
        }

        #[test]
        fn reading_never_panics(text in "\\PC{0,12}") {
            if let Ok(timeout) = parse(&text) {
                prop_assert!(timeout <= Duration::from_secs(99_999_999 * 3_600));
            }
        }
    }
}
