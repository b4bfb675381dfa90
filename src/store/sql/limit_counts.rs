//! Counts of jobs that limits compare.

use super::{BLOCKED, Cell, Connection, READY, RUNNING, text};
use crate::store::StoreError;

/// Number of jobs of a kind that are leased. The sessions make it one step each in the index.
pub(in crate::store) fn running(rows: &mut impl Connection, kind: &str) -> Result<usize, StoreError> {
    let sessions = "session in (select session from sessions)";
    let sql = format!("select count(*) from jobs where state = {RUNNING} and {sessions} and kind = $1");
    count(rows, &sql, &[text(kind)])
}

/// Number of jobs of a limit key that are ready or run.
pub(in crate::store) fn slots(rows: &mut impl Connection, kind: &str, key: &str) -> Result<usize, StoreError> {
    let sql = format!("select count(*) from jobs where state in ({READY}, {RUNNING}) and kind = $1 and slot_key = $2");
    count(rows, &sql, &[text(kind), text(key)])
}

fn count(rows: &mut impl Connection, sql: &str, cells: &[Cell<'_>]) -> Result<usize, StoreError> {
    rows.query(sql, cells)?.pop().map_or(Ok(0), |row| row.number(0))
}

/// The next kind and limit key with jobs that wait.
pub(in crate::store) fn waiting_after(
    rows: &mut impl Connection,
    (kind, key): &(String, String),
) -> Result<Option<(String, String)>, StoreError> {
    let sql = format!(
        "select kind, slot_key from jobs where slot_key is not null and state = {BLOCKED} \
         and (kind, slot_key) > ($1, $2) order by kind, slot_key limit 1"
    );
    Ok(rows.query(&sql, &[text(kind), text(key)])?.pop().map(|mut row| (row.text(0), row.text(1))))
}
