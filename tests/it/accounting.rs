//! 100,000 submits from 64 connections, with random cancellations, panics, deadlines and failures. Each call ends
//! once, and the counters of the servers and of their callers agree.
//!
//! The servers are separate processes. The first one gets SIGTERM in the middle of the test. Callers that it refuses
//! continue with the second one, as behind a load balancer, so that the load stays the same during the drain. A few of
//! its jobs never end, so that its receipt lists lost jobs.

mod callers;
mod server;

use std::{collections::HashMap, path::Path, sync::Arc};

use rand::{SeedableRng, rngs::StdRng};
use rustix::process::Signal;
use serde_json::Value;
use tokio::{task::JoinSet, time::timeout};
use waterwheel::{
    model::Reason,
    proto::{PoolStats, WorkerState},
};

use self::{
    callers::{Lost, Run, Tally, call_again, hold},
    server::{Counters, HELD},
};
use crate::{
    process::{PATIENCE, Process},
    service::{Caller, counts, ended, queued},
};

const CONNECTIONS: usize = 64;
const CALLS: u64 = 100_000;
/// Concurrent calls on each connection.
const CONCURRENT: usize = 2;
const SEED: u64 = 0x5eed_0f1e_d6e2;

/// The counters and the receipt of a server that has exited.
#[derive(Debug)]
struct Exited {
    /// The counters of its pools.
    counters: Vec<Counters>,
    /// Jobs that ended during the drain, from the receipt.
    finished: u64,
    /// Lost jobs from the receipt, by request id.
    lost: HashMap<String, Lost>,
}

#[tokio::test]
async fn every_call_ends_once_and_the_counters_of_servers_and_callers_agree() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["first", "second"].map(|name| dir.path().join(name));
    let (first, second) = (Counters::serve(&files[0]).await, Counters::serve(&files[1]).await);
    // The total includes the calls whose jobs never end.
    let run = Arc::new(Run::new(CALLS - 2 * u64::from(HELD)));
    let mut callers = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let clients = [first.public.client().await, second.public.client().await];
        for number in 0..CONCURRENT {
            let seed = SEED + (connection * CONCURRENT + number) as u64;
            callers.spawn(call_again(clients.clone(), Arc::clone(&run), StdRng::seed_from_u64(seed)));
        }
    }
    let terminated = async {
        run.half.notified().await;
        terminate(&first, &run).await
    };
    let (tallies, (held, ended_before)) = tokio::join!(timeout(PATIENCE * 60, callers.join_all()), terminated);
    let tallies = tallies.unwrap_or_else(|_| panic!("{:?} calls left", run.left));
    let tally = tallies.into_iter().fold(held, Tally::merge);
    let observer = Caller::of(second.public).await;
    observer.until_all(|pools| pools.iter().all(is_at_rest)).await;
    second.signal(Signal::TERM);
    let [first, second] = [Exited::of(first, &files[0]).await, Exited::of(second, &files[1]).await];
    println!("{:?}\n{first:?}\n{second:?}", tally.ends);

    assert_eq!(tally.total(), CALLS);
    agree(&tally, &[&first.counters[..], &second.counters].concat());
    assert!(second.lost.is_empty(), "{:?}", second.lost);
    first.compare(&tally, ended_before);
    for exited in [first, second] {
        let completed: u64 = exited.counters.iter().map(|counters| counters.completed).sum();
        assert!(completed > CALLS / 5, "the drain was not in the middle of the calls: {:?}", exited.counters);
    }
}

/// Fills the pool `held` of a server with running and queued jobs that never end, and sends SIGTERM to the server.
/// Returns how the calls of those jobs ended, and how many jobs had ended before the signal.
async fn terminate(process: &Process, run: &Run) -> (Tally, u64) {
    let caller = Caller::of(process.public).await;
    let mut calls = JoinSet::new();
    for number in 0..2 * HELD {
        calls.spawn(hold(caller.0.clone(), number));
    }
    let is_full = |pool: &PoolStats| (pool.in_flight, queued(pool)) == (HELD, HELD.into());
    caller.until_all(|pools| pools.iter().any(|pool| pool.name == "held" && is_full(pool))).await;
    let ended_before = caller.stats().await.pools.iter().map(counts).map(ended).sum();
    run.terminate();
    process.signal(Signal::TERM);
    (calls.join_all().await.into_iter().fold(Tally::default(), Tally::merge), ended_before)
}

/// Whether no job runs and every worker is idle.
fn is_at_rest(pool: &PoolStats) -> bool {
    pool.in_flight == 0 && pool.workers.iter().all(|worker| worker.state() == WorkerState::Idle)
}

