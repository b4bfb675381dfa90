//! Databases that are away: ended, standing still, or read-only. A refusal of one job is none.

use std::{sync::Arc, time::Duration};

use rustix::process::Signal;
use tokio::time::{Instant, timeout};

use super::{
    beside::Mute,
    cluster::Cluster,
    postgres::{PATIENCE, connect, store},
};
use crate::{
    model::Job,
    store::{Bounds, Extent, JobStore, NewJob, PostgresOptions, StoreError, Submission, Submitted, open_postgres},
};

async fn create(store: &dyn JobStore, id: &str) -> Result<Vec<Submitted>, StoreError> {
    let jobs = vec![NewJob::new(id, "p", Job::new("k", "x"))];
    // Without a bound of its own, a call would hang with its database.
    timeout(PATIENCE, store.submit(Submission { jobs, session: None })).await.expect("an answer")
}

/// Creates a job as soon as the database is there.
async fn created(store: &dyn JobStore, id: &str) {
    let begin = Instant::now();
    while let Err(error) = create(store, id).await {
        assert!(error.is_outage() && begin.elapsed() < PATIENCE, "{error}");
        tokio::task::yield_now().await;
    }
}

async fn is_away(store: &dyn JobStore, told: &str) {
    let begin = Instant::now();
    loop {
        match create(store, "refused").await {
            Err(StoreError::Unavailable(text)) if text.contains(told) => return,
            answer => assert!(begin.elapsed() < PATIENCE, "{answer:?}"),
        }
    }
}

fn open(hosts: &[String]) -> Arc<dyn JobStore> {
    let url = format!("postgres://test@{}/postgres", hosts.join(","));
    open_postgres(&PostgresOptions::new(url.try_into().expect("a URL"))).expect("a store")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_opens_while_its_database_is_away_and_waits_for_it() {
    let Some(cluster) = Cluster::start().await else { return };
    cluster.halt().await;
    let store = open(&[cluster.host()]);
    is_away(&*store, "error connecting to server").await;
    cluster.resume().await;
    created(&*store, "a").await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stands_still_is_away_until_it_goes_on() {
    let Some(cluster) = Cluster::start().await else { return };
    let store = open(&[cluster.host()]);
    created(&*store, "a").await;
    cluster.signal(Signal::STOP);
    let begin = Instant::now();
    let (writing, reading) = tokio::join!(create(&*store, "b"), store.get("a", Extent::All));
    eprintln!("away after {:.1?}", begin.elapsed());
    assert!(matches!(writing, Err(StoreError::Unavailable(_))), "{writing:?}");
    assert!(matches!(reading, Err(StoreError::Unavailable(_))), "{reading:?}");
    // What comes later does not wait.
    is_away(&*store, "").await;
    cluster.signal(Signal::CONT);
    created(&*store, "b").await;
    store.close().await;
}

/// The host that never answers is the first of the URL, and the primary stands still before the standby follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_takes_over_although_two_hosts_are_mute() {
    let Some(primary) = Cluster::start().await else { return };
    let (mute, standby) = (Mute::new(), primary.standby().await);
    let store = open(&[mute.host(), standby.host(), primary.host()]);
    created(&*store, "a").await;
    let server = connect(&primary.url("postgres")).await;
    server.until("select bool_and(replay_lsn = pg_current_wal_lsn()) from pg_stat_replication").await;
    primary.signal(Signal::STOP);
    is_away(&*store, "").await;
    standby.promote().await;
    created(&*store, "b").await;
    assert!(store.get("a", Extent::All).await.expect("an answer").is_some());
    store.close().await;
}

/// Its standby was promoted, so that no commit of it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_waits_for_its_standby_is_left_for_the_new_one() {
    let Some(primary) = Cluster::start().await else { return };
    let standby = primary.standby().await;
    let url = format!("postgres://test@{},{}/postgres", primary.host(), standby.host());
    let url = url.try_into().expect("a URL");
    let options = PostgresOptions { patience: Duration::from_secs(1), ..PostgresOptions::new(url) };
    let store = open_postgres(&options).expect("a store");
    primary.put("postgresql.auto.conf", "synchronous_standby_names = '*'\n");
    primary.signal(Signal::HUP);
    let server = connect(&primary.url("postgres")).await;
    server.until("select bool_or(sync_state = 'sync') is true from pg_stat_replication").await;
    created(&*store, "a").await;
    standby.promote().await;
    is_away(&*store, "or waits for one").await;
    created(&*store, "b").await;
    let server = connect(&standby.url("postgres")).await;
    server.until("select array['a', 'b'] <@ array_agg(id) from waterwheel.jobs").await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_is_away() {
    let Some(cluster) = Cluster::start().await else { return };
    let (store, server) = store(&cluster, "readonly", Bounds::default()).await;
    created(&*store, "a").await;
    let set = async |setting: &str| {
        server.run(&format!("alter system set default_transaction_read_only = {setting}")).await;
        server.run("select pg_reload_conf()").await;
    };
    set("on").await;
    is_away(&*store, "takes no writes").await;
    set("off").await;
    created(&*store, "b").await;
    store.close().await;
}

/// Only what was sent can be refused. What the database lacks, its operator may give back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_column_cannot_hold_is_refused_alone_and_a_missing_table_is_an_outage() {
    let Some(cluster) = Cluster::start().await else { return };
    let (store, server) = store(&cluster, "refusals", Bounds::default()).await;
    let refused = create(&*store, "a\0b").await.expect_err("a text without NUL");
    assert!(matches!(&refused, StoreError::Database(text) if text.contains("UTF8")), "{refused:?}");
    created(&*store, "a").await;
    server.run("alter table waterwheel.jobs rename to hidden").await;
    let outage = create(&*store, "b").await.expect_err("no table");
    assert!(outage.is_outage(), "{outage:?}");
    server.run("alter table waterwheel.hidden rename to jobs").await;
    created(&*store, "b").await;
    store.close().await;
}
