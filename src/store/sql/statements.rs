//! Texts of statements. SQLite numbers `$` parameters by their first use, so they stand in order.

use std::{borrow::Cow, sync::LazyLock};

use super::record::{COLUMNS, Cell, FIXED};
use crate::store::{Timestamp, engine::Select};

/// A statement for many rows: as one for each row, and as one for arrays of all columns.
pub(in crate::store) struct Bulk {
    pub(in crate::store) single: String,
    pub(in crate::store) arrays: String,
}

/// Kind, state, number of jobs, and when the first of them was due.
pub(super) const DEPTHS: &str = "select kind, cast(0 as bigint), count(*), min(due_at) from jobs where state = 0 group by kind \
     union all select kind, cast(1 as bigint), count(*), min(due_at) from jobs where state = 1 group by kind \
     union all select kind, cast(2 as bigint), count(*), null from jobs where state = 2 group by kind \
     union all select kind, cast(3 as bigint), count(*), null from jobs where state = 3 group by kind \
     union all select kind, cast(5 as bigint), count(*), null from jobs where state = 5 group by kind";

pub(super) static COLUMN_LIST: LazyLock<String> = LazyLock::new(|| names(&COLUMNS, ""));

pub(super) static INSERT_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
    let head = format!("insert into jobs ({})", *COLUMN_LIST);
    let tail = "on conflict (id) do nothing returning row";
    Bulk {
        single: format!("{head} values ({}) {tail}", parameters(0, COLUMNS.len())),
        arrays: format!("{head} select * from unnest({}) {tail}", arrays(&COLUMNS)),
    }
});

pub(super) static SAVE_JOBS: LazyLock<Bulk> = LazyLock::new(|| {
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

pub(super) static INSERT_PAYLOADS: LazyLock<Bulk> = LazyLock::new(|| insert_bytes("payloads"));
pub(super) static INSERT_OUTPUTS: LazyLock<Bulk> = LazyLock::new(|| insert_bytes("outputs"));

pub(super) static LOAD_PAYLOADS: LazyLock<Bulk> = LazyLock::new(|| Bulk {
    single: "select row, bytes from payloads where row = $1".to_owned(),
    arrays: "select row, bytes from payloads where row = any($1::bigint[])".to_owned(),
});

pub(super) static FIND_JOBS: LazyLock<Bulk> = LazyLock::new(|| Bulk {
    single: format!("select {} from jobs where id = $1", *COLUMN_LIST),
    arrays: format!("select {} from jobs where id = any($1::text[]) order by row for update", *COLUMN_LIST),
});

/// Deletes rows of `jobs`, `payloads` or `outputs`.
pub(super) fn delete(table: &str) -> Bulk {
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
    /// The condition and the order, and their parameters. A limit may follow.
    pub(super) fn clause(self, floor: i64) -> (&'static str, Vec<Cell<'a>>) {
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
