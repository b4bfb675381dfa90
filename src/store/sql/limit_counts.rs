//! Counts of jobs that limits compare.

use std::sync::LazyLock;

use super::{
    BLOCKED, Bulk, Connection, READY, RUNNING, Values,
    buckets::{KeyBucket, LimitKey},
    text,
};
use crate::store::StoreError;

/// Number of jobs of a kind that are leased; `None` if none is ready. The sessions make it one step each in the index.
pub(in crate::store) fn running(rows: &mut impl Connection, kind: &str) -> Result<Option<usize>, StoreError> {
    let sql = format!(
        "select count(*) from jobs where state = {RUNNING} and session in (select session from sessions) and kind = $1 \
         having exists (select 1 from jobs where state = {READY} and kind = $1)"
    );
    rows.query(&sql, &[text(kind)])?.pop().map(|row| row.number(0)).transpose()
}

/// Kind and limit key, the numbers of its jobs that are ready and that run, whether others wait for it, and its bucket.
static SLOTS: LazyLock<Bulk> = LazyLock::new(|| {
    let slots = |kind, key, keys| {
        let jobs = format!("from jobs where kind = {kind} and slot_key = {key} and state");
        let count = |state| format!("count(*) filter (where state = {state})");
        format!(
            "select {kind}, {key}, ready, running, \
             cast(case when exists (select 1 {jobs} = {BLOCKED}) then 1 else 0 end as bigint), full_at, look_at \
             from {keys} (select {} as ready, {} as running {jobs} in ({READY}, {RUNNING})) as counts \
             left join key_buckets as buckets on buckets.kind = {kind} and buckets.slot_key = {key}",
            count(READY),
            count(RUNNING)
        )
    };
    Bulk {
        single: slots("$1", "$2", ""),
        arrays: slots("keys.kind", "keys.key", "unnest($1, $2) as keys (kind, key) cross join lateral"),
    }
});

/// A limit key.
pub(in crate::store) struct Slots {
    pub(in crate::store) kind: String,
    pub(in crate::store) key: String,
    pub(in crate::store) ready: usize,
    pub(in crate::store) running: usize,
    /// Whether others wait for it, or also for their ordering key.
    pub(in crate::store) is_awaited: bool,
    pub(in crate::store) bucket: Option<KeyBucket>,
}

impl Slots {
    /// One without limits.
    pub(in crate::store) fn open((kind, key): &LimitKey) -> Self {
        Self { kind: kind.clone(), key: key.clone(), ready: 0, running: 0, is_awaited: true, bucket: None }
    }
}

/// The state of limit keys, each with its kind.
pub(in crate::store) fn slots<'a>(
    rows: &mut impl Connection,
    keys: impl Iterator<Item = &'a LimitKey>,
) -> Result<Vec<Slots>, StoreError> {
    let cells: Vec<_> = keys.map(|(kind, key)| vec![text(kind), text(key)]).collect();
    let read = |row: &mut Values| {
        let (kind, key, is_awaited) = (row.text(0), row.text(1), row.number::<u8>(4)? == 1);
        let bucket = row.0[5].number().zip(row.0[6].time()).map(|(full_at, look_at)| KeyBucket { full_at, look_at });
        Ok(Slots { kind, key, ready: row.number(2)?, running: row.number(3)?, is_awaited, bucket })
    };
    rows.bulk(&SLOTS, &cells)?.iter_mut().map(read).collect()
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
