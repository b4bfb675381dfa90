//! A connection to PostgreSQL, for threads that may block.

use std::{collections::BTreeSet, error::Error, sync::Arc, time::Duration};

use bytes::BytesMut;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use super::{
    database_session::{BEGIN, Parameter, Session},
    replica::Replica,
};
use crate::store::{
    Size, StoreError, Timestamp,
    request::Added,
    sql::{Bulk, Cell, Connection, Value, Values},
    wakes::Changes,
};

const NOW: &str = "select waterwheel.waterwheel_now()";
/// Advisory lock: a transaction that locks any keys shares it, and one that locks all has it alone.
const KEYS_LOCK: i64 = 0x7777_6b65_7973;
/// The sort of the advisory locks of single keys.
const KEY_LOCKS: i32 = 0x7777_6b65;
/// Advisory lock: only one transaction at a time leases jobs of kinds with a limit.
const LIMITS_LOCK: i64 = 0x7777_6c69_6d69;

/// Bound of the time of a transaction.
const MAX_TIME: Duration = Duration::from_secs(30);
/// Largest message that the server takes, without what stands around the values.
const MAX_MESSAGE: usize = 1000 << 20;

pub(super) struct PostgresConnection {
    replica: Arc<Replica>,
    /// `None` before the first use, and after a failure that leaves its state unknown.
    session: Option<Session>,
    is_in_transaction: bool,
    /// When the transaction must have ended.
    until: Instant,
}

impl PostgresConnection {
    pub(super) fn new(replica: Arc<Replica>) -> Self {
        Self { replica, session: None, is_in_transaction: false, until: Instant::now() }
    }

    fn ask(&mut self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Values>, StoreError> {
        let rows = if self.is_in_transaction {
            self.on_session(async |session| session.query(sql, parameters).await)?
        } else {
            self.until = Instant::now() + MAX_TIME;
            self.on_session(async |session| session.look(sql, parameters).await)?
        };
        let values = |row: &Row| (0..row.len()).map(|column| row.try_get(column)).collect::<Result<_, _>>();
        rows.iter().map(|row| Ok(Values(values(row)?))).collect()
    }

    /// Blocks until the database has answered, is away, or takes too long. Connects first if need be.
    fn on_session<T>(&mut self, work: impl AsyncFnOnce(&Session) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let Self { replica, session, is_in_transaction, until, .. } = self;
        let answer = replica.runtime.block_on(async {
            let answer = async {
                // A transaction ends with its connection.
                if !*is_in_transaction && session.as_ref().is_none_or(Session::is_closed) {
                    *session = Some(replica.connect().await?);
                }
                let Some(session) = session else { return Err(StoreError::Unavailable("no connection".to_owned())) };
                work(session).await
            };
            tokio::select! {
                answer = answer => answer,
                error = replica.away() => Err(error),
                () = sleep_until(*until) => Err(StoreError::Unavailable(format!("no answer for {MAX_TIME:?}"))),
            }
        });
        if answer.as_ref().is_err_and(StoreError::is_outage) {
            *session = None;
        }
        answer
    }
}

impl Connection for PostgresConnection {
    const IS_SHARED: bool = true;

