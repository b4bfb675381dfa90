//! The statements of [`Connection`](super::Connection). SQLite numbers `$` parameters by first use, so each statement
//! uses them in order.

use std::sync::LazyLock;

use super::record::{COLUMNS, Cell, Column, FIXED, int, text, time};
use crate::store::{JobState, SessionId, Timestamp, retry::MAX_CRASHES};

const SCHEDULED: i64 = JobState::Scheduled as i64;
pub(in crate::store) const READY: i64 = JobState::Ready as i64;
pub(in crate::store) const BLOCKED: i64 = JobState::Blocked as i64;
pub(in crate::store) const RUNNING: i64 = JobState::Running as i64;
const FAILED: i64 = JobState::Failed as i64;
/// The first of the final states.
pub(super) const ENDED: i64 = JobState::Succeeded as i64;

/// A statement for many rows: to run once for each row, or once with arrays of all columns.
pub(in crate::store) struct Bulk {
    pub(in crate::store) single: String,
    pub(in crate::store) arrays: String,
}

impl Bulk {
    /// Inserts rows of so many columns.
    pub(super) fn insert(into: &str, columns: usize, tail: &str) -> Self {
        let values = parameters(columns);
        Self {
            single: format!("insert into {into} values ({values}) {tail}"),
            arrays: format!("insert into {into} select * from unnest({values}) {tail}"),
        }
    }

    /// `statement` ends in a column, and applies to the rows where it equals the value.
    pub(super) fn of_each(statement: &str) -> Self {
        Self { single: format!("{statement} = $1"), arrays: format!("{statement} = any($1)") }
    }
}

/// Kind, state, number of jobs, and the earliest due time of the ready ones. An index has the jobs of each of these
/// states. Jobs in other states are not counted: they may be many, and no operator waits for them.
pub(super) static DEPTHS: LazyLock<String> = LazyLock::new(|| {
    let of = |state| {
        let due = if state == READY { "min(due_at)" } else { "null" };
        format!("select kind, cast({state} as bigint), count(*), {due} from jobs where state = {state} group by kind")
    };
    // The first part decides the types of the columns.
    [READY, SCHEDULED, BLOCKED, RUNNING, FAILED].map(of).join(" union all ")
});

pub(in crate::store) static COLUMN_LIST: LazyLock<String> = LazyLock::new(|| names(&COLUMNS, ""));

pub(super) static INSERT_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
    Bulk::insert(&format!("jobs ({})", *COLUMN_LIST), COLUMNS.len(), "on conflict (id) do nothing returning row")
});

pub(super) static SAVE_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
    // The last one is the row.
    let (columns, last) = (&COLUMNS[..FIXED], FIXED - 1);
    let set = format!("update jobs set ({})", names(&columns[..last], ""));
    Bulk {
        single: format!("{set} = ({}) where row = ${FIXED}", parameters(last)),
        arrays: format!(
            "{set} = ({}) from unnest({}) as new ({}) where jobs.row = new.row",
            names(&columns[..last], "new."),
            parameters(FIXED),
            names(columns, "")
        ),
    }
});

pub(super) static INSERT_PAYLOADS: LazyLock<Bulk> = LazyLock::new(|| Bulk::insert("payloads (row, bytes)", 2, ""));
pub(super) static INSERT_OUTPUTS: LazyLock<Bulk> = LazyLock::new(|| Bulk::insert("outputs (row, bytes)", 2, ""));

pub(super) static LOAD_PAYLOADS: LazyLock<Bulk> =
    LazyLock::new(|| Bulk::of_each("select row, bytes from payloads where row"));

pub(super) static READ_JOBS: LazyLock<Bulk> =
    LazyLock::new(|| Bulk::of_each(&format!("select {} from jobs where id", *COLUMN_LIST)));

/// The same jobs, locked for a change if several servers share the database.
pub(super) static LOCK_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
    let Bulk { single, arrays } = &*READ_JOBS;
    Bulk { single: single.clone(), arrays: format!("{arrays} order by row for update") }
});

pub(super) static LOCK_ROWS: LazyLock<Bulk> = LazyLock::new(|| {
    let Bulk { single, arrays } = Bulk::of_each("select row from jobs where id");
    Bulk { single, arrays: format!("{arrays} order by row for update") }
});

pub(super) static HELD_KEYS: LazyLock<Bulk> = LazyLock::new(|| {
    let held = |tenant, key| {
        let holder = format!("select 1 from jobs where tenant = {tenant} and ordering_key = {key} and holds_key");
        format!("where exists ({holder})")
    };
    Bulk {
        single: format!("select $1, $2 {}", held("$1", "$2")),
        arrays: format!("select * from unnest($1, $2) as keys (tenant, key) {}", held("keys.tenant", "keys.key")),
    }
});

