//! Groups: how many members are in each state, and which jobs may start.

use std::{collections::BTreeMap, sync::LazyLock};

use super::{
    Connection, Select,
    record::{Cell, Values, int, rows_of, text},
    statements::{Bulk, delete},
};
use crate::store::{BATCH, GROUP_PREFIX, JobRecord, JobState, Members, Start, StoreError};

static INSERT: LazyLock<Bulk> = LazyLock::new(|| Bulk::insert("groups (row, must_succeed)", 2, ""));
static READ: LazyLock<Bulk> = LazyLock::new(|| {
    let columns = "row, must_succeed, is_closed, active, succeeded, failed, cancelled, expired";
    let Bulk { single, arrays } = Bulk::of_each(&format!("select {columns} from groups where row"));
    Bulk { single, arrays: format!("{arrays} order by row for update") }
});
static SAVE: LazyLock<Bulk> = LazyLock::new(|| {
    let names = ["is_closed", "is_due", "active", "succeeded", "failed", "cancelled", "expired"];
    let set = format!("update groups set ({})", names.join(", "));
    Bulk {
        single: format!("{set} = ($1, $2, $3, $4, $5, $6, $7) where row = $8"),
        arrays: format!(
            "{set} = (new.{}) from unnest($1, $2, $3, $4, $5, $6, $7, $8) as new ({}, row) where groups.row = new.row",
            names.join(", new."),
            names.join(", ")
        ),
    }
});
static MARK_STARTED: LazyLock<Bulk> = LazyLock::new(|| Bulk::of_each("update groups set is_due = false where row"));

/// What a transaction changes of a group.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::store) struct MemberChange {
    active: i64,
    ended: [i64; 4],
    pub(in crate::store) closes: bool,
    /// The job that waits for it was removed, if there was a group.
    pub(in crate::store) removes: bool,
}

impl MemberChange {
    /// Counts a member that becomes active (1), or is active no more (-1), and has this state when it is not.
    pub(in crate::store) fn count(&mut self, state: JobState, jobs: i64) {
        self.active += jobs;
        if state.is_ended() {
            self.ended[state as usize - JobState::Succeeded as usize] -= jobs;
        }
    }

    fn apply(&self, members: &mut Members) {
        members.is_closed |= self.closes;
        members.active = members.active.saturating_add_signed(self.active);
        for (count, change) in members.ended.iter_mut().zip(self.ended) {
            *count = count.saturating_add_signed(change);
        }
    }

    /// Whether members join.
    fn joins(&self) -> bool {
        self.active + self.ended.iter().sum::<i64>() > 0
    }
}

/// Adds the groups of the jobs that open one.
pub(super) fn insert_groups<'a, C: Connection>(
    rows: &mut C,
    records: impl Iterator<Item = &'a JobRecord>,
) -> Result<(), StoreError> {
    let group = |record: &JobRecord| match record.request.start {
        Start::Group { must_succeed } => Some(vec![int(record.row), Cell::Flag(must_succeed)]),
        _ => None,
    };
    rows.bulk(&INSERT, &records.filter_map(group).collect::<Vec<_>>()).map(drop)
}

/// Row and tenant of a group, and whether it is closed.
pub(in crate::store) fn open_group<C: Connection>(
    rows: &mut C,
    name: &str,
) -> Result<Option<(i64, String, bool)>, StoreError> {
    let sql = "select groups.row, tenant, is_closed from groups join jobs on jobs.row = groups.row where id = $1";
    let read = |mut row: Values| Ok((row.number(0)?, row.text(1), row.0[2].flag().unwrap_or(true)));
    rows.query(sql, &[text(&format!("{GROUP_PREFIX}{name}"))])?.pop().map(read).transpose()
}

/// The members of a group.
pub(super) fn read<C: Connection>(rows: &mut C, row: i64) -> Result<Option<Members>, StoreError> {
    Ok(rows.query(&READ.single, &[int(row)])?.pop().map(|row| members(&row)))
}

/// Members without what cannot be read.
fn members(row: &Values) -> Members {
    let count = |column: usize| row.0[column].number().unwrap_or_default();
    Members {
        must_succeed: row.0[1].flag().unwrap_or(true),
        is_closed: row.0[2].flag().unwrap_or_default(),
        active: count(3),
        ended: [4, 5, 6, 7].map(count),
    }
}

/// Saves the changes of groups, by row. Returns whether any is complete. Groups that were removed are left out.
///
/// # Errors
/// [`StoreError::Conflict`] if a job joins a group that another transaction has closed or removed.
pub(in crate::store) fn save_members<C: Connection>(
    rows: &mut C,
    changes: &BTreeMap<i64, MemberChange>,
) -> Result<bool, StoreError> {
    let wanted: Vec<_> = changes.keys().copied().collect();
    let mut found = BTreeMap::new();
    for row in rows.bulk(&READ, &rows_of(&wanted, |row| int(*row)))? {
        found.insert(row.number(0)?, members(&row));
    }
    let is_open = |row: &i64| found.get(row).is_some_and(|members| !members.is_closed);
    if changes.iter().any(|(row, change)| change.joins() && !is_open(row)) {
        return Err(StoreError::Conflict);
    }
    let (mut cells, mut removed, mut any_complete) = (Vec::with_capacity(found.len()), Vec::new(), false);
    for (row, mut members) in found {
        if changes[&row].removes {
            removed.push(vec![int(row)]);
            continue;
        }
        changes[&row].apply(&mut members);
        let is_due = members.is_complete();
        any_complete |= is_due;
        let counts = [members.active].into_iter().chain(members.ended).map(|count| int(count as i64));
        cells.push(
            [Cell::Flag(members.is_closed), Cell::Flag(is_due)].into_iter().chain(counts).chain([int(row)]).collect(),
        );
    }
    rows.bulk(&SAVE, &cells)?;
    rows.bulk(&delete("groups"), &removed)?;
    Ok(any_complete)
}

/// The jobs whose groups are complete, and whose start is not marked.
pub(in crate::store) fn due_jobs<C: Connection>() -> Select<'static> {
    let lock = if C::IS_SHARED { " for update skip locked" } else { "" };
    Select::of(format!("row in (select row from groups where is_due order by row limit {BATCH}{lock})"), Vec::new())
}

/// Notes that the jobs have started, or need not.
pub(in crate::store) fn mark_started<C: Connection>(rows: &mut C, jobs: &[JobRecord]) -> Result<(), StoreError> {
    rows.bulk(&MARK_STARTED, &rows_of(jobs, |job| int(job.row))).map(drop)
}
