//! Rows in a database. Statements are the same for all; a [`Connection`] runs them.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    record::{COLUMNS, Cell, Values, all_cells, changing_cells, read_depth, read_record},
    statements::{
        Bulk, COLUMN_LIST, DEPTHS, FIND_JOBS, INSERT_JOBS, INSERT_OUTPUTS, INSERT_PAYLOADS, LOAD_PAYLOADS, SAVE_JOBS,
        delete,
    },
};
use crate::store::{
    Depth, JobRecord, SessionId, Size, StoreError, StoredJob, Timestamp,
    engine::{Places, Rows, Select},
    wakes::Changes,
};

/// A connection of one thread.
pub(in crate::store) trait Connection: Send + 'static {
    /// Whether others write at the same time, so that rows must be locked before they are changed.
    const IS_SHARED: bool;

    /// The time.
    fn now(&mut self) -> Result<Timestamp, StoreError>;
    /// Starts a transaction that writes.
    fn begin(&mut self) -> Result<(), StoreError>;
    /// Keeps the transaction.
    fn commit(&mut self) -> Result<(), StoreError>;
    /// Gives up the transaction.
    fn roll_back(&mut self);
    /// Tells other processes what a transaction has changed.
    fn publish(&mut self, changes: &Changes);
    /// Keeps others from changing jobs that have ordering keys, until the transaction ends.
    fn lock_keys(&mut self) -> Result<(), StoreError>;
    /// That many new numbers, each larger than the one before.
    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError>;
    /// The same as [`Rows::size`].
    fn size(&self) -> Size;
    /// The same as [`Rows::resize`].
    fn resize(&mut self, jobs: i64, bytes: i64);
    /// Fails if there is no room for new jobs but what is kept for the end of others.
    fn require_room(&self) -> Result<(), StoreError>;
    /// Lowest place at which ready jobs are looked for.
    fn floor(&mut self, kind: &str, rank: usize) -> i64;
    /// Notes a look: the first and the last place found, and the time that it took if it was at all places.
    fn looked(&mut self, kind: &str, rank: usize, found: Option<(i64, i64)>, took: Option<Duration>);
    /// Runs a statement, and reads its rows.
    fn query<T>(
        &mut self,
        sql: &str,
        cells: &[Cell<'_>],
        read: impl FnMut(&mut Values) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError>;
    /// Runs a statement for many rows, and reads its rows.
    fn bulk<T>(
        &mut self,
        bulk: &Bulk,
        rows: &[Vec<Cell<'_>>],
        read: impl FnMut(&mut Values) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError>;
}

/// Rows behind a connection.
pub(in crate::store) struct SqlRows<C>(pub(in crate::store) C);

impl<C: Connection> SqlRows<C> {
    pub(super) fn get(&mut self, id: &str, with_payload: bool) -> Result<Option<StoredJob>, StoreError> {
        // One statement, so that the job and its bytes are of the same moment.
        let bytes = |table, has| format!("(select bytes from {table} where {table}.row = jobs.row and {has})");
        let (payload, output) = (bytes("payloads", with_payload), bytes("outputs", true));
        let sql = format!("select {}, {payload}, {output} from jobs where id = $1", *COLUMN_LIST);
        let read = |row: &mut Values| {
            let (payload, output) = (row.bytes(COLUMNS.len()), row.bytes(COLUMNS.len() + 1));
            Ok(StoredJob::new(read_record(row)?, payload.into(), output.into()))
        };
        Ok(self.0.query(&sql, &[Cell::text(id)], read)?.pop())
    }

    pub(super) fn list(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        self.query_jobs(which, limit, "")
    }

    pub(super) fn depths(&mut self) -> Result<Vec<(String, Depth)>, StoreError> {
        let now = self.0.now()?;
        let mut depths = BTreeMap::new();
        self.0.query(DEPTHS, &[], |row| read_depth(&mut depths, row, now))?;
        Ok(depths.into_iter().collect())
    }

    fn query_jobs(&mut self, which: Select<'_>, limit: usize, lock: &str) -> Result<Vec<JobRecord>, StoreError> {
        let floor = if let Select::Ready(kind, rank, _) = which { self.0.floor(kind, rank) } else { i64::MIN };
        let (clause, mut cells) = which.clause(floor);
        cells.push(Cell::int(i64::try_from(limit).unwrap_or(i64::MAX)));
        let sql = format!("select {} from jobs where {clause} limit ${}{lock}", *COLUMN_LIST, cells.len());
        let start = Instant::now();
        let records = self.0.query(&sql, &cells, read_record)?;
        if let Select::Ready(kind, rank, _) = which {
            let places = records.first().zip(records.last()).map(|(first, last)| (first.place, last.place));
            self.0.looked(kind, rank, places, (floor == i64::MIN).then(|| start.elapsed()));
        }
        Ok(records)
    }

    fn run(&mut self, sql: &str, cells: &[Cell<'_>]) -> Result<(), StoreError> {
        self.0.query(sql, cells, |_| Ok(())).map(|_| ())
    }

    fn run_bulk(&mut self, bulk: &Bulk, rows: &[Vec<Cell<'_>>]) -> Result<(), StoreError> {
        self.0.bulk(bulk, rows, |_| Ok(())).map(|_| ())
    }
}

impl<C: Connection> Rows for SqlRows<C> {
    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError> {
        self.0.numbers(count)
    }

    fn size(&self) -> Size {
        self.0.size()
    }

    fn resize(&mut self, jobs: i64, bytes: i64) {
        self.0.resize(jobs, bytes);
    }

    fn insert(&mut self, records: &[JobRecord]) -> Result<Vec<i64>, StoreError> {
        if !records.is_empty() {
            self.0.require_room()?;
        }
        let cells: Vec<_> = records.iter().map(all_cells).collect();
        let rows = self.0.bulk(&INSERT_JOBS, &cells, |row| row.number(0))?;
        let is_new = |record: &&JobRecord| record.payload_bytes > 0 && rows.binary_search(&record.row).is_ok();
        let payloads = records.iter().filter(is_new);
        let cells = payloads.map(|record| vec![Cell::int(record.row), Cell::Bytes(&record.request.job.payload)]);
        self.run_bulk(&INSERT_PAYLOADS, &cells.collect::<Vec<_>>())?;
        Ok(rows)
    }

    fn find(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError> {
        let cells: Vec<_> = ids.iter().map(|id| vec![Cell::text(id)]).collect();
        self.0.bulk(&FIND_JOBS, &cells, read_record)
    }

    fn save(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        let cells: Vec<_> = records.iter().map(changing_cells).collect();
        self.run_bulk(&SAVE_JOBS, &cells)
    }

    fn remove(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        let cells: Vec<_> = records.iter().map(|record| vec![Cell::int(record.row)]).collect();
        ["jobs", "payloads", "outputs"].into_iter().try_for_each(|table| self.run_bulk(&delete(table), &cells))
    }

    fn load_payloads(&mut self, records: &mut [JobRecord]) -> Result<(), StoreError> {
        let cells: Vec<_> = records.iter().map(|record| vec![Cell::int(record.row)]).collect();
        let payloads = self.0.bulk(&LOAD_PAYLOADS, &cells, |row| Ok((row.number(0)?, row.bytes(1))))?;
        let mut payloads: BTreeMap<i64, Vec<u8>> = payloads.into_iter().collect();
        for record in records {
            record.request.job.payload = payloads.remove(&record.row).unwrap_or_default().into();
        }
        Ok(())
    }

    fn insert_outputs(&mut self, outputs: &[(i64, Bytes)]) -> Result<(), StoreError> {
        let cells: Vec<_> = outputs.iter().map(|(row, bytes)| vec![Cell::int(*row), Cell::Bytes(bytes)]).collect();
        self.run_bulk(&INSERT_OUTPUTS, &cells)
    }

    fn remove_output(&mut self, record: &JobRecord) -> Result<(), StoreError> {
        self.run_bulk(&delete("outputs"), &[vec![Cell::int(record.row)]])
    }

    fn is_key_held(&mut self, pool: &str, key: &str) -> Result<bool, StoreError> {
        let sql = "select row from jobs where pool = $1 and ordering_key = $2 and holds_key";
        Ok(!self.0.query(sql, &[Cell::text(pool), Cell::text(key)], |_| Ok(()))?.is_empty())
    }

    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        let lock = match which {
            _ if !C::IS_SHARED => "",
            // None may be left behind when its session is gone.
            Select::Leased(_) => " for update",
            _ => " for update skip locked",
        };
        self.query_jobs(which, limit, lock)
    }

    fn places(&mut self) -> Result<Vec<Places>, StoreError> {
        let sql =
            "select kind, rank, tenant, min(place), max(place) from jobs where state = 1 group by kind, rank, tenant";
        self.0.query(sql, &[], |row| {
            let (kind, rank, tenant) = (row.text(0), row.number(1)?, row.text(2));
            Ok(Places { kind, rank, tenant, first: row.number(3)?, last: row.number(4)? })
        })
    }

    fn session(&mut self, session: SessionId) -> Result<Option<Duration>, StoreError> {
        let lock = if C::IS_SHARED { " for key share" } else { "" };
        let sql = format!("select lease_ms from sessions where session = $1{lock}");
        let found = self.0.query(&sql, &[Cell::int(session.0)], |row| row.number(0))?.pop();
        Ok(found.map(Duration::from_millis))
    }

    fn set_session(&mut self, session: SessionId, lease: Duration, end: Timestamp) -> Result<(), StoreError> {
        let sql = "insert into sessions (session, lease_ms, ends_at) values ($1, $2, $3) \
                   on conflict (session) do update set ends_at = excluded.ends_at";
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        self.run(sql, &[Cell::int(session.0), Cell::int(lease), Cell::time(Some(end))])
    }

    fn remove_sessions(&mut self, now: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        let sql = "delete from sessions where ends_at <= $1 returning session";
        self.0.query(sql, &[Cell::time(Some(now))], |row| row.number(0).map(SessionId))
    }

    fn schedule(&mut self, name: &str) -> Result<Option<(Timestamp, String)>, StoreError> {
        let sql = "select tick, run from schedules where name = $1";
        let read = |row: &mut Values| Ok((Timestamp::from_millis(row.number(0)?), row.text(1)));
        Ok(self.0.query(sql, &[Cell::text(name)], read)?.pop())
    }

    fn set_schedule(&mut self, name: &str, tick: Timestamp, run: &str) -> Result<(), StoreError> {
        let sql = "insert into schedules (name, tick, run) values ($1, $2, $3) \
                   on conflict (name) do update set tick = excluded.tick, run = excluded.run";
        self.run(sql, &[Cell::text(name), Cell::time(Some(tick)), Cell::text(run)])
    }
}
