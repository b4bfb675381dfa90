//! Buckets of tokens: of kinds, and of limit keys.

use std::sync::LazyLock;

use super::{
    Bulk, Connection, Values,
    record::{int, time},
    text,
};
use crate::store::{StoreError, Timestamp};

/// A limit key, behind its kind.
pub(in crate::store) type LimitKey = (String, String);

/// The bucket of a limit key, if it is not full.
#[derive(Clone, Copy)]
pub(in crate::store) struct KeyBucket {
    /// When it is full, in nanoseconds.
    pub(in crate::store) full_at: i64,
    /// When to look whether jobs of the key may become ready.
    pub(in crate::store) look_at: Timestamp,
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

/// It locks the buckets of limit keys, which are added if they are full.
static LOCK_BUCKETS: LazyLock<Bulk> = LazyLock::new(|| {
    let tail =
        "on conflict (kind, slot_key) do update set full_at = key_buckets.full_at returning kind, slot_key, full_at";
    Bulk::insert("key_buckets (kind, slot_key, full_at, look_at)", 4, tail)
});
static READ_BUCKETS: LazyLock<Bulk> = LazyLock::new(|| {
    let read = "select kind, slot_key, full_at from key_buckets where (kind, slot_key)";
    Bulk { single: format!("{read} = ($1, $2)"), arrays: format!("{read} in (select * from unnest($1, $2))") }
});
static SAVE_BUCKETS: LazyLock<Bulk> = LazyLock::new(|| Bulk {
    single: "update key_buckets set (full_at, look_at) = ($1, $2) where kind = $3 and slot_key = $4".to_owned(),
    arrays: "update key_buckets set (full_at, look_at) = (new.full_at, new.look_at) \
             from unnest($1, $2, $3, $4) as new (full_at, look_at, kind, slot_key) \
             where key_buckets.kind = new.kind and key_buckets.slot_key = new.slot_key"
        .to_owned(),
});

/// Locks the buckets of these limit keys, in their order, and says when each is full.
pub(in crate::store) fn lock_key_buckets<'a>(
    rows: &mut impl Connection,
    keys: impl Iterator<Item = &'a LimitKey>,
) -> Result<Vec<(LimitKey, i64)>, StoreError> {
    let cells: Vec<_> = keys.map(|(kind, key)| vec![text(kind), text(key), int(0), int(0)]).collect();
    rows.bulk(&LOCK_BUCKETS, &cells)?.iter_mut().map(full_at).collect()
}

/// Saves the buckets of limit keys.
pub(in crate::store) fn save_key_buckets(
    rows: &mut impl Connection,
    buckets: &[(LimitKey, KeyBucket)],
) -> Result<(), StoreError> {
    let saved = buckets.iter();
    let cells = saved.map(|((kind, key), it)| vec![int(it.full_at), time(it.look_at), text(kind), text(key)]);
    rows.bulk(&SAVE_BUCKETS, &cells.collect::<Vec<_>>()).map(drop)
}

/// Removes a bucket that is full: a missing one is.
pub(in crate::store) fn remove_key_bucket(
    rows: &mut impl Connection,
    (kind, key): &LimitKey,
) -> Result<(), StoreError> {
    rows.query("delete from key_buckets where kind = $1 and slot_key = $2", &[text(kind), text(key)]).map(drop)
}

/// The stored ones of the buckets of these limit keys, and when each is full.
pub(in crate::store) fn key_buckets<'a>(
    rows: &mut impl Connection,
    keys: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<(LimitKey, i64)>, StoreError> {
    let cells: Vec<_> = keys.map(|(kind, key)| vec![text(kind), text(key)]).collect();
    rows.bulk(&READ_BUCKETS, &cells)?.iter_mut().map(full_at).collect()
}

fn full_at(row: &mut Values) -> Result<(LimitKey, i64), StoreError> {
    Ok(((row.text(0), row.text(1)), row.number(2)?))
}

/// The first limit keys to look at, each with its time.
pub(in crate::store) fn first_key_looks(
    rows: &mut impl Connection,
    limit: usize,
) -> Result<Vec<(LimitKey, Timestamp)>, StoreError> {
    let sql = "select kind, slot_key, look_at from key_buckets order by look_at, kind, slot_key limit $1";
    let read = |mut row: Values| Ok(((row.text(0), row.text(1)), Timestamp::from_millis(row.number(2)?)));
    rows.query(sql, &[int(limit as i64)])?.into_iter().map(read).collect()
}
