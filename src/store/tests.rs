//! One conformance suite for all stores: scripts with what each line must answer. New stores run it as they are. Random
//! operations on SQLite and on PostgreSQL answer alike, too.

mod beside;
mod cluster;
mod conformance;
mod faults;
mod groups;
mod outages;
mod pooler;
mod postgres;
mod promises;
mod rates;
mod script;
mod suspensions;
mod words;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use conformance::Case;
use groups::GROUPS;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom as _};
use script::Script;
use suspensions::SUSPENSIONS;
use tempfile::TempDir;

use super::{
    Bounds, Clock, Filter, JobState, JobStore, Order, SqliteOptions, Timestamp, inspect_sqlite, open_memory,
    open_shared_memory, open_sqlite,
};

/// The calendar of a test. It moves only when told to.
#[derive(Debug, Clone)]
struct TestClock(Arc<AtomicI64>);

impl TestClock {
    const START: i64 = 1_800_000_000_000;

    fn new() -> Self {
        Self(Arc::new(AtomicI64::new(Self::START)))
    }

    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as i64, Ordering::Relaxed);
    }

    fn set_back(&self, by: Duration) {
        self.0.fetch_sub(by.as_millis() as i64, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let time = self.0.clone();
        Arc::new(move || Timestamp::from_millis(time.load(Ordering::Relaxed)))
    }
}

/// Bounds that the scripts about bounds reach.
const BOUNDS: Bounds = Bounds { max_jobs: 40, max_bytes: 4000 };

fn memory(clock: &TestClock) -> Arc<dyn JobStore> {
    open_memory(BOUNDS, clock.clock()).expect("a store")
}

/// Sessions end with their leases, as on PostgreSQL.
fn shared_memory(clock: &TestClock) -> Arc<dyn JobStore> {
    open_shared_memory(BOUNDS, clock.clock()).expect("a store")
}

fn sqlite(directory: &TempDir, clock: &TestClock) -> Arc<dyn JobStore> {
    let options = SqliteOptions { bounds: BOUNDS, ..SqliteOptions::new(directory.path().join("jobs.db")) };
    open_sqlite(&options, clock.clock()).expect("a new store")
}

fn of_all_stores() -> impl Iterator<Item = &'static Case> {
    conformance::CASES.iter().chain(SUSPENSIONS).chain(conformance::OF_KEYS).chain(GROUPS)
}

fn of_shared_stores() -> impl Iterator<Item = &'static Case> {
    of_all_stores().chain(conformance::OF_LEASES).chain(conformance::OF_KINDS)
}

