//! Jobs that did not start for lack of capacity or time.

use tonic::Code;
use waterwheel::proto::{Criticality, Job, WhenFull};

use super::{ACCEPTED, Expected, ONE_WORKER, Pushback, REFUSED, Row, check};
use crate::service::{Service, job, queued, waiting};

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
        let before = async |caller: &crate::service::Caller| {
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
    let before = async |caller: &crate::service::Caller| {
        caller.occupy(1).await;
        caller.queue(large.clone(), 0).await;
    };
    check(row, before, async |_, _| {}).await;
}

#[tokio::test]
async fn deadline_unreachable() {
    let facts = &["kind", "pool", "expected_wait_ms", "needed_budget_ms", "budget_ms"];
    let expected = Expected { reason: "DEADLINE_UNREACHABLE", facts, ..EXHAUSTED };
    // The pool knows one run of at least 1.5 s. Of a budget of 2 s, nine tenths remain without the reply margin, and
    // admission lets a job wait for half of that.
    let row = Row { timeout: Some("2S"), ..Row::of(echo(), expected) };
    let before = async |caller: &crate::service::Caller| {
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
    let important = async |_: &Service, caller: &crate::service::Caller| {
        caller.until(|pool| queued(pool) == 1).await;
        caller.leave(Job { when_full: WhenFull::Shed.into(), ..echo() });
    };
    check(row, async |caller| caller.occupy(1).await, important).await;
}

#[tokio::test]
async fn tenant_over_its_part_of_the_queue() {
    let of = |tenant: &str| Job { tenant: tenant.into(), ..echo() };
    let facts = &["kind", "pool", "tenant", "key", "queued_jobs", "queued_bytes", "most_jobs", "most_bytes"];
    let expected = Expected { reason: "TENANT_SHARE", facts, ..EXHAUSTED };
    let before = async |caller: &crate::service::Caller| {
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
    let before = async |caller: &crate::service::Caller| {
        caller.occupy(1).await;
        caller.queue(echo(), 0).await;
    };
    let drain = async |service: &Service, caller: &crate::service::Caller| {
        caller.until(|pool| waiting(pool) == 1).await;
        service.control.drain();
    };
    check(row, before, drain).await;
}

#[tokio::test]
async fn draining_while_it_is_queued() {
    let row = Row::of(echo(), Expected { facts: ACCEPTED, ..DRAINING });
    let kill = async |service: &Service, caller: &crate::service::Caller| {
        caller.until(|pool| queued(pool) == 1).await;
        service.control.kill();
    };
    check(row, async |caller| caller.occupy(1).await, kill).await;
}
