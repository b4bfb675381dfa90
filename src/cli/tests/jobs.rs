//! What `waterwheel explain` prints.

use super::*;
use crate::proto::ProgramEnd;

fn listed(stage: JobStage, kind: &str, tenant: &str, request_id: &str) -> ListedJob {
    ListedJob {
        job_id: "019f0e3b2c4d5e6f-1a3".into(),
        request_id: request_id.into(),
        pool: "cpu".into(),
        kind: kind.into(),
        tenant: tenant.into(),
        stage: stage.into(),
        age: Some("72s".parse().unwrap()),
        run: (stage != JobStage::Queued).then(|| "0.5s".parse().unwrap()),
        outcome: if stage == JobStage::Failed { "HANDLER_FAILED".into() } else { String::new() },
        ..ListedJob::default()
    }
}

#[test]
fn the_table_fits_the_terminal() {
    let jobs = vec![
        listed(JobStage::Queued, "thumbnail-of-a-rather-long-name", "acme", "req-1"),
        listed(
            JobStage::Failed,
            "resize",
            "a tenant with many words \u{1b}[31m",
            "019f0e3b-2c4d-7e6f-8a90-b1c2d3e4f506",
        ),
    ];
    let answer = ListJobsResponse { jobs, all: 7, ..ListJobsResponse::default() };
    let shown = |width| anstream::adapter::strip_str(&lines(&answer, width).join("\n")).to_string();
    assert_eq!(
        shown(Some(80)),
        "job                   state              age    run  kind         tenant  reque…\n\
         019f0e3b2c4d5e6f-1a3  queued          1m 12s      -  thumbnail-…  acme    req-1\n\
         019f0e3b2c4d5e6f-1a3  HANDLER_FAILED  1m 12s  500ms  resize       a ten…  019f0…"
    );
    assert!(shown(None).contains("thumbnail-of-a-rather-long-name  acme "), "{}", shown(None));
    assert_eq!(summary(&answer), "2 of 7 jobs, the newest first");
    assert_eq!(lines(&ListJobsResponse::default(), Some(80)), [""; 0]);
}

fn shown(state: State) -> String {
    let answer = ExplainResponse {
        job_id: "1-2".into(),
        pool: "cpu".into(),
        kind: "resize".into(),
        state: Some(state),
        ..ExplainResponse::default()
    };
    anstream::adapter::strip_str(&explained(&answer)).to_string()
}

fn time(text: &str) -> Option<prost_types::Duration> {
    Some(text.parse().unwrap())
}

#[test]
fn each_state_has_its_words() {
    let held = HeldState {
        position: 4,
        ahead: Some(3),
        expected_start: time("1.5s"),
        bound_by: Binding::LimitRate.into(),
        age: time("0.2s"),
        left: time("29.8s"),
        blocker: "rate 2.00/s".into(),
        until: None,
    };
    assert_eq!(
        shown(State::Held(held)),
        "1-2  kind resize  pool cpu\n  queued at 4, 3 ahead, expected to start in 1.5s\n  \
         because its kind is at its rate limit: rate 2.00/s\n  arrived 200ms ago, 30s left\n"
    );
    let ends = HeldState {
        bound_by: Binding::Program.into(),
        blocker: "resize exited with code 3".into(),
        until: Some("2026-11-29T07:30:00Z".parse().unwrap()),
        ..HeldState::default()
    };
    assert_eq!(
        shown(State::Held(ends)),
        "1-2  kind resize  pool cpu\n  has a worker, and waits for a process\n  \
         because the processes of its program keep ending: resize exited with code 3; \
         the next starts at 2026-11-29T07:30:00Z\n  arrived 0ms ago, 0ms left\n"
    );
    let running = RunningState {
        worker: 7,
        queue: time("0.1s"),
        run: time("2s"),
        left: time("28s"),
        stopping: true,
        stuck: false,
        stop: Some(StopRequest { reason: "OPERATOR".into(), since: time("0.5s"), grace_left: time("1.5s") }),
    };
    assert_eq!(
        shown(State::Running(running)),
        "1-2  kind resize  pool cpu\n  asked to stop on worker 7 for 2.0s, after 100ms in the queue\n  28s left\n  \
         asked 500ms ago, because of OPERATOR; 1.5s of its grace left\n"
    );
    let waterfall =
        Waterfall { budget_seconds: 1.0, queue_seconds: 0.2, run_seconds: 0.79, left_seconds: 0.01, worker: 3 };
    let ended = EndedState {
        outcome: "RUN_TIMEOUT".into(),
        started: true,
        rung: "forced".into(),
        waterfall: Some(waterfall),
        since: time("60s"),
        message: "first\nsecond".into(),
        program: Some(ProgramEnd { stderr: "a\x1b\nb".into(), ..ProgramEnd::default() }),
    };
    assert_eq!(
        shown(State::Ended(ended)),
        "1-2  kind resize  pool cpu\n  RUN_TIMEOUT 1m 0s ago: first\n    second\n  \
         1.0s budget: 200ms queued, 790ms running on worker 3, 10ms left\n  stop ladder: forced\n  \
         its standard error ended in\n    a\u{fffd}\n    b\n"
    );
}
