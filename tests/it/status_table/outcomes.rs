//! Jobs that did not start for lack of capacity or time, and jobs that were accepted and did not complete.

use tonic::Code;
use waterwheel::proto::{Criticality, Job, WhenFull};

use super::{ACCEPTED, CODES, Expected, ONE_WORKER, Pushback, REFUSED, Row, check, check_alone};
use crate::service::{Caller, Service, job, queued, waiting};

const STOPPED: Expected = Expected {
    code: Code::DeadlineExceeded,
    reason: "RUN_TIMEOUT",
    execution: "STARTED",
    pushback: Pushback::Never,
    facts: ACCEPTED,
    field: None,
};

/// Figures of a job that reached its deadline or run timeout.
const OUT_OF_TIME: &[&str] = &["job", "kind", "pool", "queue_ms", "run_ms", "limit"];

fn shortly() -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 })
}

#[tokio::test]
async fn expired_in_the_queue_at_its_queue_timeout() {
    let expected = Expected { reason: "EXPIRED_IN_QUEUE", execution: "NOT_STARTED", ..STOPPED };
    let row = Row::of(Job { queue_timeout: shortly(), ..job("echo", "") }, expected);
    for refusal in check(row, async |caller| caller.occupy(1).await, async |_, _| {}).await {
        assert!(refusal.facts()["queue_ms"].parse::<f64>().unwrap() >= 50.0, "{refusal:?}");
        assert_eq!(refusal.facts()["run_ms"], "0.000");
    }
}

#[tokio::test]
async fn expired_in_the_queue_at_the_deadline_of_its_call() {
    let expected = Expected { reason: "EXPIRED_IN_QUEUE", execution: "NOT_STARTED", ..STOPPED };
    let row = Row { timeout: Some("3000m"), ..Row::of(job("echo", ""), expected) };
    for refusal in check(row, async |caller| caller.occupy(1).await, async |_, _| {}).await {
        // The reply margin is limited to a tenth of the budget.
        let waited = refusal.facts()["queue_ms"].parse::<f64>().unwrap();
        assert!((2_690.0..20_000.0).contains(&waited), "{refusal:?}");
    }
}

#[tokio::test]
async fn stopped_at_its_run_timeout() {
    let expected = Expected { facts: OUT_OF_TIME, ..STOPPED };
    for refusal in check_alone(Row::of(Job { run_timeout: shortly(), ..job("sleep", "60000") }, expected)).await {
        assert_eq!(refusal.facts()["limit"], "run_timeout");
    }
}

#[tokio::test]
async fn stopped_at_the_deadline_of_its_call_while_running() {
    let expected = Expected { facts: OUT_OF_TIME, ..STOPPED };
    let row = Row { timeout: Some("3000m"), ..Row::of(job("forever", ""), expected) };
    for refusal in check_alone(row).await {
        assert_eq!(refusal.facts()["limit"], "deadline");
        let ran = refusal.facts()["run_ms"].parse::<f64>().unwrap();
        assert!((2_500.0..20_000.0).contains(&ran), "{refusal:?}");
    }
}

#[tokio::test]
async fn stopped_by_the_drain_while_running() {
    let killed = Expected { code: Code::Aborted, reason: "DRAIN_KILLED", ..STOPPED };
    // The kind is idempotent, so the caller may retry at once with another server.
    let again = Expected { code: Code::Unavailable, pushback: Pushback::Unsaid, ..killed };
    let kill = async |service: &Service, caller: &Caller| {
        caller.until(|pool| pool.in_flight == 1).await;
        service.control.kill();
    };
    for (kind, payload, expected) in [("sleep", "60000", killed), ("forever", "", killed), ("forever-again", "", again)]
    {
        check(Row::of(job(kind, payload), expected), async |_| {}, kill).await;
    }
}

#[tokio::test]
async fn handler_failed() {
    for (name, _, code) in CODES {
        let expected = Expected { code, reason: "HANDLER_FAILED", ..STOPPED };
        for refusal in check_alone(Row::of(job("wrong", name), expected)).await {
            assert_eq!(refusal.status.message(), "it says no");
        }
    }
}

/// A configuration with a kind that runs a shell script.
fn program(script: &str) -> String {
    format!(
        r#"{ONE_WORKER}
        [kind.program]
        pool = "one"
        exec = ["/bin/sh", "-c", '''{script}''']
        exit_codes = {{ "9" = "DATA_LOSS" }}
        stderr_tail = "3KiB"
        "#
    )
}

