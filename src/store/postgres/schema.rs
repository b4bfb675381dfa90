//! The schema: its migrations, and what `check --env` says of it.

use tokio_postgres::types::Type;

use super::{
    READERS, StoreError, WRITERS,
    database_session::{BEGIN, Parameter, Session, answered},
    hosts::Hosts,
};

/// One entry per schema version. Entries are never changed; new ones are appended.
const MIGRATIONS: &[&str] = &[include_str!("0001.sql")];
/// Advisory lock: only one process migrates at a time.
const MIGRATION_LOCK: i64 = 0x7777_6d69_6772;
/// Connections of a server: those that write and read, one that looks for changes, one that counts, one that listens.
const CONNECTIONS: i64 = (WRITERS + READERS + 3) as i64;
/// What the server leaves to roles that are not superusers. Other roles' sessions are counted, too.
const FREE: &str = "select current_setting('max_connections')::bigint \
    - current_setting('superuser_reserved_connections')::bigint \
    - coalesce(current_setting('reserved_connections', true), '0')::bigint \
    - (select coalesce(sum(numbackends), 0)::bigint from pg_stat_database) + 2";

/// Whether a host takes writes. A primary does not whose standby is lost or follows another primary: it answers, but
/// its commits wait, those of the connections that were dropped meanwhile included.
const TAKES_WRITES: &str = "select (current_setting('transaction_read_only') = 'off' and not exists ( \
    select from pg_stat_activity where usename = session_user and wait_event = 'SyncRep' \
    and query_start < clock_timestamp() - $1 * interval '1 s'))::int::bigint";

/// Connects, and checks that each connection is as its settings need it, and that the host takes writes.
pub(super) async fn connect(hosts: &Hosts) -> Result<(Session, Session), StoreError> {
    let (one, other) = (hosts.connect().await?, hosts.connect().await?);
    if hosts.is_prepared && !answered(hosts.patience, keeps_sessions(&one, &other)).await? {
        let help = "a pooler shares its sessions between transactions; set `store.prepared = false`, and \
                    `store.listen_url` to the database itself";
        return Err(StoreError::Database(help.to_owned()));
    }
    takes_writes(hosts, &one).await?;
    Ok((one, other))
}

/// # Errors
/// [`no_writes`], and those of the answer.
pub(super) async fn takes_writes(hosts: &Hosts, session: &Session) -> Result<(), StoreError> {
    let patience = hosts.patience.as_secs() as i64;
    let parameters: [Parameter<'_>; 1] = [(&patience, Type::INT8)];
    let answer = answered(hosts.patience, session.number(TAKES_WRITES, &parameters)).await?;
    if answer == 0 { Err(no_writes()) } else { Ok(()) }
}

pub(super) fn no_writes() -> StoreError {
    StoreError::Unavailable("it takes no writes: it is a standby, or waits for one".to_owned())
}

/// Whether a connection stays with its session. A pooler that shares sessions lends them to the other one.
async fn keeps_sessions(one: &Session, other: &Session) -> Result<bool, StoreError> {
    let before = one.backend().await?;
    other.run("begin").await?;
    other.backend().await?;
    let after = one.backend().await?;
    other.run("commit").await?;
    Ok(before == after)
}

/// Connects, and applies the missing migrations. A second process waits, and finds nothing to do.
pub(super) async fn migrate(hosts: &Hosts) -> Result<Session, StoreError> {
    let (session, _) = connect(hosts).await?;
    session.run(BEGIN).await?;
    session.query("select pg_advisory_xact_lock($1)", &[(&MIGRATION_LOCK, Type::INT8)]).await?;
    let found = version(&session).await?;
    if found == 0 {
        let create = "create schema if not exists waterwheel; \
                      create table if not exists versions (version bigint not null)";
        session.run(create).await?;
    }
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(found) {
        session.run(sql).await?;
        session.run(&format!("insert into versions values ({})", step + 1)).await?;
    }
    session.run("commit").await?;
    Ok(session)
}

/// Describes the server version and the state of the schema.
pub(super) async fn inspect(hosts: &Hosts) -> Result<String, StoreError> {
    let (session, _other) = connect(hosts).await?;
    let rows = session.query("select current_setting('server_version')", &[]).await?;
    let server: String = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
    let schema = match version(&session).await? {
        0 => "no schema yet; the server creates it".to_owned(),
        found if found < MIGRATIONS.len() => {
            format!("schema {found}; the server migrates it to {}", MIGRATIONS.len())
        }
        found => format!("schema {found}"),
    };
    let free = session.number(FREE, &[]).await?;
    if free < CONNECTIONS {
        let detail = format!("{free} connections are free, but a server needs {CONNECTIONS}; raise `max_connections`");
        return Err(StoreError::Database(detail));
    }
    Ok(format!("PostgreSQL {server}, {schema}, {free} connections free, of which a server takes {CONNECTIONS}"))
}

/// Version of the schema; 0 if there is none.
async fn version(session: &Session) -> Result<usize, StoreError> {
    if session.number("select count(to_regclass('waterwheel.versions'))", &[]).await? == 0 {
        return Ok(0);
    }
    let found = session.number("select coalesce(max(version), 0) from waterwheel.versions", &[]).await?;
    let known = MIGRATIONS.len() as i64;
    if found > known { Err(StoreError::Newer { found, known }) } else { Ok(usize::try_from(found).unwrap_or(0)) }
}
