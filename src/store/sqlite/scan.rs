//! Reads all jobs of a file, also where SQLite cannot read some of them. A check and a salvage visit them; a thread
//! visits them again and again while the store is open.

use std::{
    ops::RangeInclusive,
    path::PathBuf,
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::time::Instant;
use tracing::error;

use super::Thread;
use crate::store::{
    StoreError,
    sql::{COLUMN_LIST, COLUMNS, Values, read_record},
};

/// Jobs that are read in one transaction, so that it keeps the log from being merged for a moment only.
const BATCH: i64 = 200;
/// Pause after a batch, as a multiple of the time that it took.
const PAUSE: u32 = 50;
/// Pause between two visits of all jobs.
const REST: Duration = Duration::from_secs(3600);
/// Rows behind the last known one that are tried where the file does not say how many there are.
const BEYOND: i64 = 1_000_000;

/// Goes through the numbers of all jobs, in order.
pub(super) struct Scan {
    last: i64,
    end: i64,
}

/// What a step of a scan found.
pub(super) enum Found {
    Rows(Vec<i64>),
    /// SQLite cannot read them.
    Lost(RangeInclusive<i64>),
}

impl Found {
    /// What keeps a server from running these jobs.
    pub(super) fn faults(&self, file: &Connection) -> Vec<String> {
        match self {
            Self::Rows(rows) => rows.iter().filter_map(|row| fault_of(file, *row)).collect(),
            Self::Lost(rows) => vec![lost(rows)],
        }
    }
}

impl Scan {
    pub(super) fn new(file: &Connection) -> Self {
        let ends = ["select max(row) from jobs", "select max(row) from payloads", "select number from totals"];
        let ends = ends.iter().filter_map(|sql| file.query_row(sql, (), |row| row.get::<_, Option<i64>>(0)).ok()?);
        Self { last: 0, end: ends.max().unwrap_or(BEYOND) }
    }

    /// The next rows; `None` after the last ones.
    pub(super) fn next(&mut self, file: &Connection) -> Option<Found> {
        if let Ok(rows) = batch(file, self.last) {
            self.last = *rows.last()?;
            return Some(Found::Rows(rows));
        }
        // Around a page that cannot be read, rows are found by their number.
        let mut lost = None;
        while self.last < self.end {
            let row = self.last + 1;
            let found = file.prepare_cached("select 1 from jobs where row = ?1").and_then(|mut it| it.exists([row]));
            if found.is_ok() && lost.is_some() {
                break;
            }
            self.last = row;
            match found {
                Ok(true) => return Some(Found::Rows(vec![row])),
                Ok(false) => {}
                Err(_) => lost = lost.or(Some(row)),
            }
        }
        lost.map(|first| Found::Lost(first..=self.last))
    }
}

fn batch(file: &Connection, last: i64) -> rusqlite::Result<Vec<i64>> {
    let mut rows = file.prepare_cached("select row from jobs where row > ?1 order by row limit ?2")?;
    rows.query_map([last, BATCH], |row| row.get(0))?.collect()
}

/// What keeps a server from running a job, whose row can be found.
pub(super) fn fault_of(file: &Connection, row: i64) -> Option<String> {
    let read = || -> rusqlite::Result<Option<String>> {
        let payload = "(select bytes from payloads where payloads.row = jobs.row)";
        let sql = format!("select {}, {payload} from jobs where row = ?1", *COLUMN_LIST);
        let values = |it: &rusqlite::Row<'_>| (0..=COLUMNS.len()).map(|column| it.get(column)).collect();
        let values = file.prepare_cached(&sql)?.query_row([row], values).optional()?;
        let Some(mut values) = values.map(Values) else { return Ok(None) };
        let mut record = read_record(&mut values);
        record.request.job.payload = values.bytes(COLUMNS.len()).into();
        record.check_payload();
        Ok(record.fault.map(|fault| format!("row {row}, job {} is unreadable: {fault}", record.request.id)))
    };
    read().unwrap_or_else(|error| Some(format!("row {row}: {error}")))
}

pub(super) fn lost(rows: &RangeInclusive<i64>) -> String {
    format!("rows {} to {} cannot be read", rows.start(), rows.end())
}

/// Queries for the rows of a range that an index does not have, each with the name of its index.
fn index_checks(file: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let mut indexes = file.prepare(
        "select name, coalesce((select sql from sqlite_schema where name = list.name), ''), \
         (select group_concat('x.' || name || ' is j.' || name, ' and ') from pragma_index_info(list.name)) \
         from pragma_index_list('jobs') as list",
    )?;
    let check = |row: &rusqlite::Row<'_>| {
        let (name, sql, is_same): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let condition = sql.split_once(" where ").map_or("true", |(_, condition)| condition);
        let query = format!(
            "select row from jobs as j not indexed where row between ?1 and ?2 and {condition} and not exists \
             (select 1 from jobs as x indexed by {name} where {is_same} and x.row = j.row and {condition}) limit 1"
        );
        Ok((name, query))
    };
    indexes.query_map((), check)?.collect()
}

/// The thread that visits all jobs while the store is open. It ends when this is dropped.
pub(super) struct Visits {
    // Fields drop in order: the thread ends once it is told so.
    _stop: SyncSender<()>,
    _thread: Thread,
}

impl Visits {
    pub(super) fn start(file: Connection, path: PathBuf) -> Result<Self, StoreError> {
        let (stop, stopped) = sync_channel::<()>(1);
        let visit = move || {
            let mut scan = None;
            loop {
                let begin = Instant::now();
                let found = scan.get_or_insert_with(|| Scan::new(&file)).next(&file);
                for damage in found.iter().flat_map(|found| damage_of(&file, found)) {
                    error!(
                        file = %path.display(),
                        "the store is damaged: {damage}; stop the server, and see `waterwheel store check`"
                    );
                }
                let pause = if found.is_some() { begin.elapsed() * PAUSE } else { REST };
                if found.is_none() {
                    scan = None;
                }
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        Ok(Self { _stop: stop, _thread: Thread::start("store-check", visit)? })
    }
}

/// The first damage of some rows, and of the indexes that must have them.
fn damage_of(file: &Connection, found: &Found) -> Vec<String> {
    // One view of the file for all queries.
    let Ok(view) = file.unchecked_transaction() else { return Vec::new() };
    let mut damage = found.faults(&view);
    damage.truncate(1);
    let Found::Rows(rows) = found else { return damage };
    let range = params![rows.first(), rows.last()];
    for (name, query) in index_checks(&view).unwrap_or_default() {
        let missing =
            view.prepare_cached(&query).and_then(|mut it| it.query_row(range, |row| row.get::<_, i64>(0)).optional());
        match missing {
            Ok(None) => {}
            Ok(Some(row)) => damage.push(format!("index {name} does not have row {row}")),
            Err(error) => damage.push(format!("index {name}: {error}")),
        }
    }
    damage
}
