//! Promises that are more than answers to lines: waiting, leases, retries, shared transactions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{
    BOUNDS, TestClock,
    cluster::Cluster,
    memory,
    postgres::{PATIENCE, replica, store},
    shared_memory, sqlite,
};
use crate::{
    model::{Job, Output, Reason},
    store::{
        Action, Claimed, Clock, Demand, Extent, JobState, JobStore, NewJob, Next, RetryPolicy, Room, SessionId, Settle,
        Submission, Timestamp, Token, open_memory,
    },
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_caller_is_woken_by_the_end() {
    let (clock, directory) = (TestClock::new(), TempDir::new().expect("a directory"));
    for store in [memory(&clock), sqlite(&directory, &clock)] {
        ends_while_awaited(&*store, &*store).await;
        store.close().await;
    }
    let Some(cluster) = Cluster::start().await else { return };
    // The end is another replica's.
    let (first, _server) = store(&cluster, "waiting", BOUNDS).await;
    let second = replica(&cluster, "waiting", BOUNDS);
    ends_while_awaited(&*first, &*second).await;
    first.close().await;
    second.close().await;
}

#[tokio::test]
async fn servers_of_a_store_know_the_jobs_of_the_others_while_their_leases_last() {
    let clock = TestClock::new();
    let store = shared_memory(&clock);
    let [short, long] = [10, 20].map(Duration::from_secs);
    let [one, other] = [store.open_session(short).await.unwrap(), store.open_session(long).await.unwrap()];
    let of = |jobs| Demand::from([("p".to_owned(), jobs)]);
    let share = async |session, jobs| store.share_demand(session, of(jobs)).await.unwrap();
    assert_eq!(share(one, 3).await, [Demand::new()], "the other has not said anything yet");
    assert_eq!(share(other, 4).await, [of(3)]);
    assert_eq!(share(one, 5).await, [of(4)]);
    assert_eq!(share(other, 0).await, [of(5)]);
    clock.advance(short);
    assert_eq!(share(other, 0).await, []);
    let alone = memory(&clock);
    let session = alone.open_session(long).await.unwrap();
    assert_eq!(alone.share_demand(session, of(1)).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watching_caller_is_told_of_each_change() {
    let (clock, directory) = (TestClock::new(), TempDir::new().expect("a directory"));
    for store in [memory(&clock), sqlite(&directory, &clock)] {
        tells_of_changes(&*store, &*store).await;
        store.close().await;
    }
    let Some(cluster) = Cluster::start().await else { return };
    let (first, _server) = store(&cluster, "watching", BOUNDS).await;
    let second = replica(&cluster, "watching", BOUNDS);
    tells_of_changes(&*first, &*first).await;
    // The changes are another replica's.
    tells_of_changes(&*first, &*second).await;
    first.close().await;
    second.close().await;
}

async fn tells_of_changes(watcher: &dyn JobStore, worker: &dyn JobStore) {
    let session = worker.open_session(Duration::from_secs(60)).await.expect("a session");
    let room = Room { session, kinds: [("k".to_owned(), 1)].into(), bytes: usize::MAX };
    let jobs = vec![NewJob::new("watched", "p", Job::new("k", "x"))];
    watcher.submit(Submission { jobs, session: None }).await.expect("an answer");
    let mut changed = watcher.wakes().watch("watched");
    // Notifications may be spurious.
    let mut until = async |wanted: (JobState, u32, bool)| {
        let reached = async {
            loop {
                let job = watcher.get("watched", Extent::Bare).await.expect("an answer").expect("the job");
                if (job.state, job.starts, job.cancel_requested) == wanted {
                    return;
                }
                changed.changed().await.expect("the store has the sender");
            }
        };
        timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("it is not told of {wanted:?}"));
    };
    let claimed = tokio::join!(until((JobState::Running, 1, false)), worker.claim(room)).1.expect("a job");
    let cancel = worker.change(vec!["watched".into()], Action::Cancel);
    tokio::join!(until((JobState::Running, 1, true)), cancel).1.expect("an answer");
    let back = Settle { next: Next::GiveBack, ..success(claimed.into_iter().next().expect("the job")) };
    tokio::join!(until((JobState::Cancelled, 1, false)), worker.settle(vec![back])).1.expect("an answer");
    watcher.change(vec!["watched".into()], Action::Delete).await.expect("an answer");
}

pub(super) async fn ends_while_awaited(waiter: &dyn JobStore, worker: &dyn JobStore) {
    assert!(waiter.wait("none".into()).await.expect("an answer").is_none());
    let session = worker.open_session(Duration::from_secs(60)).await.expect("a session");
    let jobs = vec![NewJob::new("a", "p", Job::new("k", "x"))];
    waiter.submit(Submission { jobs, session: None }).await.expect("an answer");
    let work = async {
        worker.wakes().ready().await;
        finish(worker, session).await
    };
    let (awaited, ended) = tokio::join!(timeout(PATIENCE, waiter.wait("a".into())), work);
    assert_eq!(ended, 1);
    let job = awaited.expect("it is woken").expect("an answer").expect("the job");
    assert_eq!(job.output.bytes, "x");
}

/// Claims all that is ready, and ends it.
async fn finish(store: &dyn JobStore, session: SessionId) -> usize {
    let room = Room { session, kinds: [("k".to_owned(), 1000)].into(), bytes: usize::MAX };
    let ends = store.claim(room).await.expect("jobs").into_iter().map(success).collect();
    let states = store.settle(ends).await.expect("answers");
    assert!(states.iter().all(|state| *state == Some(JobState::Succeeded)), "{states:?}");
    states.len()
}

pub(super) fn success(job: Claimed) -> Settle {
    let next = Next::Succeeded(Output { bytes: job.request.job.payload, content_type: String::new() });
    let (worker, message) = (String::new(), String::new());
    Settle { token: job.token, worker, reason: Reason::Completed, code: 0, message, next }
}

/// Callers share a transaction: a void token of one must not spoil the valid token of another.
#[tokio::test]
async fn a_void_token_beside_a_valid_one_changes_nothing() {
    let (clock, directory) = (TestClock::new(), TempDir::new().expect("a directory"));
    for store in [memory(&clock), sqlite(&directory, &clock)] {
        let jobs = vec![NewJob::new("a", "p", Job::new("k", "x"))];
        store.submit(Submission { jobs, session: None }).await.expect("an answer");
        let mut ends = Vec::new();
        for _ in 0..2 {
            let session = store.open_session(Duration::from_secs(1)).await.expect("a session");
            let room = Room { session, kinds: [("k".to_owned(), 1)].into(), bytes: usize::MAX };
            ends.extend(store.claim(room).await.expect("the job").into_iter().map(success));
            if ends.len() == 1 {
                let back = Settle { next: Next::GiveBack, ..ends[0].clone() };
                store.settle(vec![back]).await.expect("an answer");
            }
        }
        ends.push(ends[1].clone());
        let states = store.settle(ends).await.expect("answers");
        assert_eq!(states, [None, Some(JobState::Succeeded), None]);
        store.close().await;
    }
}

/// An operation whose answer was lost leaves leases that its session does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_gives_back_leases_by_name() {
    let (clock, directory) = (TestClock::new(), TempDir::new().expect("a directory"));
    let mut stores = vec![memory(&clock), sqlite(&directory, &clock)];
    let cluster = Cluster::start().await;
    if let Some(cluster) = &cluster {
        stores.push(replica(cluster, "postgres", BOUNDS));
    }
    for store in stores {
        let jobs = ["a", "b", "c"].map(|id| NewJob::new(id, "p", Job::new("k", id).ordering_key(id))).into();
        store.submit(Submission { jobs, session: None }).await.expect("an answer");
        let session = store.open_session(Duration::from_secs(60)).await.expect("a session");
        let room = Room { session, kinds: [("k".to_owned(), 9)].into(), bytes: usize::MAX };
        let mut claimed = store.claim(room.clone()).await.expect("three jobs");
        let mut leased = store.leased(session).await.expect("its leases");
        leased.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(leased, claimed.iter().map(|job| job.token.clone()).collect::<Vec<_>>());
        store.change(vec!["c".into()], Action::Cancel).await.expect("an answer");
        let (cancelled, lost) = (claimed.pop().expect("the third"), claimed.pop().expect("the second"));
        let void = Token { attempt: 9, ..claimed[0].token.clone() };
        let removed = Token { row: 0, ..claimed[0].token.clone() };
        let named = [&cancelled.token, &lost.token, &void, &removed].map(Clone::clone).into();
        store.release(session, named).await.expect("they are given back");
        assert_eq!(store.leased(session).await.expect("its leases"), [claimed[0].token.clone()]);
        let again = store.claim(room).await.expect("the second");
        let ids: Vec<_> = again.iter().map(|job| (&*job.token.id, job.failures, job.crashes)).collect();
        assert_eq!(ids, [("b", 0, 0)]);
        let ends = [lost, cancelled].into_iter().chain(claimed).chain(again).map(success).collect();
        let states = store.settle(ends).await.expect("answers");
        assert_eq!(states, [None, None, Some(JobState::Succeeded), Some(JobState::Succeeded)]);
        let job = store.get("c", Extent::Output).await.expect("an answer").expect("the job");
        assert_eq!((job.state, job.attempts.len()), (JobState::Cancelled, 0));
        store.close().await;
    }
}

#[test]
fn retries_back_off_until_their_bound() {
    let retry = |seconds| Next::Retry { after: Duration::from_millis(seconds) };
    let cases = [
        ("the first failure", 0, 0, Reason::HandlerFailed, true, 1.0, retry(1000)),
        ("the third failure", 2, 0, Reason::HandlerFailed, true, 1.0, retry(4000)),
        ("half the jitter", 2, 0, Reason::HandlerFailed, true, 0.5, retry(2000)),
        ("no jitter", 2, 0, Reason::HandlerFailed, true, 0.0, retry(0)),
        ("the last attempt", 19, 0, Reason::HandlerFailed, true, 1.0, Next::Failed),
        ("the largest delay", 18, 0, Reason::HandlerFailed, true, 1.0, retry(600_000)),
        ("not retryable", 0, 0, Reason::HandlerFailed, false, 1.0, Next::Failed),
        ("two crashes", 0, 1, Reason::WorkerCrashed, true, 1.0, retry(1000)),
        ("three crashes", 0, 2, Reason::WorkerCrashed, true, 1.0, Next::Failed),
        ("a lost worker, at the last attempt", 19, 1, Reason::WorkerLost, true, 1.0, Next::GiveBack),
        ("three lost workers", 0, 2, Reason::WorkerLost, true, 1.0, Next::Failed),
        ("a failure after two crashes", 0, 2, Reason::HandlerFailed, true, 1.0, retry(1000)),
    ];
    let policy = RetryPolicy { max_attempts: 20, ..RetryPolicy::default() };
    for (name, failures, crashes, reason, retryable, jitter, expected) in cases {
        let token = Token { id: "a".to_owned(), row: 1, attempt: 1, session: SessionId(1), keys: Vec::new() };
        let request = NewJob::new("a", "p", Job::new("k", ""));
        let claimed = Claimed { token, request, failures, crashes };
        assert_eq!(policy.next(&claimed, reason, retryable, jitter), expected, "{name}");
    }
}

/// The clock is read once in each transaction.
#[tokio::test]
async fn operations_that_wait_share_a_transaction() {
    let (reads, hold) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
    let (count, held) = (reads.clone(), hold.clone());
    let clock: Clock = Arc::new(move || {
        count.fetch_add(1, Relaxed);
        drop(held.lock());
        Timestamp::from_millis(TestClock::START)
    });
    let store = open_memory(BOUNDS, clock).expect("a store");
    let submit = |id: usize| {
        let job = NewJob::new(id.to_string(), "p", Job::new("k", ""));
        store.submit(Submission { jobs: vec![job], session: None })
    };
    let mut waiting = join_all((0..20).map(submit));
    reads.store(0, Relaxed);
    {
        let _held = hold.lock();
        assert!((&mut waiting).now_or_never().is_none(), "the first transaction waits for its clock");
    }
    assert!(waiting.await.iter().all(Result::is_ok));
    assert!((1..=2).contains(&reads.load(Relaxed)), "{} transactions", reads.load(Relaxed));
    store.close().await;
}
