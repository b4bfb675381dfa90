//! Stores on a PostgreSQL server of the tests' own.

use std::sync::Arc;

use tempfile::{NamedTempFile, TempDir};
use tokio_postgres::NoTls;

use super::cluster::Cluster;
use crate::{
    store::{Bounds, JobStore, PostgresOptions, StoreError, Timestamp, inspect_postgres, open_postgres},
    task::Tasks,
};

/// A connection to the database of one test.
pub(super) struct Server {
    client: tokio_postgres::Client,
    _tasks: Tasks,
}

fn options(cluster: &Cluster, database: &str) -> PostgresOptions {
    PostgresOptions::new(cluster.url(database).try_into().expect("a URL"))
}

/// A further replica on a store.
pub(super) fn replica(cluster: &Cluster, database: &str, bounds: Bounds) -> Arc<dyn JobStore> {
    open_postgres(&PostgresOptions { bounds, ..options(cluster, database) }).expect("a store")
}

/// A store in a new database, with a clock that the test sets.
pub(super) async fn store(cluster: &Cluster, database: &str, bounds: Bounds) -> (Arc<dyn JobStore>, Server) {
    let postgres = connect(&cluster.url("postgres")).await;
    postgres.client.batch_execute(&format!("create database {database}")).await.expect("a database");
    let store = replica(cluster, database, bounds);
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
        let sql = "select id from waterwheel.jobs where state = 2 and not exists (select 1 from waterwheel.jobs holder \
                   where holder.pool = jobs.pool and holder.ordering_key = jobs.ordering_key and holder.holds_key)";
        let rows = self.client.query(sql, &[]).await.expect("rows");
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(super) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect("it is done");
    }
}

async fn connect(url: &str) -> Server {
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
    let refusal = open_postgres(&newer).err().expect("a refusal");
    assert!(matches!(refusal, StoreError::Unavailable(_)), "{refusal:?}");
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
        ("require", None, right(), "TLS handshake"),
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
