//! A session of the database, which is one connection; `src/detached/session.rs` has those of servers. Each transaction
//! makes its own settings, because a pooler may give each to another session of the database.

use std::{collections::HashMap, error::Error as _, io, time::Duration};

use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_postgres::{
    Client, Connection, Row, Socket, Statement,
    error::SqlState,
    tls::TlsStream,
    types::{ToSql, Type},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{store::StoreError, task::Tasks};

/// Every statement has an index, but without statistics the planner would scan whole tables. A replica that stands
/// still within a transaction must not hold its locks for long.
pub(super) const BEGIN: &str = "begin; set local search_path = waterwheel; set local jit = off; \
    set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_hashjoin = off; \
    set local enable_mergejoin = off; set local statement_timeout = '30s'; \
    set local idle_in_transaction_session_timeout = '5s'";

/// Time between two looks for an answer. A pause of this process is one look.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A parameter of a statement, and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection. It closes when it is dropped.
pub(super) struct Session {
    client: Client,
    /// The prepared statements; `None` if each is sent whole.
    statements: Option<Mutex<HashMap<String, Statement>>>,
    _driver: DropGuard,
}

impl Session {
    /// Starts to drive a connection, on the current runtime.
    pub(super) fn new<T>(client: Client, connection: Connection<Socket, T>, is_prepared: bool) -> Self
    where
        T: TlsStream + Unpin + Send + 'static,
    {
        let dropped = CancellationToken::new();
        let driver = dropped.clone().drop_guard();
        // A server that stands still would keep the connection open after its end.
        Tasks::new().spawn(async move { drop(dropped.run_until_cancelled(connection).await) });
        Self { client, statements: is_prepared.then(Mutex::default), _driver: driver }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs statements without parameters.
    pub(super) async fn run(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Runs a statement.
    pub(super) async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        let Some(statements) = &self.statements else { return Ok(self.client.query_typed(sql, parameters).await?) };
        let known = statements.lock().get(sql).cloned();
        let statement = if let Some(statement) = known {
            statement
        } else {
            let types: Vec<_> = parameters.iter().map(|(_, of)| of.clone()).collect();
            let statement = self.client.prepare_typed(sql, &types).await?;
            statements.lock().insert(sql.to_owned(), statement.clone());
            statement
        };
        let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
        Ok(self.client.query(&statement, &values).await?)
    }

    /// Runs a statement in a transaction of its own.
    pub(super) async fn look(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        let (begun, rows) = tokio::join!(self.run(BEGIN), self.query(sql, parameters));
        // It rolls a failed transaction back.
        self.run("commit").await?;
        begun.and(rows)
    }

    /// The server's session that answers.
    pub(super) async fn backend(&self) -> Result<i32, StoreError> {
        // Sent whole: another session does not know a prepared statement.
        let rows = self.client.query_typed("select pg_backend_pid()", &[]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default())
    }

    /// Runs a statement whose only answer is a number.
    pub(super) async fn number(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<i64, StoreError> {
        let rows = self.query(sql, parameters).await?;
        let row = rows.first().ok_or_else(|| StoreError::Unavailable("an answer without a row".to_owned()))?;
        Ok(row.try_get(0)?)
    }
}

/// Waits until the server answers, for as many looks as `patience` has seconds.
///
/// # Errors
/// Those of the answer, and [`mute`].
pub(super) async fn answered<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut answer = std::pin::pin!(answer);
    for _ in 0..patience.as_secs() {
        if let Ok(answer) = timeout(LOOK_INTERVAL, &mut answer).await {
            return answer;
        }
    }
    Err(mute(patience))
}

/// No answer came.
pub(super) fn mute(patience: Duration) -> StoreError {
    StoreError::Unavailable(format!("it has not answered for {} s", patience.as_secs()))
}

pub(super) fn told(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(told), _) => told.to_string(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = told(&error);
        // Only classes 22 (data), 23 (constraints) and 54 (limits) blame what was sent, as the driver does if it cannot
        // encode that. All else is the server's, a pooler's or the network's, and waiting or an operator mends it.
        match error.code().map(|code| (code, &code.code()[..2])) {
            Some((code, _)) if *code == SqlState::DISK_FULL => Self::DiskFull,
            Some((_, "40")) => Self::Conflict,
            Some((_, "22" | "23" | "54")) => Self::Database(text),
            None if is_of_driver(&error) => Self::Database(text),
            _ => Self::Unavailable(text),
        }
    }
}

/// Whether the driver refused to send or to read a value.
fn is_of_driver(error: &tokio_postgres::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    !error.is_closed()
        && error.source().is_some_and(|cause| io(cause).is_none_or(|kind| kind == io::ErrorKind::InvalidInput))
}