#[tokio::test]
async fn program_failed() {
    for (exit, code) in [("1", Code::Unknown), ("66", Code::NotFound), ("9", Code::DataLoss)] {
        let config = program(&format!("echo because >&2; exit {exit}"));
        let expected = Expected { code, reason: "HANDLER_FAILED", ..STOPPED };
        for refusal in check_alone(Row { config: &config, ..Row::of(job("program", ""), expected) }).await {
            assert!(refusal.status.message().ends_with(": because"), "{refusal:?}");
        }
    }
}

#[tokio::test]
async fn long_messages_in_any_alphabet_are_cut_to_fit_the_headers() {
    for text in ["x", "€", "%"] {
        let config = program(&format!("i=0; while [ $i -lt 3000 ]; do printf '{text}' >&2; i=$((i+1)); done; exit 1"));
        let expected = Expected { code: Code::Unknown, reason: "HANDLER_FAILED", ..STOPPED };
        for refusal in check_alone(Row { config: &config, ..Row::of(job("program", ""), expected) }).await {
            assert!(refusal.wire_bytes() > 3_000, "too much was cut: {}", refusal.wire_bytes());
        }
    }
}

#[tokio::test]
async fn handler_panicked() {
    let expected = Expected { code: Code::Internal, reason: "HANDLER_PANICKED", ..STOPPED };
    for kind in ["wrong", "wrong-blocking"] {
        check_alone(Row::of(job(kind, "nothing"), expected)).await;
    }
}

#[tokio::test]
async fn handler_factory_failed() {
    let expected = Expected {
        code: Code::Unavailable,
        reason: "HANDLER_UNAVAILABLE",
        execution: "NOT_STARTED",
        pushback: Pushback::After,
        ..STOPPED
    };
    for refusal in check_alone(Row::of(job("gone", ""), expected)).await {
        assert!(refusal.status.message().contains("there is none"), "{refusal:?}");
    }
}

#[tokio::test]
async fn process_crashed() {
    let config = program("kill -9 $$");
    let expected = Expected { code: Code::Internal, reason: "WORKER_CRASHED", ..STOPPED };
    for refusal in check_alone(Row { config: &config, ..Row::of(job("program", ""), expected) }).await {
        assert!(refusal.status.message().contains("SIGKILL"), "{refusal:?}");
    }
}

#[tokio::test]
async fn output_over_its_limit() {
    let facts = &["job", "kind", "pool", "queue_ms", "run_ms", "limit_bytes"];
    let expected = Expected { code: Code::ResourceExhausted, reason: "OUTPUT_TOO_LARGE", facts, ..STOPPED };
    for length in [1 + (1 << 10), 60 << 10] {
        check_alone(Row::of(job("small", vec![0; length]), expected)).await;
    }
}

const EXHAUSTED: Expected = Expected {
    code: Code::ResourceExhausted,
    reason: "QUEUE_FULL",
    execution: "NOT_STARTED",
    pushback: Pushback::After,
    facts: REFUSED,
    field: None,
};

fn echo() -> Job {
    Job { when_full: WhenFull::Reject.into(), ..job("echo", "hi") }
}

#[tokio::test]
async fn queue_full_at_once_or_until_the_deadline_of_a_waiting_caller() {
    let waits = Job { when_full: WhenFull::Wait.into(), ..echo() };
    for row in [Row::of(echo(), EXHAUSTED), Row { timeout: Some("4S"), ..Row::of(waits, EXHAUSTED) }] {
        let before = async |caller: &Caller| {
            caller.occupy(1).await;
            for ahead in 0..4 {
                caller.queue(echo(), ahead).await;
            }
        };
        check(row, before, async |_, _| {}).await;
    }
}

