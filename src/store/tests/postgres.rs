//! Stores on a PostgreSQL server of the tests' own.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tempfile::{NamedTempFile, TempDir};
use tokio::time::timeout;
use tokio_postgres::NoTls;

use super::{cluster::Cluster, promises::success};
use crate::{
    model::{Job, Rate},
    store::{
        Action, Bounds, JobName, JobState, JobStore, NewJob, PostgresOptions, Room, StoreError, StoredLimit,
        Submission, Submitted, Timestamp, inspect_postgres, open_postgres,
    },
    task::Tasks,
};

/// Bound of a wait for another process.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to the database of one test.
pub(super) struct Server {
    client: tokio_postgres::Client,
    _tasks: Tasks,
}

fn options(cluster: &Cluster, database: &str) -> PostgresOptions {
    at(&cluster.url(database))
}

/// A server that shares its machine with all tests may be slow, and is not away.
pub(super) fn at(url: &str) -> PostgresOptions {
    PostgresOptions { patience: PATIENCE, ..PostgresOptions::new(url.to_owned().try_into().expect("a URL")) }
}

/// A further replica on a store.
pub(super) fn replica(cluster: &Cluster, database: &str, bounds: Bounds) -> Arc<dyn JobStore> {
    open_postgres(&PostgresOptions { bounds, ..options(cluster, database) }).expect("a store")
}

/// A store in a new database, with a clock that the test sets.
pub(super) async fn store(cluster: &Cluster, database: &str, bounds: Bounds) -> (Arc<dyn JobStore>, Server) {
    store_at(cluster, database, &PostgresOptions { bounds, ..options(cluster, database) }).await
}

/// The same, reached in another way.
pub(super) async fn store_at(
    cluster: &Cluster,
    database: &str,
    options: &PostgresOptions,
) -> (Arc<dyn JobStore>, Server) {
    let postgres = connect(&cluster.url("postgres")).await;
    postgres.client.batch_execute(&format!("create database {database}")).await.expect("a database");
    let store = open_postgres(options).expect("a store");
    let server = connect(&cluster.url(database)).await;
    let clock = "create table waterwheel.clock (now bigint); insert into waterwheel.clock values (0); \
                 create or replace function waterwheel.waterwheel_now() returns bigint language sql stable \
                 as 'select now from waterwheel.clock'";
    server.client.batch_execute(clock).await.expect("a clock");
    (store, server)
}

impl Server {
    pub(super) async fn set_time(&self, now: Timestamp) {
        let updated = self.client.execute("update waterwheel.clock set now = $1", &[&now.as_millis()]).await;
        assert_eq!(updated.expect("a clock"), 1);
    }

    /// Jobs that wait for an ordering key which no job holds.
    pub(super) async fn lost_keys(&self) -> Vec<String> {
        let sql = "select id from waterwheel.jobs where state = 2 and ordering_key <> '' and not exists (select 1 from waterwheel.jobs holder \
                   where holder.tenant = jobs.tenant and holder.ordering_key = jobs.ordering_key and holder.holds_key)";
        let rows = self.client.query(sql, &[]).await.expect("rows");
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(super) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect("it is done");
    }

    /// Waits until a query answers `true`.
    pub(super) async fn until(&self, sql: &str) {
        let is_so = async || self.client.query_one(sql, &[]).await.expect("a row").get::<_, bool>(0);
        timeout(PATIENCE, async { while !is_so().await {} }).await.unwrap_or_else(|_| panic!("never: {sql}"));
    }
}

pub(super) async fn connect(url: &str) -> Server {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    let tasks = Tasks::new();
    tasks.spawn(async {
        let _ = connection.await;
    });
    Server { client, _tasks: tasks }
}