    fn now(&mut self) -> Result<Timestamp, StoreError> {
        let now = self.ask(NOW, &[])?.pop();
        now.map_or(Ok(Timestamp::default()), |row| row.number(0).map(Timestamp::from_millis))
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError> {
        let sql = "select nextval('numbers') from generate_series(1, $1::bigint)";
        self.ask(sql, &[(&(count as i64), Type::INT8)])?.iter().map(|row| row.number(0)).collect()
    }

    fn size(&self) -> Size {
        self.replica.sizes.lock().all
    }

    fn tenant_size(&mut self, tenant: &str) -> Result<Size, StoreError> {
        Ok(self.replica.sizes.lock().tenants.get(tenant).copied().unwrap_or_default())
    }

    fn begin(&mut self) -> Result<Timestamp, StoreError> {
        self.until = Instant::now() + MAX_TIME;
        // Both in one round trip, because every transaction needs the time.
        let begun = self.on_session(async |session| tokio::try_join!(session.run(BEGIN), session.number(NOW, &[])));
        self.is_in_transaction = begun.is_ok();
        if begun.is_err() {
            self.session = None;
        }
        Ok(Timestamp::from_millis(begun?.1))
    }

    fn commit(&mut self, added: &Added) -> Result<(), StoreError> {
        self.on_session(async |session| session.run("commit").await)?;
        self.is_in_transaction = false;
        self.replica.resize(added);
        Ok(())
    }

    fn roll_back(&mut self) {
        if self.is_in_transaction && self.on_session(async |session| session.run("rollback").await).is_err() {
            self.session = None;
        }
        self.is_in_transaction = false;
    }

    fn publish(&mut self, changes: &Changes) {
        self.replica.publish(changes);
    }

    fn lock_keys(&mut self, keys: Option<&BTreeSet<String>>) -> Result<(), StoreError> {
        let Some(keys) = keys else {
            return self.ask("select pg_advisory_xact_lock($1)", &[(&KEYS_LOCK, Type::INT8)]).map(drop);
        };
        if keys.is_empty() {
            return Ok(());
        }
        // In one order, so that no two transactions wait for each other.
        let sql = "select pg_advisory_xact_lock_shared($1) union all select pg_advisory_xact_lock($2, hash) from \
                   (select distinct hashtext(key) as hash from unnest($3) as key order by hash) as hashes";
        let keys: Vec<_> = keys.iter().collect();
        let parameters: [Parameter<'_>; 3] =
            [(&KEYS_LOCK, Type::INT8), (&KEY_LOCKS, Type::INT4), (&keys, Type::TEXT_ARRAY)];
        self.ask(sql, &parameters).map(drop)
    }

    fn try_lock_key(&mut self, key: &str) -> Result<bool, StoreError> {
        let sql = "select case when pg_try_advisory_xact_lock_shared($1) \
                   then pg_try_advisory_xact_lock($2, hashtext($3)) else false end";
        let parameters: [Parameter<'_>; 3] = [(&KEYS_LOCK, Type::INT8), (&KEY_LOCKS, Type::INT4), (&key, Type::TEXT)];
        Ok(self.ask(sql, &parameters)?.pop().map_or(Ok(0), |row| row.number::<u8>(0))? == 1)
    }

    fn lock_limits(&mut self) -> Result<(), StoreError> {
        self.ask("select pg_advisory_xact_lock($1)", &[(&LIMITS_LOCK, Type::INT8)]).map(drop)
    }

    fn floor(&mut self, kind: &str, rank: usize) -> i64 {
        self.replica.floor(kind, rank)
    }

    fn note_scan(&mut self, kind: &str, rank: usize, found: Option<(i64, i64)>, took: Option<Duration>) {
        self.replica.note_scan(kind, rank, found, took);
    }

    fn query(&mut self, sql: &str, cells: &[Cell<'_>]) -> Result<Vec<Values>, StoreError> {
        let parameters: Vec<_> = cells.iter().map(|cell| (cell as &(dyn ToSql + Sync), cell.types().0)).collect();
        self.ask(sql, &parameters)
    }

    fn bulk(&mut self, bulk: &Bulk, rows: &[Vec<Cell<'_>>]) -> Result<Vec<Values>, StoreError> {
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        if rows.iter().flatten().map(Cell::size).sum::<usize>() > MAX_MESSAGE {
            return Err(StoreError::Database(format!("more than {MAX_MESSAGE} bytes at once")));
        }
        let column = |index: usize| rows.iter().map(|row| &row[index]).collect::<Vec<_>>();
        let columns: Vec<_> = (0..first.len()).map(column).collect();
        let types = first.iter().map(|cell| cell.types().1);
        let parameters: Vec<_> = columns.iter().map(|column| column as &(dyn ToSql + Sync)).zip(types).collect();
        self.ask(&bulk.arrays, &parameters)
    }
}

impl Cell<'_> {
    /// The type of a parameter, and of an array of such.
    fn types(&self) -> (Type, Type) {
        match self {
            Self::Int(_) => (Type::INT8, Type::INT8_ARRAY),
            Self::Flag(_) => (Type::BOOL, Type::BOOL_ARRAY),
            Self::Text(_) => (Type::TEXT, Type::TEXT_ARRAY),
            Self::Json(_) => (Type::JSON, Type::JSON_ARRAY),
            Self::Bytes(_) => (Type::BYTEA, Type::BYTEA_ARRAY),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Int(_) | Self::Flag(_) => 8,
            Self::Text(text) => text.as_ref().map_or(0, |text| text.len()),
            Self::Json(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Int(int) => int.to_sql(of, out),
            Self::Flag(flag) => flag.to_sql(of, out),
            Self::Text(text) => text.as_deref().to_sql(of, out),
            Self::Json(text) => text.to_sql(of, out),
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