#[tokio::test]
async fn queue_full_by_bytes() {
    let config = ONE_WORKER.replace("jobs = 4", r#"jobs = 4, bytes = "64KiB""#);
    let large = Job { payload: vec![0; 40 << 10].into(), ..echo() };
    let row = Row { config: &config, ..Row::of(large.clone(), EXHAUSTED) };
    let before = async |caller: &Caller| {
        caller.occupy(1).await;
        caller.queue(large.clone(), 0).await;
    };
    check(row, before, async |_, _| {}).await;
}

#[tokio::test]
async fn deadline_unreachable() {
    let facts = &["kind", "pool", "expected_wait_ms", "needed_timeout_ms", "budget_ms"];
    let expected = Expected { reason: "DEADLINE_UNREACHABLE", facts, ..EXHAUSTED };
    // The pool knows one run of at least 1.5 s. Of a budget of 2 s, nine tenths remain without the reply margin, and
    // admission lets a job wait for half of that.
    let row = Row { timeout: Some("2S"), ..Row::of(echo(), expected) };
    let before = async |caller: &Caller| {
        caller.leave(job("sleep", "1500")).await.unwrap().unwrap();
        caller.occupy(1).await;
        caller.queue(job("sleep", "60000"), 0).await;
    };
    let refusals = check(row, before, async |_, _| {}).await;
    for refusal in refusals {
        let facts = refusal.facts();
        let value = |name: &str| facts[name].parse::<f64>().unwrap();
        assert!(value("expected_wait_ms") > 1_400.0 && value("budget_ms") < 2_000.0, "{facts:?}");
        assert!(refusal.status.message().contains("before its deadline"), "{refusal:?}");
    }
}

#[tokio::test]
async fn evicted_for_a_more_important_job() {
    let config = ONE_WORKER.replace("jobs = 4", "jobs = 1");
    let batch = Job { criticality: Criticality::Sheddable.into(), ..echo() };
    let expected = Expected { reason: "SHED", facts: ACCEPTED, ..EXHAUSTED };
    let row = Row { config: &config, ..Row::of(batch, expected) };
    let important = async |_: &Service, caller: &Caller| {
        caller.until(|pool| queued(pool) == 1).await;
        caller.leave(Job { when_full: WhenFull::Shed.into(), ..echo() });
    };
    check(row, async |caller| caller.occupy(1).await, important).await;
}

/// Of two jobs with this policy in a full queue, the newer one stays.
#[tokio::test]
async fn replaced_by_a_newer_job() {
    let config = ONE_WORKER.replace("jobs = 4", "jobs = 1");
    let newest = || Job { when_full: WhenFull::DropOldest.into(), ..echo() };
    let expected =
        Expected { code: Code::Aborted, reason: "REPLACED", pushback: Pushback::Never, facts: ACCEPTED, ..EXHAUSTED };
    let row = Row { config: &config, ..Row::of(newest(), expected) };
    let newer = async |_: &Service, caller: &Caller| {
        caller.until(|pool| queued(pool) == 1).await;
        caller.leave(newest());
    };
    check(row, async |caller| caller.occupy(1).await, newer).await;
}

#[tokio::test]
async fn tenant_over_its_part_of_the_queue() {
    let of = |tenant: &str| Job { tenant: tenant.into(), ..echo() };
    let facts = &["kind", "pool", "tenant", "key", "queued_jobs", "queued_bytes", "most_jobs", "most_bytes"];
    let expected = Expected { reason: "TENANT_SHARE", facts, ..EXHAUSTED };
    let before = async |caller: &Caller| {
        caller.occupy(1).await;
        caller.queue(of("a"), 0).await;
        caller.queue(of("b"), 1).await;
    };
    check(Row::of(of("a"), expected), before, async |_, _| {}).await;
}

const DRAINING: Expected =
    Expected { code: Code::Unavailable, reason: "DRAINING", pushback: Pushback::Unsaid, ..EXHAUSTED };

#[tokio::test]
async fn draining_while_its_caller_waits_for_capacity() {
    let config = ONE_WORKER.replace("jobs = 4", "jobs = 1");
    let waits = Job { when_full: WhenFull::Wait.into(), ..echo() };
    let row = Row { config: &config, ..Row::of(waits, DRAINING) };
    let before = async |caller: &Caller| {
        caller.occupy(1).await;
        caller.queue(echo(), 0).await;
    };
    let drain = async |service: &Service, caller: &Caller| {
        caller.until(|pool| waiting(pool) == 1).await;
        service.control.drain();
    };
    check(row, before, drain).await;
}

#[tokio::test]
async fn draining_while_it_is_queued() {
    let row = Row::of(echo(), Expected { facts: ACCEPTED, ..DRAINING });
    let kill = async |service: &Service, caller: &Caller| {
        caller.until(|pool| queued(pool) == 1).await;
        service.control.kill();
    };
    check(row, async |caller| caller.occupy(1).await, kill).await;
}