impl Exited {
    /// Waits until a server has exited after its signal.
    async fn of(process: Process, counters: &Path) -> Self {
        let ended = process.ended().await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut lost = HashMap::new();
        for one in ended.receipt["lost"].as_array().unwrap() {
            let running = one["while"] == "running";
            assert!(running || one["while"] == "queued", "{one}");
            let named_before = lost.insert(text(&one["request_id"]), Lost { job: text(&one["job"]), running });
            assert_eq!(named_before, None, "listed twice: {one}");
        }
        assert_eq!(ended.code, Some(if lost.is_empty() { 0 } else { 3 }), "{ended:?}");
        let counters = Counters::read(counters);
        counters.iter().for_each(balance);
        Self { counters, finished: ended.receipt["finished"].as_u64().unwrap(), lost }
    }

    /// Checks that the receipt lists all lost jobs of the callers. Its other jobs must belong to calls that ended for
    /// another reason before the drain's status could reach them.
    fn compare(&self, tally: &Tally, ended_before: u64) {
        let mut others = self.lost.clone();
        for (request_id, lost) in &tally.lost {
            assert_eq!(others.remove(request_id).as_ref(), Some(lost), "{request_id}");
        }
        for (request_id, listed) in others {
            assert!(tally.faster.contains(&request_id), "the call ended otherwise: {request_id}, {listed:?}");
        }
        let held = tally.lost.iter().filter(|(request_id, _)| request_id.starts_with("held-"));
        let (running, queued): (Vec<_>, Vec<_>) = held.partition(|(_, lost)| lost.running);
        assert_eq!((running.len(), queued.len()), (HELD as usize, HELD as usize));
        let ended: u64 = self.counters.iter().map(Counters::ended).sum();
        let most = ended - ended_before - self.lost.len() as u64;
        assert!((1..=most).contains(&self.finished), "{} finished of {most}", self.finished);
    }
}

/// Checks that each accepted job ended once: the counts of all outcomes add up to the accepted jobs.
fn balance(counters: &Counters) {
    assert_eq!(counters.accepted, counters.ended(), "{counters:?}");
    assert_eq!((counters.held, counters.workers_out), ([0; 4], 0), "{counters:?}");
    let Counters { completed, failed, cancelled, expired, panicked, .. } = *counters;
    if counters.pool == "mixed" {
        for (end, count) in [completed, failed, cancelled, expired, panicked].into_iter().enumerate() {
            assert!(count > 0, "no job ended with outcome {end}: {counters:?}");
        }
    }
}

/// Checks that callers and servers count the same. A call that its caller cancelled may have any outcome on the server.
fn agree(tally: &Tally, counters: &[Counters]) {
    let sum = |of: &dyn Fn(&Counters) -> u64| counters.iter().map(of).sum::<u64>();
    let unseen = tally.unseen();
    let between = |name: &str, seen: u64, counted: u64| {
        assert!(
            seen <= counted && counted <= seen + unseen,
            "{name}: callers saw {seen}, servers counted {counted}, {unseen} calls ended at the caller"
        );
    };
    between("completed", tally.of("OK"), sum(&|counters| counters.completed));
    between("failed", tally.of("HANDLER_FAILED"), sum(&|counters| counters.failed));
    between("panicked", tally.of("HANDLER_PANICKED"), sum(&|counters| counters.panicked));
    between("expired", tally.of("RUN_TIMEOUT") + tally.of("EXPIRED_IN_QUEUE"), sum(&|counters| counters.expired));
    between("shed", tally.of("SHED"), sum(&|counters| counters.shed));
    let stopped = tally.of("CANCELLED") + tally.of("DRAIN_KILLED") + tally.of("DRAINED");
    between("cancelled", stopped, sum(&|counters| counters.cancelled));
    for reason in Reason::REFUSALS.map(Reason::name) {
        between(reason, tally.of(reason), sum(&|counters| counters.rejected[reason]));
    }
    let seen = sum(&|counters| counters.accepted + counters.rejected.values().sum::<u64>());
    let reached = tally.total() - tally.of("closed");
    assert!(seen <= reached, "the servers saw {seen} calls of {reached}: {:?}", tally.ends);
    assert!(seen + unseen >= reached, "{reached} calls reached the servers, which saw {seen}: {:?}", tally.ends);
    let refused = tally.of("DRAINING") + tally.of("closed");
    assert!((1..CALLS / 100).contains(&refused), "the drain refused {refused} calls: {:?}", tally.ends);
}
