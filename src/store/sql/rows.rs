//! Rows in a database. The SQL is the same for all databases; a [`Connection`] runs it. SQLite numbers `$` parameters
//! by first use, so each statement uses them in order.

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock, time::Duration};

use tokio::time::Instant;

use super::record::{COLUMNS, Cell, FIXED, Values, all_cells, changing_cells, read_depth, read_record};
use crate::store::{
    Depth, JobRecord, SessionId, Size, StoreError, Timestamp,
    engine::{LastTick, Places, Select},
    wakes::Changes,
};

/// A database connection of one thread.
pub(in crate::store) trait Connection: Sized + Send + 'static {
    /// Whether other processes write at the same time, so that rows must be locked before a change.
    const IS_SHARED: bool;

    /// The current time.
    fn now(&mut self) -> Result<Timestamp, StoreError>;
    /// `count` new sequence numbers, in ascending order.
    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError>;
    /// Number of jobs that have not ended, and bytes. It may be an estimate.
    fn size(&self) -> Size;
    /// Changes the size.
    fn resize(&mut self, jobs: i64, bytes: i64);
    /// Starts a writing transaction, and returns its time.
    fn begin(&mut self) -> Result<Timestamp, StoreError>;
    /// Commits the transaction.
    fn commit(&mut self) -> Result<(), StoreError>;
    /// Rolls the transaction back.
    fn roll_back(&mut self);
    /// Notifies other processes of the changes of a transaction.
    fn publish(&mut self, _: &Changes) {}
    /// Prevents others from changing jobs with ordering keys, until the transaction ends.
    fn lock_keys(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Fails if the space left is reserved for ending existing jobs, so that no new job fits.
    fn require_room(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Lowest place from which ready jobs are scanned.
    fn floor(&mut self, _kind: &str, _rank: usize) -> i64 {
        i64::MIN
    }
    /// Records a scan: the first and the last place found, and its duration if it scanned all places.
    fn note_scan(&mut self, _kind: &str, _rank: usize, _found: Option<(i64, i64)>, _took: Option<Duration>) {}
    /// Runs a statement, and reads the result rows.
    fn query<T>(
        &mut self,
        sql: &str,
        cells: &[Cell<'_>],
        read: impl FnMut(&mut Values) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError>;
    /// Runs a statement for many rows, and reads the result rows.
    fn bulk<T>(
        &mut self,
        bulk: &Bulk,
        rows: &[Vec<Cell<'_>>],
        read: impl FnMut(&mut Values) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError>;
    /// Runs a statement without result rows.
    fn run(&mut self, sql: &str, cells: &[Cell<'_>]) -> Result<(), StoreError> {
        self.query(sql, cells, |_| Ok(())).map(|_| ())
    }
    /// Runs a statement without result rows for many rows.
    fn run_bulk(&mut self, bulk: &Bulk, rows: &[Vec<Cell<'_>>]) -> Result<(), StoreError> {
        self.bulk(bulk, rows, |_| Ok(())).map(|_| ())
    }

    /// Adds jobs with their payloads. Returns the added rows; ids that exist already are left out.
    fn insert(&mut self, records: &[JobRecord]) -> Result<Vec<i64>, StoreError> {
        if !records.is_empty() {
            self.require_room()?;
        }
        let cells: Vec<_> = records.iter().map(all_cells).collect();
        let rows = self.bulk(&INSERT_JOBS, &cells, |row| row.number(0))?;
        let is_new = |record: &&JobRecord| record.payload_bytes > 0 && rows.binary_search(&record.row).is_ok();
        let payloads = records.iter().filter(is_new);
        let cells = payloads.map(|record| vec![Cell::int(record.row), Cell::Bytes(&record.request.job.payload)]);
        self.run_bulk(&INSERT_PAYLOADS, &cells.collect::<Vec<_>>())?;
        Ok(rows)
    }

    /// A job with its output, and with its payload if requested.
    fn get(&mut self, id: &str, with_payload: bool) -> Result<Option<JobRecord>, StoreError> {
        // One statement, so that the job and its bytes are consistent.
        let bytes = |table, has| format!("(select bytes from {table} where {table}.row = jobs.row and {has})");
        let (payload, output) = (bytes("payloads", with_payload), bytes("outputs", true));
        let sql = format!("select {}, {payload}, {output} from jobs where id = $1", *COLUMN_LIST);
        let read = |row: &mut Values| {
            let mut record = read_record(row)?;
            record.request.job.payload = row.bytes(COLUMNS.len()).into();
            record.output.bytes = row.bytes(COLUMNS.len() + 1).into();
            Ok(record)
        };
        Ok(self.query(&sql, &[Cell::text(id)], read)?.pop())
    }

    /// The existing jobs with these ids, in any order. Like the methods below, it leaves out payloads and outputs.
    fn find(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError> {
        let cells: Vec<_> = ids.iter().map(|id| vec![Cell::text(id)]).collect();
        self.bulk(&FIND_JOBS, &cells, read_record)
    }

    /// Saves the changing fields of jobs, and their outputs.
    fn save(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        let cells: Vec<_> = records.iter().map(changing_cells).collect();
        self.run_bulk(&SAVE_JOBS, &cells)?;
        let outputs = records.iter().filter(|record| !record.output.bytes.is_empty());
        let cells = outputs.map(|record| vec![Cell::int(record.row), Cell::Bytes(&record.output.bytes)]);
        self.run_bulk(&INSERT_OUTPUTS, &cells.collect::<Vec<_>>())
    }

    /// Removes jobs, their payloads and their outputs.
    fn remove(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        let rows = rows_of(records);
        ["jobs", "payloads", "outputs"].into_iter().try_for_each(|table| self.run_bulk(&delete(table), &rows))
    }

    /// Adds the payloads to records.
    fn load_payloads(&mut self, records: &mut [JobRecord]) -> Result<(), StoreError> {
        let payloads = self.bulk(&LOAD_PAYLOADS, &rows_of(records), |row| Ok((row.number(0)?, row.bytes(1))))?;
        let mut payloads: BTreeMap<i64, Vec<u8>> = payloads.into_iter().collect();
        for record in records {
            record.request.job.payload = payloads.remove(&record.row).unwrap_or_default().into();
        }
        Ok(())
    }

    /// Removes the output of a job.
    fn remove_output(&mut self, record: &JobRecord) -> Result<(), StoreError> {
        self.run_bulk(&delete("outputs"), &[vec![Cell::int(record.row)]])
    }

    /// Whether a job holds the ordering key in its pool.
    fn is_key_held(&mut self, pool: &str, key: &str) -> Result<bool, StoreError> {
        let sql = "select row from jobs where pool = $1 and ordering_key = $2 and holds_key";
        Ok(!self.query(sql, &[Cell::text(pool), Cell::text(key)], |_| Ok(()))?.is_empty())
    }

    /// At most `limit` jobs in the order of the selection.
    fn list(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        query_jobs(self, which, limit, "")
    }

    /// The same as `list`, but locks the jobs, so that no other transaction changes them.
    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        let lock = match which {
            _ if !Self::IS_SHARED => "",
            // Skip no locked job: none may stay leased when its session is removed.
            Select::Leased(_) => " for update",
            _ => " for update skip locked",
        };
        query_jobs(self, which, limit, lock)
    }

    /// Numbers of jobs by kind.
    fn depths(&mut self) -> Result<Vec<(String, Depth)>, StoreError> {
        let now = self.now()?;
        let mut depths = BTreeMap::new();
        self.query(DEPTHS, &[], |row| read_depth(&mut depths, row, now))?;
        Ok(depths.into_iter().collect())
    }

    /// Places of the ready jobs of each tenant, by kind and class; empty if the store always starts empty.
    fn places(&mut self) -> Result<Vec<Places>, StoreError> {
        let sql =
            "select kind, rank, tenant, min(place), max(place) from jobs where state = 1 group by kind, rank, tenant";
        self.query(sql, &[], |row| {
            let (kind, rank, tenant) = (row.text(0), row.number(1)?, row.text(2));
            Ok(Places { kind, rank, tenant, first: row.number(3)?, last: row.number(4)? })
        })
    }

    /// Length of a session's lease. Other transactions cannot remove the session before this one ends.
    fn session(&mut self, session: SessionId) -> Result<Option<Duration>, StoreError> {
        let lock = if Self::IS_SHARED { " for key share" } else { "" };
        let sql = format!("select lease_ms from sessions where session = $1{lock}");
        let found = self.query(&sql, &[Cell::int(session.0)], |row| row.number(0))?.pop();
        Ok(found.map(Duration::from_millis))
    }

    /// Saves a session and the end of its lease.
    fn set_session(&mut self, session: SessionId, lease: Duration, end: Timestamp) -> Result<(), StoreError> {
        let sql = "insert into sessions (session, lease_ms, ends_at) values ($1, $2, $3) \
                   on conflict (session) do update set ends_at = excluded.ends_at";
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        self.run(sql, &[Cell::int(session.0), Cell::int(lease), Cell::time(Some(end))])
    }

    /// Removes the sessions whose lease has ended, and returns them.
    fn remove_sessions(&mut self, now: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        let sql = "delete from sessions where ends_at <= $1 returning session";
        self.query(sql, &[Cell::time(Some(now))], |row| row.number(0).map(SessionId))
    }

    /// The last tick of a schedule.
    fn schedule(&mut self, name: &str) -> Result<Option<LastTick>, StoreError> {
        let sql = "select tick, pattern, run from schedules where name = $1";
        let read = |row: &mut Values| {
            Ok(LastTick { at: Timestamp::from_millis(row.number(0)?), pattern: row.text(1), run: row.text(2) })
        };
        Ok(self.query(sql, &[Cell::text(name)], read)?.pop())
    }

    /// Saves the last tick of a schedule.
    fn set_schedule(&mut self, name: &str, last: &LastTick) -> Result<(), StoreError> {
        let sql = "insert into schedules (name, tick, pattern, run) values ($1, $2, $3, $4) on conflict (name) \
                   do update set tick = excluded.tick, pattern = excluded.pattern, run = excluded.run";
        let LastTick { at, pattern, run } = last;
        self.run(sql, &[Cell::text(name), Cell::time(Some(*at)), Cell::text(pattern), Cell::text(run)])
    }

    /// Removes the last ticks of all schedules but these.
    fn keep_schedules(&mut self, names: &[String]) -> Result<(), StoreError> {
        let known = self.query("select name from schedules", &[], |row| Ok(row.text(0)))?;
        let gone = known.iter().filter(|name| !names.contains(name));
        gone.into_iter().try_for_each(|name| self.run("delete from schedules where name = $1", &[Cell::text(name)]))
    }
}

fn query_jobs<C: Connection>(
    connection: &mut C,
    which: Select<'_>,
    limit: usize,
    lock: &str,
) -> Result<Vec<JobRecord>, StoreError> {
    let floor = if let Select::Ready(kind, rank, _) = which { connection.floor(kind, rank) } else { i64::MIN };
    let (clause, mut cells) = which.clause(floor);
    cells.push(Cell::int(i64::try_from(limit).unwrap_or(i64::MAX)));
    let sql = format!("select {} from jobs where {clause} limit ${}{lock}", *COLUMN_LIST, cells.len());
    let start = Instant::now();
    let records = connection.query(&sql, &cells, read_record)?;
    if let Select::Ready(kind, rank, _) = which {
        let places = records.first().zip(records.last()).map(|(first, last)| (first.place, last.place));
        connection.note_scan(kind, rank, places, (floor == i64::MIN).then(|| start.elapsed()));
    }
    Ok(records)
}

fn rows_of(records: &[JobRecord]) -> Vec<Vec<Cell<'static>>> {
    records.iter().map(|record| vec![Cell::int(record.row)]).collect()
}

/// A statement for many rows: to run once for each row, or once with arrays of all columns.
pub(in crate::store) struct Bulk {
    pub(in crate::store) single: String,
    pub(in crate::store) arrays: String,
}

/// Kind, state, number of jobs, and earliest due time.
const DEPTHS: &str = "select kind, cast(0 as bigint), count(*), min(due_at) from jobs where state = 0 group by kind \
     union all select kind, cast(1 as bigint), count(*), min(due_at) from jobs where state = 1 group by kind \
     union all select kind, cast(2 as bigint), count(*), null from jobs where state = 2 group by kind \
     union all select kind, cast(3 as bigint), count(*), null from jobs where state = 3 group by kind \
     union all select kind, cast(5 as bigint), count(*), null from jobs where state = 5 group by kind";

static COLUMN_LIST: LazyLock<String> = LazyLock::new(|| names(&COLUMNS, ""));

static INSERT_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
    let head = format!("insert into jobs ({})", *COLUMN_LIST);
    let tail = "on conflict (id) do nothing returning row";
    Bulk {
        single: format!("{head} values ({}) {tail}", parameters(0, COLUMNS.len())),
        arrays: format!("{head} select * from unnest({}) {tail}", arrays(&COLUMNS)),
    }
});

static SAVE_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
    let columns = &COLUMNS[..FIXED];
    let set = format!("update jobs set ({})", names(&columns[1..], ""));
    Bulk {
        single: format!("{set} = ({}) where row = ?1", parameters(1, FIXED)),
        arrays: format!(
            "{set} = ({}) from unnest({}) as new ({}) where jobs.row = new.row",
            names(&columns[1..], "new."),
            arrays(columns),
            names(columns, "")
        ),
    }
});

static INSERT_PAYLOADS: LazyLock<Bulk> = LazyLock::new(|| insert_bytes("payloads"));
static INSERT_OUTPUTS: LazyLock<Bulk> = LazyLock::new(|| insert_bytes("outputs"));

static LOAD_PAYLOADS: LazyLock<Bulk> = LazyLock::new(|| Bulk {
    single: "select row, bytes from payloads where row = $1".to_owned(),
    arrays: "select row, bytes from payloads where row = any($1::bigint[])".to_owned(),
});

static FIND_JOBS: LazyLock<Bulk> = LazyLock::new(|| Bulk {
    single: format!("select {} from jobs where id = $1", *COLUMN_LIST),
    arrays: format!("select {} from jobs where id = any($1::text[]) order by row for update", *COLUMN_LIST),
});

/// Deletes rows of `jobs`, `payloads` or `outputs`.
fn delete(table: &str) -> Bulk {
    Bulk {
        single: format!("delete from {table} where row = $1"),
        arrays: format!("delete from {table} where row = any($1::bigint[])"),
    }
}

fn insert_bytes(table: &str) -> Bulk {
    Bulk {
        single: format!("insert into {table} (row, bytes) values ($1, $2)"),
        arrays: format!("insert into {table} (row, bytes) select * from unnest($1::bigint[], $2::bytea[])"),
    }
}

fn names(columns: &[(&str, &str)], prefix: &str) -> String {
    columns.iter().map(|(name, _)| format!("{prefix}{name}")).collect::<Vec<_>>().join(", ")
}

fn parameters(from: usize, to: usize) -> String {
    (from..to).map(|index| format!("?{}", index + 1)).collect::<Vec<_>>().join(", ")
}

fn arrays(columns: &[(&str, &str)]) -> String {
    let array = |(index, (_, of)): (usize, &(&str, &str))| format!("${}::{of}[]", index + 1);
    columns.iter().enumerate().map(array).collect::<Vec<_>>().join(", ")
}

impl<'a> Select<'a> {
    /// The condition and the order of a selection, with their parameters. A limit may follow.
    fn clause(self, floor: i64) -> (&'static str, Vec<Cell<'a>>) {
        let time = |now: Timestamp| Cell::time(Some(now));
        match self {
            Self::Ready(kind, rank, now) => (
                "state = 1 and kind = $1 and rank = $2 and place >= $3 and (expire_at is null or expire_at > $4) \
                 order by place, row",
                vec![Cell::text(kind), Cell::int(rank as i64), Cell::int(floor), time(now)],
            ),
            Self::Blocked(pool, key) => (
                "state = 2 and pool = $1 and ordering_key = $2 order by place",
                vec![Cell::text(pool), Cell::text(key)],
            ),
            Self::Due(now) => ("state = 0 and due_at <= $1 order by due_at, row", vec![time(now)]),
            Self::Expired(now) => ("state < 3 and expire_at <= $1 order by expire_at, row", vec![time(now)]),
            Self::Purgeable(now) => ("purge_at <= $1 order by purge_at, row", vec![time(now)]),
            Self::Leased(session) => ("state = 3 and session = $1 order by row", vec![Cell::int(session.0)]),
            Self::ToCancel(session) => {
                ("state = 3 and session = $1 and cancel_requested order by row", vec![Cell::int(session.0)])
            }
            Self::Matching { filter, states, before } => {
                let text = |text: Option<&'a String>| Cell::Text(text.map(|text| Cow::Borrowed(text.as_str())));
                let clause = "row < $1 and ($2 & (cast(1 as bigint) << cast(state as integer))) <> 0 \
                     and (cast($3 as text) is null or kind = $3) and (cast($4 as text) is null or tenant = $4) \
                     and (cast($5 as text) is null or spec -> 'labels' ->> $5 = $6) \
                     and (cast($7 as bigint) is null or created_at >= $7) \
                     and (cast($8 as bigint) is null or created_at < $8) order by row desc";
                let cells = vec![
                    Cell::int(before),
                    Cell::int(states),
                    text(filter.kind.as_ref()),
                    text(filter.tenant.as_ref()),
                    text(filter.label.as_ref().map(|(name, _)| name)),
                    text(filter.label.as_ref().map(|(_, value)| value)),
                    Cell::time(filter.created_from),
                    Cell::time(filter.created_before),
                ];
                (clause, cells)
            }
        }
    }
}
