//! A connection to PostgreSQL, for threads that may block.

use std::{error::Error, mem, sync::Arc, time::Duration};

use bytes::BytesMut;
use deadpool_postgres::Object;
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use super::replica::Replica;
use crate::store::{
    Size, StoreError, Timestamp,
    sql::{Bulk, Cell, Connection, Value, Values},
    wakes::Changes,
};

const NOW: &str = "select waterwheel_now()";
/// Advisory lock: only one transaction at a time changes jobs with ordering keys.
const KEYS_LOCK: i64 = 0x7777_6b65_7973;

pub(super) struct PostgresConnection {
    replica: Arc<Replica>,
    /// Borrowed from the connection pool during a transaction.
    client: Option<Object>,
    /// Jobs and bytes that the transaction adds.
    added: (i64, i64),
}

impl PostgresConnection {
    pub(super) fn new(replica: Arc<Replica>) -> Self {
        Self { replica, client: None, added: (0, 0) }
    }

    fn ask<T>(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
        mut read: impl FnMut(&mut Values) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let lent;
        let client = if let Some(client) = &self.client {
            client
        } else {
            lent = self.replica.runtime.block_on(self.replica.pool.get())?;
            &lent
        };
        let rows = self.replica.runtime.block_on(async {
            let statement = client.prepare_cached(sql).await?;
            client.query(&statement, parameters).await
        })?;
        let values = |row: &Row| (0..row.len()).map(|column| row.try_get(column)).collect::<Result<_, _>>();
        rows.iter().map(|row| read(&mut Values(values(row)?))).collect()
    }

    fn execute(&mut self, sql: &str) -> Result<(), StoreError> {
        let Some(client) = &self.client else { return Err(StoreError::Unavailable("no connection".to_owned())) };
        Ok(self.replica.runtime.block_on(client.batch_execute(sql))?)
    }
}

impl Connection for PostgresConnection {
    const IS_SHARED: bool = true;

    fn now(&mut self) -> Result<Timestamp, StoreError> {
        let now = self.ask(NOW, &[], |row| row.number(0))?.pop();
        Ok(Timestamp::from_millis(now.unwrap_or_default()))
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError> {
        let sql = "select nextval('numbers') from generate_series(1, $1::bigint)";
        self.ask(sql, &[&(count as i64)], |row| row.number(0))
    }

    fn size(&self) -> Size {
        let mut size = self.replica.size();
        size.add(self.added.0, self.added.1);
        size
    }

    fn resize(&mut self, jobs: i64, bytes: i64) {
        self.added.0 += jobs;
        self.added.1 += bytes;
    }

    fn begin(&mut self) -> Result<Timestamp, StoreError> {
        let client = self.replica.runtime.block_on(self.replica.pool.get())?;
        let begun = self.replica.runtime.block_on(async {
            let statement = client.prepare_cached(NOW).await?;
            // Both in one round trip, because every transaction needs the time.
            tokio::try_join!(client.batch_execute("begin"), client.query_one(&statement, &[]))
        });
        self.client = Some(client);
        Ok(Timestamp::from_millis(begun?.1.try_get(0)?))
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.execute("commit")?;
        self.client = None;
        let (jobs, bytes) = mem::take(&mut self.added);
        self.replica.resize(jobs, bytes);
        Ok(())
    }

    fn roll_back(&mut self) {
        self.added = (0, 0);
        if self.execute("rollback").is_err()
            && let Some(client) = self.client.take()
        {
            // The state of the connection is unknown, so it must not return to the pool.
            drop(Object::take(client));
        }
        self.client = None;
    }

    fn publish(&mut self, changes: &Changes) {
        self.replica.publish(changes);
    }

    fn lock_keys(&mut self) -> Result<(), StoreError> {
        self.ask("select pg_advisory_xact_lock($1)", &[&KEYS_LOCK], |_| Ok(())).map(|_| ())
    }

    fn floor(&mut self, kind: &str, rank: usize) -> i64 {
        self.replica.floor(kind, rank)
    }

    fn note_scan(&mut self, kind: &str, rank: usize, found: Option<(i64, i64)>, took: Option<Duration>) {
        self.replica.note_scan(kind, rank, found, took);
    }

    fn query<T>(
        &mut self,
        sql: &str,
        cells: &[Cell<'_>],
        read: impl FnMut(&mut Values) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let parameters: Vec<_> = cells.iter().map(|cell| cell as &(dyn ToSql + Sync)).collect();
        self.ask(sql, &parameters, read)
    }

    fn bulk<T>(
        &mut self,
        bulk: &Bulk,
        rows: &[Vec<Cell<'_>>],
        read: impl FnMut(&mut Values) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let column = |index: usize| rows.iter().map(|row| &row[index]).collect::<Vec<_>>();
        let columns: Vec<_> = (0..first.len()).map(column).collect();
        let parameters: Vec<_> = columns.iter().map(|column| column as &(dyn ToSql + Sync)).collect();
        self.ask(&bulk.arrays, &parameters, read)
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Int(int) => int.to_sql(of, out),
            Self::Flag(flag) => flag.to_sql(of, out),
            Self::Text(text) => text.as_deref().to_sql(of, out),
            Self::Bytes(bytes) => bytes.to_sql(of, out),
        }
    }

    fn accepts(of: &Type) -> bool {
        matches!(*of, Type::INT8 | Type::BOOL | Type::TEXT | Type::JSON | Type::BYTEA)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *of {
            Type::INT8 => Self::Int(i64::from_sql(of, raw)?),
            Type::BOOL => Self::Int(bool::from_sql(of, raw)?.into()),
            Type::BYTEA => Self::Bytes(raw.to_vec()),
            _ => Self::Text(str::from_utf8(raw)?.to_owned()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(of: &Type) -> bool {
        <Cell<'_> as ToSql>::accepts(of) || *of == Type::VOID
    }
}