#[tokio::test]
async fn memory_conforms() {
    let mut found = Vec::new();
    for case in of_shared_stores() {
        let clock = TestClock::new();
        found.extend(script::differences(case, Script::new(shared_memory(&clock), clock.clone())).await);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test]
async fn sqlite_conforms() {
    let mut found = Vec::new();
    for case in of_all_stores() {
        let (clock, directory) = (TestClock::new(), TempDir::new().expect("a directory"));
        let store = sqlite(&directory, &clock);
        found.extend(script::differences(case, Script::new(store.clone(), clock.clone())).await);
        store.close().await;
        inspect_sqlite(&directory.path().join("jobs.db")).expect("an intact store");
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms() {
    let Some(cluster) = cluster::Cluster::start().await else { return };
    let mut found = Vec::new();
    for (number, case) in of_shared_stores().enumerate() {
        let clock = TestClock::new();
        let (store, server) = postgres::store(&cluster, &format!("case_{number}"), BOUNDS).await;
        server.set_time((clock.clock())()).await;
        let script = Script::new(store.clone(), clock).on_server(server);
        found.extend(script::differences(case, script).await);
        store.close().await;
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

const SEEDS: u64 = 6;
const STEPS: usize = 200;
/// Three running jobs of kind `k`, and two ready or running ones of each of its limit keys.
const LIMITS: &str = "limits k=3/2";
const IDS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// On SQLite and on PostgreSQL, whose statements, locks and counts differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_answer_alike() {
    let cluster = cluster::Cluster::start().await;
    for seed in 0..SEEDS {
        let clock = TestClock::new();
        let mut sqlite = Script::new(shared_memory(&clock), clock);
        let mut postgres = None;
        if let Some(cluster) = &cluster {
            // Each script moves a clock of its own by the same steps.
            let clock = TestClock::new();
            let (store, server) = postgres::store(cluster, &format!("random_{seed}"), BOUNDS).await;
            server.set_time((clock.clock())()).await;
            postgres = Some(Script::new(store, clock).on_server(server));
        }
        let mut random = StdRng::seed_from_u64(seed);
        let mut past = Vec::new();
        for step in 0..STEPS {
            let lines = match step {
                0 => vec!["open S lease=9".to_owned(), "open T lease=30".to_owned(), LIMITS.to_owned()],
                _ if step % 20 == 19 => look(),
                _ => vec![operation(&mut random)],
            };
            for line in lines {
                let answer = sqlite.run(&line).await;
                past.push(line.clone());
                if let Some(postgres) = &mut postgres {
                    assert_eq!(postgres.run(&line).await, answer, "seed {seed}: {}", past.join("\n"));
                }
            }
            keys_have_their_holders(&sqlite).await;
            groups::are_counted(&*sqlite.store, &["g", "h"]).await;
        }
        if let Some(postgres) = postgres {
            postgres.store.close().await;
        }
    }
}

fn operation(random: &mut StdRng) -> String {
    let id = if random.random_bool(0.1) { "group/g" } else { IDS.choose(random).expect("an id") };
    let session = if random.random_bool(0.7) { "S" } else { "T" };
    match random.random_range(0..110) {
        0..22 => format!("submit {} {}", job(random), job(random)),
        22..30 => format!("lease {session} {} {}", job(random), job(random)),
        30..46 => format!("claim {session} k={} j=1", random.random_range(1..4)),
        46..58 => format!("end {id} ok"),
        58..62 => format!("end {id}#1 ok"),
        62..68 => format!("end {id} retry={}", random.random_range(0..8)),
        68..71 => format!("end {id} fail"),
        71..73 => format!("end {id} crash"),
        73..76 => format!("end {id} back"),
        76..79 => format!("cancel {id}"),
        79..82 => format!("retry {id}"),
        82..84 => format!("delete {id}"),
        84..90 => "tick".to_owned(),
        90..94 => format!("advance {}", random.random_range(0..7)),
        94..96 => format!("beat {session}"),
        96..98 => format!("fire nightly {} skip n{id}", random.random_range(0..200)),
        98..100 => format!("open {session} lease=9"),
        100..103 => "submit group/g:after=end group/h:after=success:group=g:key=x".to_owned(),
        103..106 => "close g".to_owned(),
        106..108 => "close h".to_owned(),
        _ => "purge tenant=t".to_owned(),
    }
}

fn job(random: &mut StdRng) -> String {
    let mut job = (*IDS.choose(random).expect("an id")).to_owned();
    for (chance, word) in [
        (0.5, "key=x"),
        (0.2, "kind=j"),
        (0.2, "tenant=t"),
        (0.1, "payload=other"),
        (0.1, "pool=q"),
        (0.3, "limit=y"),
        (0.3, "group=g"),
        (0.2, "group=h"),
    ] {
        if random.random_bool(chance) {
            job += &format!(":{word}");
        }
    }
    for (chance, word, most) in [(0.5, "class", 4), (0.2, "delay", 9), (0.2, "expire", 20), (0.3, "retain", 40)] {
        if random.random_bool(chance) {
            job += &format!(":{word}={}", random.random_range(0..most));
        }
    }
    job
}

/// Everything that can be seen.
fn look() -> Vec<String> {
    let jobs = IDS.iter().flat_map(|id| [format!("get {id}"), format!("attempts {id}")]);
    let lists = [
        "size",
        "depths",
        "list limit=3",
        "list kind=j state=ready,failed",
        "list tenant=t",
        "list group=g limit=2",
        "members g",
        "members h",
        "group",
        "beat S",
        "beat T",
    ];
    jobs.chain(lists.map(str::to_owned)).collect()
}

/// A key has at most one job that is ready or runs, and a limit key two. Jobs are blocked only behind as many.
async fn keys_have_their_holders(script: &Script) {
    let jobs = script.store.list(Filter::default(), Order::Newest, None, 1000).await.expect("a list").jobs;
    let (mut keys, mut limits) = (HashMap::<_, (usize, usize)>::new(), HashMap::<_, (usize, usize)>::new());
    for job in jobs.iter().filter(|job| !job.state.is_ended()) {
        if let Some(key) = job.request.ordering_key() {
            let (holders, blocked) = keys.entry(key).or_default();
            match job.state {
                JobState::Blocked if !job.holds_key => *blocked += 1,
                JobState::Scheduled if !job.holds_key => {}
                _ => *holders += 1,
            }
        }
        if let Some(key @ ("k", _)) = job.request.limit_key() {
            let (holders, blocked) = limits.entry(key).or_default();
            *holders += usize::from(job.has_slot());
            *blocked += usize::from(job.state == JobState::Blocked && !job.needs_key());
        }
    }
    for (key, (holders, blocked)) in keys {
        assert!(holders == 1 || holders + blocked == 0, "{key:?}: {holders} hold it, {blocked} wait");
    }
    for (key, (holders, blocked)) in limits {
        assert!(holders == 2 || holders < 2 && blocked == 0, "{key:?}: {holders} may run, {blocked} wait");
    }
    let running = jobs.iter().filter(|job| job.state == JobState::Running && job.request.job.kind == "k").count();
    assert!(running <= 3, "{running} jobs of the limited kind run");
}