/// What a program of today cannot read, or cannot reach, is refused with what it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_and_an_unreachable_server_are_refused() {
    let Some(cluster) = Cluster::start().await else { return };
    let (store, server) = store(&cluster, "newer", Bounds::default()).await;
    store.close().await;
    let newer = options(&cluster, "newer");
    let found = inspect_postgres(&newer).await.expect("what is found");
    let has_all =
        ["schema 1, ", " connections free, of which a server takes 9"].iter().all(|part| found.contains(part));
    assert!(found.starts_with("PostgreSQL 1") && has_all, "{found}");
    server.run("insert into waterwheel.versions values (99)").await;
    let refusal = open_postgres(&newer).err().expect("a refusal");
    assert_eq!(refusal, StoreError::Newer { found: 99, known: 1 });
    assert_eq!(inspect_postgres(&newer).await, Err(refusal));
    let refusal = open_postgres(&options(&cluster, "none")).err().expect("a refusal");
    assert!(refusal.to_string().contains("\"none\" does not exist"), "{refusal}");
    cluster.halt().await;
    let refusal = inspect_postgres(&newer).await.expect_err("a refusal");
    assert!(matches!(refusal, StoreError::Unavailable(_)), "{refusal:?}");
}

/// A server needs nine, and roles that are not superusers do not get the last three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_few_connections_does_not_fit() {
    let Some(cluster) = Cluster::start().await else { return };
    let mut found = Vec::new();
    for count in [11, 12] {
        let server = connect(&cluster.url("postgres")).await;
        server.run(&format!("alter system set max_connections = {count}")).await;
        server.run("alter system set max_wal_senders = 1").await;
        drop(server);
        cluster.halt().await;
        cluster.resume().await;
        found.push(inspect_postgres(&options(&cluster, "postgres")).await);
    }
    let [Err(StoreError::Database(short)), Ok(fits)] = &found[..] else { panic!("{found:?}") };
    assert!(short.contains("8 connections are free, but a server needs 9; raise `max_connections`"), "{short}");
    assert!(fits.contains("9 connections free, of which a server takes 9"), "{fits}");
}

/// The order in which two clients settle a job and create the next one of its key must not leave that one behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_keyed_job_waits_for_the_next_one_of_its_key() {
    let Some(cluster) = Cluster::start().await else { return };
    let (first, server) = store(&cluster, "keyed", Bounds::default()).await;
    let second = replica(&cluster, "keyed", Bounds::default());
    let keyed = |id: &str| {
        let job = Job { ordering_key: "x".to_owned(), ..Job::new("k", "p") };
        Submission { jobs: vec![NewJob::new(id, "p", job)], session: None }
    };
    let session = first.open_session(Duration::from_secs(60)).await.expect("a session");
    first.submit(keyed("a")).await.expect("it is created");
    let room = Room { session, kinds: [("k".to_owned(), 9)].into(), bytes: usize::MAX };
    let claimed = first.claim(room.clone()).await.expect("the job").remove(0);

    // The second client's transaction waits behind its insert, until the gate opens.
    let gate = "create function gate() returns trigger language plpgsql as \
                'begin perform pg_advisory_xact_lock(7); return new; end'; create trigger gate before insert \
                on waterwheel.jobs for each row execute function gate(); select pg_advisory_lock(7)";
    server.run(gate).await;
    let (created, settled) = tokio::join!(second.submit(keyed("b")), async {
        let waiting = "select count(*) = $1 from pg_locks where locktype = 'advisory' and not granted";
        server.until(&waiting.replace("$1", "1")).await;
        let settled = first.settle(vec![success(claimed)]);
        let opened = async {
            server.until(&waiting.replace("$1", "2")).await;
            server.run("select pg_advisory_unlock(7)").await;
        };
        tokio::join!(settled, opened).0
    });
    assert!(matches!(created.expect("an answer")[..], [Submitted::Created]));
    assert_eq!(settled.expect("an answer"), [Some(JobState::Succeeded)]);
    assert_eq!(server.lost_keys().await, Vec::<String>::new());
    assert_eq!(first.claim(room).await.expect("the next job").len(), 1);
    first.close().await;
    second.close().await;
}

