//! One conformance suite for all stores: scripts with what each line must answer. New stores run it as they are.

mod cluster;
mod conformance;
mod crash;
mod language;
mod model;
mod postgres;
mod promises;
mod script;
mod words;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use script::Script;
use tempfile::TempDir;

use super::{Bounds, Clock, JobStore, MemoryStore, SqliteOptions, Timestamp, open_sqlite};

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

    fn clock(&self) -> Clock {
        let time = self.0.clone();
        Arc::new(move || Timestamp::from_millis(time.load(Ordering::Relaxed)))
    }
}

/// Bounds that the scripts about bounds reach.
const BOUNDS: Bounds = Bounds { max_jobs: 40, max_bytes: 4000 };

fn memory(clock: &TestClock) -> Arc<dyn JobStore> {
    Arc::new(MemoryStore::new(BOUNDS, clock.clock()))
}

fn sqlite(directory: &TempDir, clock: &TestClock) -> Arc<dyn JobStore> {
    let options = SqliteOptions { bounds: BOUNDS, ..SqliteOptions::new(directory.path().join("jobs.db")) };
    open_sqlite(&options, clock.clock()).expect("a new store")
}

#[tokio::test]
async fn memory_conforms() {
    let mut found = Vec::new();
    for case in conformance::CASES {
        let clock = TestClock::new();
        found.extend(script::differences(case, Script::new(memory(&clock), clock.clone())).await);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test]
async fn sqlite_conforms() {
    let mut found = Vec::new();
    for case in conformance::CASES {
        let (clock, directory) = (TestClock::new(), TempDir::new().expect("a directory"));
        let store = sqlite(&directory, &clock);
        found.extend(script::differences(case, Script::new(store.clone(), clock.clone())).await);
        store.check().await.expect("an intact store");
        store.close().await;
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms() {
    let Some(cluster) = cluster::Cluster::start().await else { return };
    let mut found = Vec::new();
    for (number, case) in conformance::CASES.iter().enumerate() {
        let clock = TestClock::new();
        let (store, server) = postgres::store(&cluster, &format!("case_{number}"), BOUNDS).await;
        server.set_time((clock.clock())()).await;
        found.extend(script::differences(case, Script::new(store.clone(), clock).on_server(server)).await);
        store.check().await.expect("no lost keys");
        store.close().await;
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
