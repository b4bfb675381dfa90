//! 100,000 submits from 64 connections, with cancels, panics, deadlines and failures at random: each call ends once,
//! and the books of the servers and of their callers agree.
//!
//! The servers are processes, and in the middle the first one gets SIGTERM. Callers that it turns away go on with the
//! second one, as they would behind a load balancer, so that both ends of the drain see the whole load. A few of its
//! jobs never end, so that its receipt has something to name.

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
    server::{Books, HELD},
};
use crate::{
    process::{PATIENCE, Process},
    service::{Caller, counts, ended, queued},
};

const CONNECTIONS: usize = 64;
const CALLS: u64 = 100_000;
/// Calls that each connection has open at once.
const ABREAST: usize = 2;
const SEED: u64 = 0x5eed_0f1e_d6e2;

/// What a server says when it has gone.
#[derive(Debug)]
struct Leaving {
    /// The books of its pools.
    books: Vec<Books>,
    /// Jobs that ended during the drain, by the receipt.
    finished: u64,
    /// What the receipt names, by request id.
    lost: HashMap<String, Lost>,
}

#[tokio::test]
async fn every_call_ends_once_and_the_books_agree() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["first", "second"].map(|name| dir.path().join(name));
    let (first, second) = (Books::serve(&files[0]).await, Books::serve(&files[1]).await);
    // The calls whose jobs never end are calls, too.
    let run = Arc::new(Run::new(CALLS - 2 * u64::from(HELD)));
    let mut callers = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let clients = [first.public.client().await, second.public.client().await];
        for lane in 0..ABREAST {
            let seed = SEED + (connection * ABREAST + lane) as u64;
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
    let [first, second] = [Leaving::of(first, &files[0]).await, Leaving::of(second, &files[1]).await];
    println!("{:?}\n{first:?}\n{second:?}", tally.ends);

    assert_eq!(tally.total(), CALLS);
    agree(&tally, &[&first.books[..], &second.books].concat());
    assert!(second.lost.is_empty(), "{:?}", second.lost);
    first.compare(&tally, ended_before);
    for leaving in [first, second] {
        let completed: u64 = leaving.books.iter().map(|books| books.completed).sum();
        assert!(completed > CALLS / 5, "the drain was not in the middle: {:?}", leaving.books);
    }
}

/// Gives a server jobs that never end, some that run and as many that are queued, and sends it SIGTERM. Returns what
/// the callers of those jobs were told, and how many jobs had ended before.
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

/// Whether nothing runs, and every worker came back.
fn is_at_rest(pool: &PoolStats) -> bool {
    pool.in_flight == 0 && pool.workers.iter().all(|worker| worker.state() == WorkerState::Idle)
}

impl Leaving {
    /// Waits for the end of a server that got its signal.
    async fn of(process: Process, books: &Path) -> Self {
        let ended = process.ended().await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut lost = HashMap::new();
        for one in ended.receipt["lost"].as_array().unwrap() {
            let running = one["while"] == "running";
            assert!(running || one["while"] == "queued", "{one}");
            let named_before = lost.insert(text(&one["request_id"]), Lost { job: text(&one["job"]), running });
            assert_eq!(named_before, None, "named twice: {one}");
        }
        assert_eq!(ended.code, Some(if lost.is_empty() { 0 } else { 3 }), "{ended:?}");
        let books = Books::read(books);
        books.iter().for_each(balance);
        Self { books, finished: ended.receipt["finished"].as_u64().unwrap(), lost }
    }

    /// The receipt names what callers were told of, and besides only what was faster than the drain that stopped it.
    fn compare(&self, tally: &Tally, ended_before: u64) {
        let mut others = self.lost.clone();
        for (request_id, told) in &tally.lost {
            assert_eq!(others.remove(request_id).as_ref(), Some(told), "{request_id}");
        }
        for (request_id, named) in others {
            assert!(tally.faster.contains(&request_id), "its caller was not told: {request_id}, {named:?}");
        }
        let held = tally.lost.iter().filter(|(request_id, _)| request_id.starts_with("held-"));
        let (running, queued): (Vec<_>, Vec<_>) = held.partition(|(_, lost)| lost.running);
        assert_eq!((running.len(), queued.len()), (HELD as usize, HELD as usize));
        let ended: u64 = self.books.iter().map(Books::ended).sum();
        let most = ended - ended_before - self.lost.len() as u64;
        assert!((1..=most).contains(&self.finished), "{} finished of {most}", self.finished);
    }
}

/// Accepted jobs are the sum of their ends: nothing is left, nothing ended twice.
fn balance(books: &Books) {
    assert_eq!(books.accepted, books.ended(), "{books:?}");
    assert_eq!((books.held, books.workers_out), ([0; 4], 0), "{books:?}");
    let Books { completed, failed, cancelled, expired, panicked, .. } = *books;
    if books.pool == "mixed" {
        for (end, count) in [completed, failed, cancelled, expired, panicked].into_iter().enumerate() {
            assert!(count > 0, "the mix has no job that ends the way {end}: {books:?}");
        }
    }
}

/// What callers were told is what the servers counted; where a caller left first, a server counted something, too.
fn agree(tally: &Tally, books: &[Books]) {
    let sum = |of: &dyn Fn(&Books) -> u64| books.iter().map(of).sum::<u64>();
    let unseen = tally.unseen();
    let between = |name: &str, told: u64, counted: u64| {
        assert!(told <= counted && counted <= told + unseen, "{name}: {told} told, {counted} counted, {unseen} unseen");
    };
    between("completed", tally.of("OK"), sum(&|books| books.completed));
    between("failed", tally.of("HANDLER_FAILED"), sum(&|books| books.failed));
    between("panicked", tally.of("HANDLER_PANICKED"), sum(&|books| books.panicked));
    between("expired", tally.of("RUN_TIMEOUT") + tally.of("EXPIRED_IN_QUEUE"), sum(&|books| books.expired));
    between("shed", tally.of("SHED"), sum(&|books| books.shed));
    let stopped = tally.of("CANCELLED") + tally.of("DRAIN_KILLED") + tally.of("DRAINED");
    between("cancelled", stopped, sum(&|books| books.cancelled));
    for reason in Reason::REFUSALS.map(Reason::name) {
        between(reason, tally.of(reason), sum(&|books| books.rejected[reason]));
    }
    let seen = sum(&|books| books.accepted + books.rejected.values().sum::<u64>());
    let reached = tally.total() - tally.of("closed");
    assert!(seen <= reached, "the servers saw {seen} calls of {reached}: {:?}", tally.ends);
    assert!(seen + unseen >= reached, "{reached} calls reached the servers, which saw {seen}: {:?}", tally.ends);
    let turned_away = tally.of("DRAINING") + tally.of("closed");
    assert!((1..CALLS / 100).contains(&turned_away), "{turned_away} calls were turned away: {:?}", tally.ends);
}
