//! Tests of formatted figures.

use std::time::Duration;

use super::{duration, exact, message_json, percent, sanitized, setting, short_duration, table, waterfall};
use crate::{
    cli::console::{BAD, paint},
    proto::{DrainResponse, JobResult, ListJobsResponse, StreamResponse, Waterfall, stream_response::Event},
};

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn check(format: impl Fn(Duration) -> String, cases: &[(u64, &str)]) {
    for (micros, expected) in cases {
        assert_eq!(format(us(*micros)), *expected, "{micros} µs");
    }
}

#[test]
fn exact_is_in_milliseconds() {
    check(
        exact,
        &[
            (0, "0ms"),
            (20, "0.02ms"),
            (94, "0.09ms"),
            (95, "0.1ms"),
            (400, "0.4ms"),
            (9_949, "9.9ms"),
            (9_960, "10ms"),
            (497_000, "497ms"),
            (1_503_400, "1503ms"),
        ],
    );
}

#[test]
fn rough_keeps_two_or_three_digits() {
    check(
        short_duration,
        &[
            (4_100, "4.1ms"),
            (999_000, "999ms"),
            (999_900, "1.0s"),
            (1_000_000, "1.0s"),
            (1_503_000, "1.5s"),
            (6_840_000, "6.8s"),
            (9_960_000, "10s"),
            (59_400_000, "59s"),
            (59_600_000, "1m 0s"),
            (123_000_000, "2m 3s"),
            (11_040_000_000, "3h 4m"),
            (183_600_000_000, "2d 3h"),
        ],
    );
}

#[test]
fn a_setting_reads_back_as_the_same_duration() {
    check(
        setting,
        &[
            (0, "0ms"),
            (500, "0.5ms"),
            (500_000, "500ms"),
            (1_600_000, "1.6s"),
            (2_000_000, "2s"),
            (90_000_000, "90s"),
            (600_000_000, "10m"),
            (7_200_000_000, "2h"),
        ],
    );
    for micros in [500, 500_000, 1_600_000, 90_000_000, 600_000_000] {
        let text = setting(us(micros));
        assert_eq!(humantime::parse_duration(&text).unwrap(), us(micros), "{text}");
    }
}

#[test]
fn a_share_stays_between_nothing_and_all() {
    for (share, expected) in [(0.0, "0%"), (0.374, "37%"), (1.2, "100%")] {
        assert_eq!(percent(share), expected);
    }
}

#[test]
fn the_waterfall_shows_where_the_budget_went() {
    let line = waterfall(&Waterfall {
        budget_seconds: 2.0,
        queue_seconds: 0.0004,
        run_seconds: 1.503,
        left_seconds: 0.4966,
        worker: 0,
    });
    assert_eq!(line, "done in 1.5s   budget 2s = queue 0.4ms + run 1503ms + left 497ms");
}

#[test]
fn absent_and_negative_durations_are_zero() {
    let negative = prost_types::Duration { seconds: -1, nanos: 0 };
    assert_eq!(duration(None), Duration::ZERO);
    assert_eq!(duration(Some(negative)), Duration::ZERO);
}

#[test]
fn a_peer_cannot_steer_the_terminal() {
    assert_eq!(sanitized("a\x1b[2Jb\r\n\tc"), "a\u{fffd}[2Jb\u{fffd}\n\tc");
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

#[test]
fn columns_line_up_whatever_their_styles() {
    let rows = vec![row(&[&paint(BAD, "sha256"), "7", ""]), row(&["gzip", "1234567", ""])];
    let lines = table(&["kind", ">count", "note"], rows);
    let plain: Vec<String> = lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect();
    assert_eq!(plain, ["kind      count  note", "sha256        7", "gzip    1234567",]);
}

#[test]
fn a_message_is_proto3_json_with_the_names_of_the_contract() {
    let result = JobResult { job_id: "7".to_owned(), output: b"hi".to_vec(), ..JobResult::default() };
    assert_eq!(message_json(&result).unwrap(), r#"{"job_id":"7","output":"aGk=","content_type":""}"#);
    let waterfall = Some(Waterfall::default());
    let line = message_json(&JobResult { waterfall, ..result }).unwrap();
    assert!(line.contains(r#""waterfall":{"#), "{line}");
    let list = ListJobsResponse { all: 1 << 60, ..ListJobsResponse::default() };
    let expected = r#"{"jobs":[],"all":1152921504606846976,"order":"JOB_ORDER_UNSPECIFIED","tenants":[]}"#;
    assert_eq!(message_json(&list).unwrap(), expected);
    let progress = StreamResponse { sequence: 3, event: Some(Event::Progress(Default::default())) };
    assert_eq!(message_json(&progress).unwrap(), r#"{"sequence":3,"progress":{"fraction":0.0,"message":""}}"#);
}

#[test]
fn a_duration_that_json_cannot_hold_is_an_error() {
    let elapsed = Some(prost_types::Duration { seconds: i64::MAX, nanos: 0 });
    assert!(message_json(&DrainResponse { elapsed, ..Default::default() }).is_err());
}
