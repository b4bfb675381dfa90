//! The store behind PgBouncer, which refuses settings at the start of a connection, and in transaction mode gives each
//! transaction another session of the server.

use std::sync::Arc;

use super::{
    BOUNDS, TestClock,
    beside::Pooler,
    cluster::Cluster,
    conformance,
    postgres::{at, store_at},
    promises::ends_while_awaited,
    script::{Script, differences},
};
use crate::store::{Bounds, JobStore, PostgresOptions, StoreError, inspect_postgres, open_postgres};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_behind_a_pooler_conforms() {
    let Some(cluster) = Cluster::start().await else { return };
    let mut found = Vec::new();
    for mode in ["session", "transaction"] {
        let Some(pooler) = Pooler::start(&cluster, mode).await else { return };
        for (number, case) in conformance::CASES.iter().enumerate() {
            let (clock, database) = (TestClock::new(), format!("{mode}_{number}"));
            let way = PostgresOptions { prepared: mode == "session", bounds: BOUNDS, ..at(&pooler.url(&database)) };
            let (store, server) = store_at(&cluster, &database, &way).await;
            server.set_time((clock.clock())()).await;
            found.extend(differences(case, Script::new(store.clone(), clock).on_server(server)).await);
            store.close().await;
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Prepared statements would be another client's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_shares_sessions_is_refused_unless_statements_are_sent_whole() {
    let Some(cluster) = Cluster::start().await else { return };
    let Some(pooler) = Pooler::start(&cluster, "transaction").await else { return };
    let prepared = at(&pooler.url("postgres"));
    let refusal = open_postgres(&prepared).err().expect("a refusal");
    assert!(refusal.to_string().contains("set `store.prepared = false`, and `store.listen_url`"), "{refusal}");
    assert_eq!(inspect_postgres(&prepared).await, Err(refusal));
    let found = inspect_postgres(&PostgresOptions { prepared: false, ..prepared }).await;
    assert!(found.as_ref().is_ok_and(|found| found.contains("no schema yet")), "{found:?}");
}

/// Notifications do not pass such a pooler: replicas look every second, or listen to the database itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_are_found_without_notifications() {
    let Some(cluster) = Cluster::start().await else { return };
    let Some(pooler) = Pooler::start(&cluster, "transaction").await else { return };
    let behind = PostgresOptions { prepared: false, ..at(&pooler.url("unheard")) };
    let open = |options: &PostgresOptions| -> Result<Arc<dyn JobStore>, StoreError> { open_postgres(options) };
    let (first, server) =
        store_at(&cluster, "unheard", &PostgresOptions { bounds: Bounds::default(), ..behind.clone() }).await;
    let second = open(&behind).expect("a replica");
    ends_while_awaited(&*first, &*second).await;

    let listening =
        |count: usize| format!("select count(*) = {count} from pg_stat_activity where query = 'listen waterwheel'");
    server.until(&listening(0)).await;
    let listen_url = Some(cluster.url("unheard").try_into().expect("a URL"));
    let third = open(&PostgresOptions { listen_url, ..behind }).expect("a replica");
    server.until(&listening(1)).await;
    for store in [first, second, third] {
        store.close().await;
    }
}