/// It waits for no other server: a job that one changes is left.
pub(super) static DELETE_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
    let tail = "returning row, tenant, payload_bytes + output_bytes";
    let free = format!("select row from jobs where row = any($1) and state >= {ENDED} for update skip locked");
    Bulk {
        single: format!("delete from jobs where row = $1 and state >= {ENDED} {tail}"),
        arrays: format!("delete from jobs where row = any(array({free})) {tail}"),
    }
});

/// Deletes rows of `payloads`, `outputs` or `groups`.
pub(super) fn delete(table: &str) -> Bulk {
    Bulk::of_each(&format!("delete from {table} where row"))
}

fn names(columns: &[Column], prefix: &str) -> String {
    columns.iter().map(|column| format!("{prefix}{}", column.name)).collect::<Vec<_>>().join(", ")
}

fn parameters(count: usize) -> String {
    (1..=count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

/// A selection of jobs.
#[derive(Clone)]
pub(in crate::store) struct Select<'a> {
    /// Its condition and its order. A limit may follow.
    pub(super) clause: String,
    pub(super) cells: Vec<Cell<'a>>,
    /// Whether jobs that another transaction changes are left out.
    pub(super) skips_locked: bool,
}

impl<'a> Select<'a> {
    pub(super) fn of(clause: impl Into<String>, cells: Vec<Cell<'a>>) -> Self {
        Self { clause: clause.into(), cells, skips_locked: true }
    }

    /// Ready jobs from the place `floor` on that have not expired, by place. If a
    /// [suspect](crate::store::JobRecord::is_suspect) runs in the session, further suspects are left out.
    pub(in crate::store) fn ready(kind: &'a str, rank: usize, floor: i64, now: Timestamp, session: SessionId) -> Self {
        let clause = format!(
            "state = {READY} and kind = $1 and rank = $2 and place >= $3 and (expire_at is null or expire_at > $4) \
             and (losses < $5 or not exists (select 1 from jobs as other where other.state = {RUNNING} \
             and other.session = $6 and other.losses >= $5)) order by place, row"
        );
        let (rank, losses) = (int(rank as i64), int(MAX_CRASHES - 1));
        Self::of(clause, vec![text(kind), rank, int(floor), time(now), losses, int(session.0)])
    }

    /// Jobs that wait for an ordering key of a tenant, by place.
    pub(in crate::store) fn blocked(tenant: &'a str, key: &'a str) -> Self {
        let clause = format!("state = {BLOCKED} and tenant = $1 and ordering_key = $2 order by place");
        Self::of(clause, vec![text(tenant), text(key)])
    }

    /// Jobs that wait for a limit key alone, by place.
    pub(in crate::store) fn waiting(kind: &'a str, key: &'a str) -> Self {
        let clause = format!(
            "state = {BLOCKED} and kind = $1 and slot_key = $2 and (holds_key or ordering_key = '') order by place"
        );
        Self::of(clause, vec![text(kind), text(key)])
    }

    /// Ready jobs of a limit key, last first.
    pub(in crate::store) fn last_ready(kind: &'a str, key: &'a str) -> Self {
        let clause = format!("state = {READY} and kind = $1 and slot_key = $2 order by place desc");
        Self::of(clause, vec![text(kind), text(key)])
    }

    /// Jobs whose start time has come.
    pub(in crate::store) fn due(now: Timestamp) -> Self {
        Self::of(format!("state = {SCHEDULED} and due_at <= $1 order by due_at, row"), vec![time(now)])
    }

    /// Waiting jobs that have expired.
    pub(in crate::store) fn expired(now: Timestamp) -> Self {
        Self::of(format!("state < {RUNNING} and expire_at <= $1 order by expire_at, row"), vec![time(now)])
    }

    /// Jobs whose retention has ended.
    pub(in crate::store) fn purgeable(now: Timestamp) -> Self {
        Self::of("purge_at <= $1 order by purge_at, row", vec![time(now)])
    }

    /// Jobs that run in a session. None may stay leased when the session is removed, so locked ones are waited for.
    pub(in crate::store) fn leased(session: SessionId) -> Self {
        let clause = format!("state = {RUNNING} and session = $1 order by row");
        Self { skips_locked: false, ..Self::of(clause, vec![int(session.0)]) }
    }

    /// Running jobs of a session that must be cancelled.
    pub(in crate::store) fn to_cancel(session: SessionId) -> Self {
        let clause = format!("state = {RUNNING} and session = $1 and cancel_requested order by row");
        Self::of(clause, vec![int(session.0)])
    }
}
