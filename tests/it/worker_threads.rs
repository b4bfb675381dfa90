//! The threads of blocking kinds: each takes its next job itself, and no caller is left without an answer meanwhile.

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

/// Longer than anything takes that is not stuck.
const LONG: Duration = Duration::from_secs(30);

/// Names the job that runs; `stop` runs until it is told to.
fn tell(told: &SyncSender<String>) -> Kind {
    let told = told.clone();
    blocking_kind("tell", move |job, cx| {
        let name = String::from_utf8_lossy(&job.payload).into_owned();
        told.send(name.clone()).expect("the test listens");
        if name != "stop" {
            return Ok(Output::new(name));
        }
        while !cx.is_cancelled() {
            thread::yield_now();
        }
        told.send(format!("{:?}", cx.cancel_token().reason())).expect("the test listens");
        Err(HandlerError::Stopped)
    })
}

/// Submits jobs of these names to a pool with one worker, and polls each once, so that the first one begins.
fn submit(pool: &Pool, names: &[&'static str]) -> Vec<Ticket> {
    let submit = |name: &&'static str| pool.try_submit(Job::new("tell", *name)).expect("there is room");
    let mut tickets: Vec<_> = names.iter().map(submit).collect();
    for ticket in tickets.iter_mut().rev() {
        // The first may have ended by now.
        let _ = futures_util::FutureExt::now_or_never(ticket);
    }
    tickets
}

fn next(told: &Receiver<String>) -> String {
    told.recv_timeout(LONG).expect("a job begins")
}

#[tokio::test]
async fn a_worker_goes_on_while_the_serving_thread_does_not() {
    let (sender, told) = sync_channel(8);
    let pool = pool(1).kind(tell(&sender)).build();
    let names = ["one", "two", "three"];
    let _tickets = submit(&pool, &names);
    // This thread, the only one that serves, is blocked until all of them have begun.
    for name in names {
        assert_eq!(next(&told), name);
    }
}

#[tokio::test]
async fn a_caller_that_leaves_before_it_heard_of_the_begin_stops_its_job() {
    let (sender, told) = sync_channel(8);
    let pool = pool(1).kind(tell(&sender)).kind(meeting(1)).build();
    let mut tickets = submit(&pool, &["one", "stop", "never"]);
    assert_eq!((next(&told), next(&told)), ("one".into(), "stop".into()));
    let (never, stop) = (tickets.pop(), tickets.pop());
    drop(never);
    drop(stop);
    assert_eq!(next(&told), format!("{:?}", Some(StopReason::Caller)));
    meet(&pool, 1).await;
    let counts = pool.stats().counts;
    assert_eq!((counts.cancelled, counts.completed), (2, 2), "the first one, and the meeting");
    assert!(told.try_recv().is_err(), "what left the queue never ran");
    assert_idle(&pool, 1);
}

#[test]
fn reports_find_the_runtime_that_serves_and_the_one_after_it() {
    let (sender, told) = sync_channel(8);
    let pool = pool(1).kind(tell(&sender)).build();
    set_shard(0);
    for _ in 0..2 {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for ticket in submit(&pool, &["one", "two", "three"]) {
                tokio::time::timeout(LONG, ticket).await.expect("its end is told").expect("it completes");
            }
        });
        // A job whose caller is gone with the runtime: its end goes nowhere, and nobody waits for it.
        runtime.block_on(async { submit(&pool, &["one"]).into_iter().for_each(drop) });
    }
    assert_eq!(told.try_iter().filter(|name| name == "three").count(), 2);
}
