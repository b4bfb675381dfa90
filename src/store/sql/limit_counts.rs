//! Counts of jobs that limits compare.

use std::{collections::BTreeSet, sync::LazyLock};

use super::{BLOCKED, Bulk, Connection, READY, RUNNING, Values, record::int, text};
use crate::store::StoreError;

/// Number of jobs of a kind that are leased; `None` if none is ready. The sessions make it one step each in the index.
pub(in crate::store) fn running(rows: &mut impl Connection, kind: &str) -> Result<Option<usize>, StoreError> {
    let sql = format!(
        "select count(*) from jobs where state = {RUNNING} and session in (select session from sessions) and kind = $1 \
         having exists (select 1 from jobs where state = {READY} and kind = $1)"
    );
    rows.query(&sql, &[text(kind)])?.pop().map(|row| row.number(0)).transpose()
}

/// Kind and limit key, the number of its jobs that are ready or run, and whether others wait for it.
static SLOTS: LazyLock<Bulk> = LazyLock::new(|| {
    let slots = |kind, key| {
        let jobs = format!("from jobs where kind = {kind} and slot_key = {key} and state");
        format!(
            "select {kind}, {key}, (select count(*) {jobs} in ({READY}, {RUNNING})), \
             cast(case when exists (select 1 {jobs} = {BLOCKED}) then 1 else 0 end as bigint)"
        )
    };
    Bulk {
        single: slots("$1", "$2"),
        arrays: format!("{} from unnest($1, $2) as keys (kind, key)", slots("keys.kind", "keys.key")),
    }
});

/// A limit key.
pub(in crate::store) struct Slots {
    pub(in crate::store) kind: String,
    pub(in crate::store) key: String,
    /// Number of its jobs that are ready or run.
    pub(in crate::store) taken: usize,
    /// Whether others wait for it, or also for their ordering key.
    pub(in crate::store) is_awaited: bool,
}

/// The state of limit keys, each with its kind.
pub(in crate::store) fn slots(
    rows: &mut impl Connection,
    keys: &BTreeSet<(String, String)>,
) -> Result<Vec<Slots>, StoreError> {
    let cells: Vec<_> = keys.iter().map(|(kind, key)| vec![text(kind), text(key)]).collect();
    let read = |row: &mut Values| {
        let (kind, key, is_awaited) = (row.text(0), row.text(1), row.number::<u8>(3)? == 1);
        Ok(Slots { kind, key, taken: row.number(2)?, is_awaited })
    };
    rows.bulk(&SLOTS, &cells)?.iter_mut().map(read).collect()
}

/// Locks the bucket of a kind, and says when it is full, in nanoseconds; `None` if another server has locked it.
pub(in crate::store) fn lock_bucket<C: Connection>(rows: &mut C, kind: &str) -> Result<Option<i64>, StoreError> {
    let lock = if C::IS_SHARED { " for update skip locked" } else { "" };
    let sql = format!("select full_at from buckets where kind = $1{lock}");
    let mut found = rows.query(&sql, &[text(kind)])?.pop();
    if found.is_none() {
        let sql_of_first = "insert into buckets (kind, full_at) values ($1, 0) on conflict (kind) do nothing";
        rows.query(sql_of_first, &[text(kind)])?;
        found = rows.query(&sql, &[text(kind)])?.pop();
    }
    found.map(|row| row.number(0)).transpose()
}

/// Says when the bucket of a kind is full.
pub(in crate::store) fn save_bucket(rows: &mut impl Connection, kind: &str, full_at: i64) -> Result<(), StoreError> {
    rows.query("update buckets set full_at = $1 where kind = $2", &[int(full_at), text(kind)]).map(drop)
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
