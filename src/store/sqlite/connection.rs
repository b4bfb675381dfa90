//! A connection to the file of a store.

use std::{fs::File, path::PathBuf};

use rusqlite::{
    ErrorCode, Row, ToSql, params, params_from_iter,
    types::{FromSql, ToSqlOutput},
};

use super::SqliteOptions;
use crate::store::{
    Clock, Size, StoreError, Timestamp,
    sql::{Bulk, Cell, Cells, Connection, number},
    wakes::Changes,
};

/// The last number that was given out, and what the file holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Totals {
    number: i64,
    size: Size,
}

pub(super) struct SqliteConnection {
    // Closed before the lock is given up: fields are dropped in order.
    sqlite: rusqlite::Connection,
    clock: Clock,
    path: PathBuf,
    reserve_bytes: u64,
    totals: Totals,
    kept_totals: Totals,
    /// Held by the writer, as long as the file may be written.
    _lock: Option<File>,
}

impl SqliteConnection {
    /// A connection that only reads.
    pub(super) fn of_reader(sqlite: rusqlite::Connection, clock: Clock) -> Self {
        let (totals, path) = (Totals::default(), PathBuf::new());
        Self { sqlite, clock, path, reserve_bytes: 0, totals, kept_totals: totals, _lock: None }
    }

    /// The one that writes.
    pub(super) fn of_writer(
        sqlite: rusqlite::Connection,
        lock: File,
        options: &SqliteOptions,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let mut writer = Self::of_reader(sqlite, clock);
        let read = |row: &dyn Cells| {
            let size = Size { jobs: number(row, 1)?, bytes: number(row, 2)? };
            Ok(Totals { number: number(row, 0)?, size })
        };
        writer.totals = writer.query("select number, jobs, bytes from totals", &[], read)?.pop().unwrap_or_default();
        writer.kept_totals = writer.totals;
        writer.path.clone_from(&options.path);
        writer.reserve_bytes = options.reserve_bytes;
        writer._lock = Some(lock);
        Ok(writer)
    }

    fn run(&self, sql: &str) -> Result<(), StoreError> {
        self.sqlite.prepare_cached(sql)?.execute(())?;
        Ok(())
    }
}

impl Connection for SqliteConnection {
    const IS_SHARED: bool = false;

    fn now(&mut self) -> Result<Timestamp, StoreError> {
        Ok((self.clock)())
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        self.run("begin immediate")
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        if self.totals != self.kept_totals {
            let Totals { number, size } = self.totals;
            let mut update = self.sqlite.prepare_cached("update totals set number = $1, jobs = $2, bytes = $3")?;
            update.execute(params![number, size.jobs as i64, size.bytes as i64])?;
        }
        self.run("commit")?;
        self.kept_totals = self.totals;
        Ok(())
    }

    fn roll_back(&mut self) {
        self.totals = self.kept_totals;
        // SQLite may have done it already.
        let _ = self.run("rollback");
    }

    fn publish(&mut self, _: &Changes) {}

    fn lock_keys(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError> {
        let first = self.totals.number + 1;
        self.totals.number += count as i64;
        Ok((first..=self.totals.number).collect())
    }

    fn size(&self) -> Size {
        self.totals.size
    }

    fn resize(&mut self, jobs: i64, bytes: i64) {
        self.totals.size.add(jobs, bytes);
    }

    fn require_room(&self) -> Result<(), StoreError> {
        let is_low = rustix::fs::statvfs(&self.path)
            .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < self.reserve_bytes);
        if is_low { Err(StoreError::DiskFull) } else { Ok(()) }
    }

    fn floor(&mut self, _: &str, _: usize) -> i64 {
        i64::MIN
    }

    fn query<T>(
        &mut self,
        sql: &str,
        cells: &[Cell<'_>],
        mut read: impl FnMut(&dyn Cells) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.sqlite.prepare_cached(sql)?;
        let mut rows = statement.query(params_from_iter(cells))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(read(row)?);
        }
        Ok(found)
    }

    fn bulk<T>(
        &mut self,
        bulk: &Bulk,
        rows: &[Vec<Cell<'_>>],
        mut read: impl FnMut(&dyn Cells) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.sqlite.prepare_cached(&bulk.single)?;
        let mut found = Vec::with_capacity(rows.len());
        for cells in rows {
            let mut rows = statement.query(params_from_iter(cells))?;
            while let Some(row) = rows.next()? {
                found.push(read(row)?);
            }
        }
        Ok(found)
    }
}

fn cell<T: FromSql>(row: &Row<'_>, column: usize) -> Result<T, StoreError> {
    Ok(row.get(column)?)
}

impl Cells for Row<'_> {
    fn int(&self, column: usize) -> Result<Option<i64>, StoreError> {
        cell(self, column)
    }

    fn flag(&self, column: usize) -> Result<bool, StoreError> {
        cell(self, column)
    }

    fn text(&self, column: usize) -> Result<Option<String>, StoreError> {
        cell(self, column)
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>, StoreError> {
        cell(self, column).map(Option::unwrap_or_default)
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Int(int) => int.to_sql(),
            Self::Flag(flag) => flag.to_sql(),
            Self::Text(Some(text)) => Ok(ToSqlOutput::from(text.as_ref())),
            Self::Text(None) => Ok(ToSqlOutput::from(rusqlite::types::Null)),
            Self::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::DiskFull,
            _ => Self::Database(error.to_string()),
        }
    }
}
