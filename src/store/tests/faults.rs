//! Rows, results and lists that must not stop the others, on a file that the tests also change by hand.

use std::{
    ops::Range,
    path::PathBuf,
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::{BOUNDS, TestClock, cluster::Cluster, memory, postgres};
use crate::{
    model::{Job, Output, Reason},
    store::{
        Action, Bounds, Change, Claimed, Clock, Extent, Filter, Fired, JobName, JobRecord, JobState, JobStore, NewJob,
        Next, Order, Overlap, Room, SessionId, Settle, SqliteOptions, Start, StoreError, Submission, Submitted, Tick,
        Timestamp, open_memory, open_sqlite,
    },
};

/// A store in a file, which can be closed, changed, and opened again.
struct File {
    directory: TempDir,
    clock: TestClock,
    store: Arc<dyn JobStore>,
    session: SessionId,
}

impl File {
    async fn new() -> Self {
        let (directory, clock) = (TempDir::new().expect("a directory"), TestClock::new());
        let store = open_sqlite(&SqliteOptions::new(directory.path().join("jobs.db")), clock.clock());
        let store = store.expect("a new store");
        let session = store.open_session(Duration::from_secs(30)).await.expect("a session");
        Self { directory, clock, store, session }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("jobs.db")
    }

    /// Opens the file again, after a change by hand.
    async fn changed(&mut self, sql: &str) {
        self.store.close().await;
        rusqlite::Connection::open(self.path()).and_then(|file| file.execute_batch(sql)).expect("a change by hand");
        self.store = open_sqlite(&SqliteOptions::new(self.path()), self.clock.clock()).expect("the store");
        self.session = self.store.open_session(Duration::from_secs(30)).await.expect("a session");
    }

    async fn submit(&self, ids: &[&str]) {
        submit(&*self.store, ids.iter().map(|id| job(id, "")).collect()).await;
    }

    async fn claim(&self, count: usize) -> Vec<Claimed> {
        let room = Room { session: self.session, kinds: [("k".to_owned(), count)].into(), bytes: usize::MAX };
        self.store.claim(room).await.expect("jobs")
    }

    async fn job(&self, id: &str) -> JobRecord {
        self.store.get(id, Extent::All).await.expect("an answer").expect("the job")
    }
}

fn job(id: &str, tenant: &str) -> NewJob {
    let job = Job { tenant: tenant.to_owned(), ..Job::new("k", format!("payload of {id}")) };
    NewJob::new(id, "p", job)
}

async fn submit(store: &dyn JobStore, jobs: Vec<NewJob>) {
    let answers = store.submit(Submission { jobs, session: None }).await.expect("answers");
    assert!(answers.iter().all(|answer| matches!(answer, Submitted::Created)), "{answers:?}");
}

fn success(job: &Claimed, output: &str) -> Settle {
    let output = Output { bytes: output.to_owned().into(), content_type: String::new() };
    let (worker, message) = ("w".to_owned(), String::new());
    let next = Next::Succeeded(output);
    Settle { token: job.token.clone(), worker, reason: Reason::Completed, code: 0, message, next }
}

fn ids(jobs: &[Claimed]) -> Vec<&str> {
    jobs.iter().map(|job| &*job.token.id).collect()
}

#[tokio::test]
async fn a_result_that_the_database_refuses_fails_its_job_alone() {
    let mut file = File::new().await;
    file.submit(&["a", "b", "c", "d", "e", "f", "g"]).await;
    file.changed(
        "create trigger refuse before insert on outputs when length(new.bytes) = 3 \
         begin select raise(abort, 'no three bytes'); end;",
    )
    .await;
    let claimed = file.claim(9).await;
    let ends = claimed.iter().map(|job| success(job, if job.token.id == "e" { "bad" } else { "good" })).collect();
    let states = file.store.settle(ends).await.expect("answers");
    let expected =
        ids(&claimed).into_iter().map(|id| Some(if id == "e" { JobState::Failed } else { JobState::Succeeded }));
    assert_eq!(states, expected.collect::<Vec<_>>());
    let failed = file.job("e").await;
    let message = &failed.attempts[0].message;
    assert!(message.contains("could not be stored") && message.contains("no three bytes"), "{message}");
    assert_eq!((failed.failures, file.job("f").await.output.bytes), (1, "good".into()));
}

#[tokio::test]
async fn a_schedule_that_the_database_refuses_stops_no_other() {
    let mut file = File::new().await;
    file.changed(
        "create trigger refuse before insert on jobs when new.id = 'bad' begin select raise(abort, 'no'); end;",
    )
    .await;
    let tick = |name: &str| {
        let (schedule, job, at) = (name.to_owned(), job(name, ""), Timestamp::from_millis(TestClock::START));
        let (pattern, overlap) = (String::new(), Overlap::Queue);
        Tick { schedule, pattern, at, now: at, overlap, job, is_missed: false }
    };
    // At once, so that they share a transaction at first.
    let fire = |name| file.store.fire(tick(name));
    let (a, bad, c) = tokio::join!(fire("a"), fire("bad"), fire("c"));
    assert_eq!((a, c), (Ok(Fired::Created), Ok(Fired::Created)));
    assert!(matches!(bad, Err(StoreError::Database(_))), "{bad:?}");
}

/// Each row of the table spoils a job in another way. All other jobs run, and lists name the spoilt one.
#[tokio::test]
async fn a_job_that_cannot_be_read_is_set_aside_alone() {
    for (spoil, named) in [
        ("update jobs set spec = replace(spec, '{', '[') where id = 'c'", "spec"),
        ("update jobs set spec = '' where id = 'c'", "spec"),
        ("update jobs set digest = x'00' where id = 'c'", "digest"),
        ("update jobs set starts = -1 where id = 'c'", "starts"),
        ("update jobs set rank = 0, attempts = '[{' where id = 'c'", "attempts"),
        ("update jobs set tenant = cast(x'ff' as text) where id = 'c'", "tenant"),
        ("update payloads set bytes = x'00' where row = (select row from jobs where id = 'c')", "payload"),
        ("delete from payloads where row = (select row from jobs where id = 'c')", "payload"),
    ] {
        let mut file = File::new().await;
        file.submit(&["a", "b", "c", "d"]).await;
        file.changed(spoil).await;
        let listed = file.store.list(Filter::default(), Order::Newest, None, 100).await.expect("a list").jobs;
        assert_eq!(listed.len(), 4, "{spoil}");
        file.submit(&["e"]).await;
        assert_eq!(ids(&file.claim(9).await), ["a", "b", "d", "e"], "{spoil}");
        let spoilt = file.job("c").await;
        let message = &spoilt.attempts.last().expect("an attempt").message;
        assert_eq!(spoilt.state, JobState::Failed, "{spoil}");
        let names_it = message.contains(&format!("unreadable: row {}", spoilt.row)) && message.contains(named);
        assert!(names_it, "{spoil}: {message}");
        let changes = file.store.change(vec!["c".into()], Action::Cancel).await.expect("an answer");
        assert_eq!(changes, [Change::WrongState(JobState::Failed)], "{spoil}");
        assert_eq!(file.store.size().await.expect("a size").jobs, 4, "{spoil}");
        let changes = file.store.change(vec!["c".into()], Action::Delete).await.expect("an answer");
        assert_eq!(changes, [Change::Done], "{spoil}");
    }
}

/// Scheduled, blocked and running ones are set aside when their time comes, too.
#[tokio::test]
async fn jobs_that_cannot_be_read_stop_no_maintenance() {
    let mut file = File::new().await;
    let keyed = |id: &str| {
        let mut job = job(id, "t");
        job.job.ordering_key = "x".to_owned();
        job
    };
    let later = |id: &str| NewJob { start: Start::After(Duration::from_secs(5)), ..job(id, "") };
    submit(&*file.store, vec![keyed("holder"), keyed("spoilt-1"), keyed("next"), later("spoilt-2"), later("due")])
        .await;
    file.changed("update jobs set spec = 'x' where id like 'spoilt%'").await;
    file.clock.advance(Duration::from_secs(5));
    assert_eq!(file.store.tick(true).await.expect("maintenance").promoted, 1);
    let claimed = file.claim(9).await;
    assert_eq!(ids(&claimed), ["holder", "due"]);
    file.store.settle(vec![success(&claimed[0], "")]).await.expect("an answer");
    assert_eq!(ids(&file.claim(9).await), ["next"], "the spoilt job does not keep the key");
    file.changed("update jobs set spec = 'x' where id = 'next'").await;
    assert_eq!(file.job("next").await.state, JobState::Failed);
    assert_eq!(ids(&file.claim(9).await), ["due"]);
}

#[tokio::test]
async fn a_store_of_one_process_ends_a_session_only_when_it_is_opened() {
    let mut file = File::new().await;
    file.submit(&["a"]).await;
    let claimed = file.claim(1).await;
    file.clock.advance(Duration::from_secs(10 * 24 * 3600));
    assert_eq!(file.store.tick(true).await.expect("maintenance").returned, 0);
    assert_eq!(file.store.extend_lease(file.session).await, Ok(Vec::new()));
    let states = file.store.settle(vec![success(&claimed[0], "")]).await;
    assert_eq!(states, Ok(vec![Some(JobState::Succeeded)]));
    file.submit(&["b"]).await;
    let lost = file.claim(1).await;
    let session = file.session;
    file.changed("").await;
    assert_eq!(file.store.settle(vec![success(&lost[0], "")]).await, Ok(vec![None]));
    assert!(file.store.extend_lease(session).await.is_err());
    assert_eq!(ids(&file.claim(1).await), ["b"]);
}

#[tokio::test]
async fn a_job_that_kills_its_server_is_a_dead_letter_after_three_starts() {
    let mut file = File::new().await;
    file.submit(&["a", "b"]).await;
    for started in [["a", "b"].as_slice(), &["a", "b"], &["a"], &["b"]] {
        let claimed = file.claim(9).await;
        assert_eq!(ids(&claimed), started);
        if started == ["b"] {
            file.store.settle(vec![success(&claimed[0], "")]).await.expect("an answer");
        }
        file.changed("").await;
    }
    let (killer, neighbour) = (file.job("a").await, file.job("b").await);
    assert_eq!((killer.state, killer.starts, neighbour.state), (JobState::Failed, 3, JobState::Succeeded));
    let message = &killer.attempts[2].message;
    assert!(message.contains("lost 3 times in a row"), "{message}");
}

#[tokio::test]
async fn tenants_take_turns_after_a_start_as_before_it() {
    let mut file = File::new().await;
    let of = |tenant: &str, numbers: Range<usize>| {
        numbers.map(|number| job(&format!("{tenant}{number}"), tenant)).collect::<Vec<_>>()
    };
    submit(&*file.store, [of("t", 1..5), of("u", 1..2)].concat()).await;
    file.changed("").await;
    submit(&*file.store, [of("u", 2..3), of("v", 1..3), of("t", 5..6)].concat()).await;
    let claimed = file.claim(99).await;
    assert_eq!(ids(&claimed), ["t1", "u1", "v1", "t2", "u2", "v2", "t3", "t4", "t5"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_look_at_a_bounded_number_of_jobs_and_find_those_of_a_tenant_and_dead_ones_at_once() {
    look_at_a_bounded_number(&*open_memory(Bounds::default(), TestClock::new().clock()).expect("a store")).await;
    let Some(cluster) = Cluster::start().await else { return };
    let (store, _server) = postgres::store(&cluster, "lists", Bounds::default()).await;
    look_at_a_bounded_number(&*store).await;
    store.close().await;
}

async fn look_at_a_bounded_number(store: &dyn JobStore) {
    submit(store, vec![job("old", "t")]).await;
    for thousand in 0..11 {
        submit(store, (0..1000).map(|number| job(&format!("{thousand}-{number}"), "u")).collect()).await;
    }
    store.change(vec!["old".into(), "0-0".into()], Action::Cancel).await.expect("answers");
    let found = |filter: Filter, before| {
        let page = store.list(filter, Order::Newest, before, 100);
        page.map(|page| {
            let page = page.expect("a page");
            (page.jobs.into_iter().map(|job| job.request.id).collect::<Vec<_>>(), page.next)
        })
    };
    let ended = Filter { states: vec![JobState::Cancelled, JobState::Succeeded], ..Filter::default() };
    let (first, next) = found(ended.clone(), None).await;
    assert_eq!((first.len(), next.is_some()), (0, true), "the first call looks at other jobs");
    assert_eq!(found(ended, next).await, (vec!["0-0".to_owned(), "old".to_owned()], None));
    let cancelled = Filter { states: vec![JobState::Cancelled], ..Filter::default() };
    assert_eq!(found(cancelled, None).await, (vec!["0-0".to_owned(), "old".to_owned()], None));
    let all = store.list(Filter::default(), Order::Oldest, None, 1).await.expect("a page");
    assert_eq!((all.jobs[0].request.id.as_str(), all.next), ("old", Some(all.jobs[0].row)));
    let own = Filter { tenant: Some("t".to_owned()), ..Filter::default() };
    assert_eq!(found(own.clone(), None).await, (vec!["old".to_owned()], None));
}

/// As for a file, but for what PostgreSQL itself keeps from being written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_a_database_that_cannot_be_read_is_set_aside_alone() {
    let Some(cluster) = Cluster::start().await else { return };
    let (store, server) = postgres::store(&cluster, "unreadable", Bounds::default()).await;
    let session = store.open_session(Duration::from_secs(60)).await.expect("a session");
    for (spoil, named) in [
        ("update waterwheel.jobs set spec = '[]' where id = 'c'", "spec"),
        ("update waterwheel.jobs set digest = '\\x00' where id = 'c'", "digest"),
        ("update waterwheel.jobs set attempts = '[{' where id = 'c'", "attempts"),
        (
            "update waterwheel.payloads set bytes = '\\x00' where row = (select row from waterwheel.jobs where id = 'c')",
            "payload",
        ),
        ("delete from waterwheel.payloads where row = (select row from waterwheel.jobs where id = 'c')", "payload"),
    ] {
        submit(&*store, ["a", "b", "c", "d"].map(|id| job(id, "")).into()).await;
        server.run(spoil).await;
        let room = Room { session, kinds: [("k".to_owned(), 9)].into(), bytes: usize::MAX };
        let claimed = store.claim(room).await.expect("jobs");
        assert_eq!(ids(&claimed), ["a", "b", "d"], "{spoil}");
        let spoilt = store.get("c", Extent::Bare).await.expect("an answer").expect("the job");
        let message = &spoilt.attempts.last().expect("an attempt").message;
        assert!(spoilt.state == JobState::Failed && message.contains(named), "{spoil}: {spoilt:?}");
        store.settle(claimed.iter().map(|job| success(job, "")).collect()).await.expect("answers");
        let all = ["a", "b", "c", "d"].map(JobName::from).into();
        assert_eq!(store.change(all, Action::Delete).await, Ok(vec![Change::Done; 4]), "{spoil}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_store_in_memory_works_in_a_thread_of_its_own() {
    // Each operation that writes asks the clock.
    let threads = Arc::<Mutex<Vec<ThreadId>>>::default();
    let asked = threads.clone();
    let clock: Clock = Arc::new(move || {
        asked.lock().push(thread::current().id());
        Timestamp::from_millis(TestClock::START)
    });
    let store = open_memory(BOUNDS, clock).expect("a store");
    threads.lock().clear();
    submit(&*store, vec![job("a", "t")]).await;
    let threads = threads.lock().clone();
    assert!(!threads.is_empty() && !threads.contains(&thread::current().id()), "it worked in this thread");
    store.close().await;
}

#[test]
fn a_tenant_holds_at_most_three_times_what_is_free() {
    let bounds = Bounds { max_jobs: 10, max_bytes: 100 };
    let size = |jobs, bytes| crate::store::Size { jobs, bytes };
    for (all, own, bytes, fits) in [
        (size(0, 0), size(0, 0), 100, true),
        (size(7, 0), size(7, 0), 0, true),
        (size(8, 0), size(8, 0), 0, false),
        (size(8, 0), size(0, 0), 0, true),
        (size(0, 70), size(0, 70), 20, true),
        (size(0, 70), size(0, 70), 21, false),
    ] {
        assert_eq!(bounds.allow_tenant(all, own, bytes), fits, "{all:?} {own:?} {bytes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_does_not_fit_is_refused_although_a_later_one_with_its_id_fits() {
    for store in stores("fits").await {
        let of = |payload: usize| NewJob::new("a", "p", Job::new("k", vec![b'x'; payload]));
        let jobs = vec![of(5000), of(1), of(5000)];
        let answers = store.submit(Submission { jobs, session: None }).await.expect("answers");
        assert!(
            matches!(answers[..], [Submitted::Full(_), Submitted::Created, Submitted::Full(_)]),
            "the one that was stored is the second: {answers:?}"
        );
        assert_eq!(store.get("a", Extent::Bare).await.expect("an answer").expect("the job").payload_bytes, 1);
        store.close().await;
    }
}

/// What a caller was allowed to do with a job, it must not do to another job that has the id now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_with_a_row_means_no_later_job_of_the_same_id() {
    for store in stores("names").await {
        submit(&*store, vec![job("a", "t")]).await;
        let old = JobName::from(&store.get("a", Extent::Bare).await.expect("an answer").expect("the job"));
        let mut wait = store.wait(old.clone());
        assert!((&mut wait).now_or_never().is_none());
        for action in [Action::Cancel, Action::Delete] {
            assert_eq!(store.change(vec![old.clone()], action).await, Ok(vec![Change::Done]));
        }
        submit(&*store, vec![job("a", "u")]).await;
        assert!(!matches!(wait.await, Ok(Some(job)) if job.request.job.tenant == "u"));
        assert!(matches!(store.wait(old.clone()).await, Ok(None)));
        for action in [Action::Cancel, Action::Retry, Action::Delete] {
            assert_eq!(store.change(vec![old.clone()], action).await, Ok(vec![Change::NotFound]));
        }
        assert_eq!(store.change(vec!["a".into()], Action::Cancel).await, Ok(vec![Change::Done]));
        store.close().await;
    }
}

/// A store in memory, and one in PostgreSQL where it is installed.
async fn stores(name: &str) -> Vec<Arc<dyn JobStore>> {
    let mut stores = vec![memory(&TestClock::new())];
    if let Some(cluster) = Box::leak(Box::new(Cluster::start().await)) {
        stores.push(postgres::store(cluster, name, BOUNDS).await.0);
    }
    stores
}
