//! Threads of blocking kinds. Each takes its next job itself, and every caller gets an answer.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use tokio::runtime::Builder;
use waterwheel::{
    Job, Output, Pool,
    handler::{Kind, StopReason},
    model::HandlerError,
    pool::{Ticket, set_shard},
};

use crate::support::{assert_idle, blocking_kind, meet, meeting, pool};

/// Longer than any step takes that is not stuck.
const LONG: Duration = Duration::from_secs(30);

/// A kind that sends the payload of each job that starts. The job `stop` runs until it is cancelled.
fn report(started: &SyncSender<String>) -> Kind {
    let started = started.clone();
    blocking_kind("report", move |job, cx| {
        let name = String::from_utf8_lossy(&job.payload).into_owned();
        started.send(name.clone()).expect("the test listens");
        if name != "stop" {
            return Ok(Output::new(name));
        }
        while !cx.is_cancelled() {
            thread::yield_now();
        }
        started.send(format!("{:?}", cx.stop_reason())).expect("the test listens");
        Err(HandlerError::Stopped)
    })
}

/// Submits jobs with these payloads to a pool with one worker, and polls each once, so that the first one starts.
fn submit(pool: &Pool, names: &[&'static str]) -> Vec<Ticket> {
    let submit = |name: &&'static str| pool.try_submit(Job::new("report", *name)).expect("accepted");
    let mut tickets: Vec<_> = names.iter().map(submit).collect();
    for ticket in tickets.iter_mut().rev() {
        // The first job may have ended already.
        let _ = futures_util::FutureExt::now_or_never(ticket);
    }
    tickets
}

fn next(started: &Receiver<String>) -> String {
    started.recv_timeout(LONG).expect("a job begins")
}

#[tokio::test]
async fn a_blocking_worker_runs_jobs_while_the_serving_thread_is_blocked() {
    let (sender, started) = sync_channel(8);
    let pool = pool(1).kind(report(&sender)).build();
    let names = ["one", "two", "three"];
    let _tickets = submit(&pool, &names);
    // This thread is the only serving thread. It is blocked until all jobs have started.
    for name in names {
        assert_eq!(next(&started), name);
    }
}

#[tokio::test]
async fn dropping_a_ticket_stops_its_job_before_the_start_was_observed() {
    let (sender, started) = sync_channel(8);
    let pool = pool(1).kind(report(&sender)).kind(meeting(1)).build();
    let mut tickets = submit(&pool, &["one", "stop", "never"]);
    assert_eq!((next(&started), next(&started)), ("one".into(), "stop".into()));
    let (never, stop) = (tickets.pop(), tickets.pop());
    drop(never);
    drop(stop);
    assert_eq!(next(&started), format!("{:?}", Some(StopReason::Caller)));
    meet(&pool, 1).await;
    let counts = pool.stats().counts;
    assert_eq!((counts.cancelled, counts.completed), (2, 2), "the first job and the meeting");
    assert!(started.try_recv().is_err(), "a job that was cancelled in the queue never ran");
    assert_idle(&pool, 1);
}

#[test]
fn outcomes_reach_callers_after_the_runtime_was_replaced() {
    let (sender, started) = sync_channel(8);
    let pool = pool(1).kind(report(&sender)).build();
    set_shard(0);
    for _ in 0..2 {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for ticket in submit(&pool, &["one", "two", "three"]) {
                tokio::time::timeout(LONG, ticket).await.expect("its outcome is delivered").expect("it completes");
            }
        });
        // The caller of this job ends with the runtime, so its outcome is not delivered.
        runtime.block_on(async { submit(&pool, &["one"]).into_iter().for_each(drop) });
    }
    assert_eq!(started.try_iter().filter(|name| name == "three").count(), 2);
}
