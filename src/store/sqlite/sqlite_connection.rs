//! A connection to a store's SQLite file, which `src/store/sqlite.rs` opens. A checkpoint moves pages from the log to
//! the database. A separate thread does most of that during commits, and the writer only moves the last pages.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed, mpsc::sync_channel},
};

use rusqlite::{
    ErrorCode, Row, Statement, ToSql, ffi,
    hooks::Wal,
    params, params_from_iter,
    types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef},
};

use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Lock, SqliteOptions, Thread, beside, files::Opened, readers, scan::Visits};
use crate::store::{
    Clock, Size, StoreError, Timestamp,
    request::Added,
    sql::{Bulk, Cell, Connection, FileFigures, Value, Values, text},
};

/// Pages in the log at which the thread starts a checkpoint. The log has room for 4,000.
const MOVE_BESIDE: i32 = 2500;
/// Pages in the log at which the writer completes the checkpoint, so that the log restarts.
const MOVE_ALL: i32 = 3500;
/// Bytes in the log that only a reader explains, which keeps checkpoints from completing.
const LARGE_LOG: u64 = 64 << 20;

/// Steps of SQLite's machine between two looks at whether a statement is still wanted: some tenths of a millisecond.
const STEPS: i32 = 10_000;
/// Errors of the file or its disk, and not of a row.
const OUTAGES: [ErrorCode; 8] = [
    ErrorCode::SystemIoFailure,
    ErrorCode::OutOfMemory,
    ErrorCode::ReadOnly,
    ErrorCode::CannotOpen,
    ErrorCode::PermissionDenied,
    ErrorCode::DatabaseBusy,
    ErrorCode::DatabaseLocked,
    ErrorCode::OperationInterrupted,
];

/// The last sequence number, and the size of the contents.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    number: i64,
    size: Size,
}

pub(super) struct SqliteConnection {
    // Fields drop in order: the connection closes before the thread of checkpoints is joined and the lock is released.
    _visits: Option<Visits>,
    sqlite: rusqlite::Connection,
    /// `None` if it only reads, or is in memory.
    written: Option<Written>,
    clock: Clock,
    totals: Totals,
    /// The last committed number.
    kept_number: i64,
    ends_leases: bool,
}

/// The file of the writing connection.
struct Written {
    _checkpoints: Thread,
    path: PathBuf,
    opened: Opened,
    figures: Arc<FileFigures>,
    reserve_bytes: u64,
    /// Held while the file may be written.
    _lock: Lock,
}

impl Written {
    /// Bytes that are free on its disk.
    fn free_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(&self.path).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

impl SqliteConnection {
    /// A connection that reads, or the only one of an empty store.
    pub(super) fn new(sqlite: rusqlite::Connection, clock: Clock) -> Self {
        let (totals, kept_number) = (Totals::default(), 0);
        Self { _visits: None, sqlite, written: None, clock, totals, kept_number, ends_leases: false }
    }

    /// The only connection of an empty store that several servers of a process share.
    pub(super) fn shared(sqlite: rusqlite::Connection, clock: Clock) -> Self {
        Self { ends_leases: true, ..Self::new(sqlite, clock) }
    }

    /// The writing connection.
    pub(super) fn of_writer(
        sqlite: rusqlite::Connection,
        lock: Lock,
        options: &SqliteOptions,
        clock: Clock,
        figures: Arc<FileFigures>,
    ) -> Result<Self, StoreError> {
        let mut writer = Self::new(sqlite, clock);
        if let Some(row) = writer.query("select number, jobs, bytes from totals", &[])?.pop() {
            let size = Size { jobs: row.number(1)?, bytes: row.number(2)? };
            writer.totals = Totals { number: row.number(0)?, size };
        }
        writer.kept_number = writer.totals.number;
        let SqliteOptions { path, reserve_bytes, .. } = options.clone();
        writer._visits = Some(Visits::start(super::open_to_read(&path)?, path.clone())?);
        let (opened, _checkpoints) = (Opened::of(&path), checkpoints(&mut writer.sqlite, &path, figures.clone())?);
        writer.written = Some(Written { _checkpoints, path, opened, figures, reserve_bytes, _lock: lock });
        Ok(writer)
    }