/// One settles what another one cancels, creates again and removes, each in an order of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_change_the_same_jobs_do_not_wait_for_each_other_in_a_circle() {
    const JOBS: usize = 60;
    let Some(cluster) = Cluster::start().await else { return };
    let (first, server) = store(&cluster, "crossed", Bounds::default()).await;
    let stores = [first, replica(&cluster, "crossed", Bounds::default())];
    server.run("alter system set deadlock_timeout = '20ms'").await;
    server.run("select pg_reload_conf()").await;
    let mut rooms = Vec::new();
    for store in &stores {
        let session = store.open_session(Duration::from_secs(60)).await.expect("a session");
        rooms.push(Room { session, kinds: [("k".to_owned(), JOBS / 2)].into(), bytes: usize::MAX });
    }
    for _ in 0..10 {
        let jobs = || (0..JOBS).map(|id| NewJob::new(id.to_string(), "p", Job::new("k", "p")));
        let [forth, back] = [jobs().collect(), jobs().rev().collect()].map(|jobs| Submission { jobs, session: None });
        let names = || (0..JOBS).rev().map(|id| JobName::from(&*id.to_string())).collect();
        let [one, other] = &stores;
        one.submit(forth.clone()).await.expect("jobs");
        let [ends, other_ends] = [one.claim(rooms[0].clone()).await, other.claim(rooms[1].clone()).await]
            .map(|claimed| claimed.expect("jobs").into_iter().map(success).collect());
        tokio::try_join!(
            async { tokio::try_join!(one.settle(ends), one.submit(back), one.change(names(), Action::Cancel)) },
            async {
                tokio::try_join!(other.settle(other_ends), other.submit(forth), other.change(names(), Action::Cancel))
            },
        )
        .expect("answers");
        tokio::try_join!(one.change(names(), Action::Retry), other.change(names(), Action::Retry)).expect("answers");
        tokio::try_join!(one.change(names(), Action::Cancel), other.change(names(), Action::Cancel)).expect("answers");
        tokio::try_join!(one.change(names(), Action::Delete), other.change(names(), Action::Delete)).expect("answers");
    }
    let log = std::fs::read_to_string(cluster.directory.path().join("log")).expect("its log");
    assert!(!log.contains("deadlock detected"), "{log}");
    for store in stores {
        store.close().await;
    }
}

/// Jobs that run, of a key or of all.
type Running = Mutex<HashMap<String, usize>>;

/// Runs jobs until none is ready, and ends each batch from its last to its first.
async fn run(store: &dyn JobStore, room: &Room, running: &Running) {
    loop {
        let mut claimed = store.claim(room.clone()).await.expect("jobs");
        if claimed.is_empty() {
            return;
        }
        claimed.reverse();
        let keys = claimed.iter().flat_map(|job| job.token.keys.iter().map(String::as_str).chain(["all"]));
        let keys: Vec<_> = keys.map(str::to_owned).collect();
        for key in &keys {
            let most = if key == "all" { 5 } else { 1 + usize::from(key.starts_with("limit")) };
            let mut running = running.lock();
            let of_key = running.entry(key.clone()).or_default();
            *of_key += 1;
            assert!(*of_key <= most, "{of_key} jobs of {key} run");
        }
        keys.iter().for_each(|key| *running.lock().get_mut(key).expect("it runs") -= 1);
        store.settle(claimed.into_iter().map(success).collect()).await.expect("answers");
    }
}

/// Each creates, runs, cancels and retries jobs of the same keys, in an order of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_share_keys_keep_their_limits_and_do_not_wait_for_each_other_in_a_circle() {
    let Some(cluster) = Cluster::start().await else { return };
    let (first, server) = store(&cluster, "keys", Bounds::default()).await;
    let stores = [first, replica(&cluster, "keys", Bounds::default())];
    server.run("alter system set deadlock_timeout = '20ms'").await;
    server.run("select pg_reload_conf()").await;
    let job = |id: usize, of: &str| {
        let mut job = NewJob::new(format!("{of}{id}"), "p", Job::new("k", "p"));
        job.job.limit_key = (id % 7).to_string();
        job.job.ordering_key = if id.is_multiple_of(3) { (id % 5).to_string() } else { String::new() };
        job.policy.has_key_limit = !id.is_multiple_of(11);
        job
    };
    let key_rate = Some(Rate { interval: Duration::from_millis(1), burst: NonZeroU32::new(3).expect("three") });
    let limit = StoredLimit { all: Some(5), rate: None, per_key: Some(2), key_rate };
    let (running, mut rooms) = (Running::default(), Vec::new());
    for store in &stores {
        store.set_limits([("k".to_owned(), limit)].into());
        let session = store.open_session(Duration::from_secs(60)).await.expect("a session");
        rooms.push(Room { session, kinds: [("k".to_owned(), 9)].into(), bytes: usize::MAX });
    }
    for round in 0..5 {
        let ids = || round * 20..round * 20 + 20;
        let [forth, back] = [ids().map(|id| job(id, "a")).collect(), ids().rev().map(|id| job(id, "b")).collect()]
            .map(|jobs| Submission { jobs, session: None });
        let names = |of| ids().rev().map(|id| JobName::from(&*format!("{of}{id}"))).collect();
        let ([one, other], [room, other_room]) = (&stores, [&rooms[0], &rooms[1]]);
        let work = async |store: &Arc<dyn JobStore>, room, jobs, (own, others)| {
            let (created, ()) = tokio::join!(store.submit(jobs), run(&**store, room, &running));
            created.expect("jobs");
            let cancelled = store.change(names(own), Action::Cancel);
            let retried = store.change(names(others), Action::Retry);
            let (cancelled, retried, ()) = tokio::join!(cancelled, retried, run(&**store, room, &running));
            cancelled.and(retried).expect("answers");
        };
        tokio::join!(work(one, room, forth, ("a", "b")), work(other, other_room, back, ("b", "a")));
    }
    for looks in 1.. {
        if stores[0].depths().await.expect("counts").is_empty() {
            break;
        }
        server.set_time(Timestamp::from_millis(looks * 10)).await;
        run(&*stores[1], &rooms[1], &running).await;
    }
    let log = std::fs::read_to_string(cluster.directory.path().join("log")).expect("its log");
    assert!(!log.contains("deadlock detected"), "{log}");
    for store in stores {
        store.close().await;
    }
}

/// TLS with a certificate that is trusted, and the right password, or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_passwords_are_checked() {
    let Some(cluster) = Cluster::start().await else { return };
    let id = std::process::id();
    let address = format!("127.88.{}.{}", id >> 8 & 0xff, id & 0xff);
    let [own, other] = [(); 2].map(|()| rcgen::generate_simple_self_signed([address.clone()]).expect("a certificate"));
    cluster.put("server.crt", &own.cert.pem());
    cluster.put("server.key", &own.signing_key.serialize_pem());
    let server = connect(&cluster.url("postgres")).await;
    server.run("alter role test password 'hunter2'").await;
    server.run("alter system set ssl = on").await;
    server.run(&format!("alter system set listen_addresses = '{address}'")).await;
    cluster.halt().await;
    cluster.resume().await;

    let files = TempDir::new().expect("a directory");
    let file = |text: &str| {
        let (_, path) = NamedTempFile::new_in(&files).expect("a file").keep().expect("its path");
        std::fs::write(&path, text).expect("its text");
        Some(path)
    };
    let (right, trusted) = (|| file("hunter2\n"), || file(&own.cert.pem()));
    for (mode, ca_file, password_file, told) in [
        ("require", trusted(), right(), "no schema yet"),
        ("prefer", trusted(), right(), "no schema yet"),
        ("disable", trusted(), right(), "no encryption"),
        ("require", None, right(), "UnknownIssuer; store.ca_file names who signs"),
        ("require", file(&other.cert.pem()), right(), "TLS handshake"),
        ("require", trusted(), file("wrong"), "password authentication failed"),
        ("require", trusted(), None, "password missing"),
    ] {
        let url = format!("postgres://test@{address}/postgres?sslmode={mode}").try_into().expect("a URL");
        let options = PostgresOptions { ca_file, password_file, ..PostgresOptions::new(url) };
        let found = inspect_postgres(&options).await.unwrap_or_else(|error| error.to_string());
        assert!(found.contains(told), "{mode}: {found}");
        assert!(!found.contains("hunter"), "{found}");
    }
}