    /// Bytes that new jobs may take of a disk: removed jobs leave room in the file.
    pub(super) fn room(&self, free_bytes: u64) -> Result<u64, StoreError> {
        let pages = self.number("pragma freelist_count")?.saturating_mul(self.number("pragma page_size")?);
        Ok(free_bytes.saturating_add(pages))
    }

    fn number(&self, sql: &str) -> Result<u64, StoreError> {
        Ok(self.sqlite.query_row(sql, (), |row| row.get::<_, i64>(0))?.unsigned_abs())
    }

    fn execute(&self, sql: &str) -> Result<(), StoreError> {
        self.sqlite.prepare_cached(sql)?.execute(())?;
        Ok(())
    }
}

impl Connection for SqliteConnection {
    const IS_SHARED: bool = false;
    const SPEC: &'static str = "case when json_valid(spec) then spec end";

    fn ends_leases(&self) -> bool {
        self.ends_leases
    }

    fn interrupt_on(&mut self, gone: CancellationToken) {
        // Without it, a statement goes on until its end.
        let _ = self.sqlite.progress_handler(STEPS, Some(move || gone.is_cancelled()));
    }

    fn now(&mut self) -> Result<Timestamp, StoreError> {
        Ok((self.clock)())
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError> {
        let first = self.totals.number + 1;
        self.totals.number += count as i64;
        Ok((first..=self.totals.number).collect())
    }

    fn size(&self) -> Size {
        self.totals.size
    }

    fn tenant_size(&mut self, tenant: &str) -> Result<Size, StoreError> {
        let sql = "select jobs, bytes from tenants where tenant = $1";
        let found = self.query(sql, &[text(tenant)])?.pop();
        found.map_or(Ok(Size::default()), |row| Ok(Size { jobs: row.number(0)?, bytes: row.number(1)? }))
    }

    fn begin(&mut self) -> Result<Timestamp, StoreError> {
        if let Some(file) = &self.written {
            file.opened.require()?;
            if let Some(free) = file.free_bytes() {
                file.figures.free_bytes.store(free, Relaxed);
            }
        }
        self.execute("begin immediate")?;
        self.now()
    }

    fn commit(&mut self, added: &Added) -> Result<(), StoreError> {
        let Totals { number, mut size } = self.totals;
        size.add(added.jobs, added.bytes);
        for (tenant, (jobs, bytes)) in &added.tenants {
            let add = "insert into tenants values ($1, $2, $3) on conflict (tenant) \
                       do update set jobs = jobs + excluded.jobs, bytes = bytes + excluded.bytes";
            self.sqlite.prepare_cached(add)?.execute(params![tenant, jobs, bytes])?;
            let tidy = "delete from tenants where tenant = $1 and jobs <= 0 and bytes <= 0";
            self.sqlite.prepare_cached(tidy)?.execute([tenant])?;
        }
        if (number, size) != (self.kept_number, self.totals.size) {
            let mut update = self.sqlite.prepare_cached("update totals set number = $1, jobs = $2, bytes = $3")?;
            update.execute(params![number, size.jobs as i64, size.bytes as i64])?;
        }
        self.execute("commit")?;
        (self.totals.size, self.kept_number) = (size, number);
        Ok(())
    }

    fn roll_back(&mut self) {
        self.totals.number = self.kept_number;
        // SQLite may have rolled back already.
        let _ = self.execute("rollback");
    }

    fn require_room(&self) -> Result<(), StoreError> {
        let Some(file) = &self.written else { return Ok(()) };
        let Some(free) = file.free_bytes() else { return Ok(()) };
        if free >= file.reserve_bytes || self.room(free)? >= file.reserve_bytes {
            return Ok(());
        }
        Err(StoreError::NoRoom)
    }

    fn query(&mut self, sql: &str, cells: &[Cell<'_>]) -> Result<Vec<Values>, StoreError> {
        run(&mut *self.sqlite.prepare_cached(sql)?, cells)
    }

    fn bulk(&mut self, bulk: &Bulk, rows: &[Vec<Cell<'_>>]) -> Result<Vec<Values>, StoreError> {
        let mut statement = self.sqlite.prepare_cached(&bulk.single)?;
        let mut found = Vec::with_capacity(rows.len());
        for cells in rows {
            found.append(&mut run(&mut statement, cells)?);
        }
        Ok(found)
    }
}

/// Starts the thread of checkpoints for the connection that writes to this file, and keeps the size of its log. It
/// ends once that connection is closed.
fn checkpoints(
    writer: &mut rusqlite::Connection,
    path: &Path,
    figures: Arc<FileFigures>,
) -> Result<Thread, StoreError> {
    let beside_writer = rusqlite::Connection::open(path)?;
    let page_size: i64 = writer.query_row("pragma page_size", (), |row| row.get(0))?;
    let (requests, requested) = sync_channel(1);
    let noted = figures.clone();
    writer.wal_hook(Some(move |log: &mut Wal, pages: i32| {
        let size = (i64::from(pages) * page_size).unsigned_abs();
        noted.log_bytes.store(size, Relaxed);
        // A checkpoint that fails, or overlaps with the other one, is retried after the next commit.
        if pages >= MOVE_ALL {
            let _ = log.checkpoint();
        }
        if (MOVE_BESIDE..MOVE_ALL).contains(&pages) || size >= LARGE_LOG {
            let _ = requests.try_send(());
        }
        Ok(())
    }))?;
    let shared_memory = beside(path, "-shm");
    Thread::start("checkpoint", move || {
        let mut reported = 0;
        for () in requested {
            let _ = beside_writer.query_row("pragma wal_checkpoint(passive)", (), |_| Ok(()));
            let size_bytes = figures.log_bytes.load(Relaxed);
            if size_bytes < LARGE_LOG {
                reported = 0;
            } else if size_bytes >= 2 * reported {
                reported = size_bytes;
                let readers = readers::others(&shared_memory);
                warn!(size_bytes, readers, "the log of the store grows because a reader holds it; end that reader");
            }
        }
    })
}

fn run(statement: &mut Statement<'_>, cells: &[Cell<'_>]) -> Result<Vec<Values>, StoreError> {
    let columns = statement.column_count();
    let values = |row: &Row<'_>| (0..columns).map(|column| row.get(column)).collect::<Result<_, _>>().map(Values);
    Ok(statement.query_map(params_from_iter(cells), values)?.collect::<Result<_, _>>()?)
}

impl FromSql for Value {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Null => Ok(Self::Null),
            ValueRef::Integer(int) => Ok(Self::Int(int)),
            ValueRef::Real(_) => Ok(Self::Unreadable),
            ValueRef::Text(_) => Ok(value.as_str().map_or(Self::Unreadable, |text| Self::Text(text.to_owned()))),
            ValueRef::Blob(bytes) => Ok(Self::Bytes(bytes.to_vec())),
        }
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Int(int) => int.to_sql(),
            Self::Flag(flag) => flag.to_sql(),
            Self::Text(Some(text)) => Ok(ToSqlOutput::from(text.as_ref())),
            Self::Text(None) => Ok(ToSqlOutput::from(rusqlite::types::Null)),
            Self::Json(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        // A shared-memory file that cannot grow also means a full disk.
        let is_shm = |error: &ffi::Error| error.extended_code == ffi::SQLITE_IOERR_SHMSIZE;
        match error.sqlite_error() {
            Some(found) if found.code == ErrorCode::DiskFull || is_shm(found) => Self::DiskFull,
            Some(ffi::Error { code: ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, .. }) => {
                Self::Corrupt(error.to_string())
            }
            Some(found) if OUTAGES.contains(&found.code) => Self::Unavailable(error.to_string()),
            _ => Self::Database(error.to_string()),
        }
    }
}
