//! Jobs that match a filter: lists them, a bounded part in each call, and counts them in groups.

use std::ops::Range;

use super::{
    Connection, Select,
    record::{Cell, int, numbers, text, time},
    rows::shown,
};
use crate::store::{BATCH, Filter, Group, Groups, JobState, Order, Page, StoreError};

/// Jobs that one list looks at.
const MAX_LOOK: usize = 10_000;
/// Jobs that one call looks at to count them.
const MAX_COUNT: usize = 100_000;
/// Jobs that one statement of a list reads, because each may have tens of kilobytes.
const MAX_READ: usize = 100;
/// About the maximum size of a list, so that it fits into the 4 MiB that gRPC clients accept by default. A list has at
/// least one job.
const MAX_LIST_BYTES: usize = 3 << 20;

/// At most `limit` jobs behind `after` that match a filter. It ends early after [`MAX_LOOK`] jobs or
/// [`MAX_LIST_BYTES`]. A job that cannot be read is shown as failed.
pub(super) fn list<C: Connection>(
    rows: &mut C,
    filter: &Filter,
    order: Order,
    after: i64,
    limit: usize,
) -> Result<Page, StoreError> {
    let end = look(rows, filter, order, after, MAX_LOOK)?;
    let mut page = Page { jobs: Vec::new(), next: Some(after) };
    let mut bytes = 0;
    while let Some(after) = page.next.filter(|next| Some(*next) != end)
        && page.jobs.len() < limit
    {
        let wanted = (limit - page.jobs.len()).min(MAX_READ);
        let which = Select::matching::<C>(filter, order.rows(after, end)).ordered(order);
        // One more tells whether any follow.
        let mut found = rows.query_jobs(which, wanted + 1, "")?;
        page.next = if found.len() > wanted { found.get(wanted - 1).map(|record| record.row) } else { end };
        found.truncate(wanted);
        for record in found {
            bytes += record.bytes();
            if bytes > MAX_LIST_BYTES
                && let Some(last) = page.jobs.last()
            {
                page.next = Some(last.row);
                return Ok(page);
            }
            page.jobs.push(shown(record));
        }
    }
    Ok(page)
}

/// The jobs that match a filter, in groups. It looks at the newest [`MAX_COUNT`] jobs.
pub(super) fn group<C: Connection>(rows: &mut C, filter: &Filter) -> Result<Groups, StoreError> {
    let (order, newest) = (Order::Newest, i64::MAX);
    let end = look(rows, filter, order, newest, MAX_COUNT)?;
    let Select { clause, cells, .. } = Select::matching::<C>(filter, order.rows(newest, end));
    let mut found = Groups { is_cut: end.is_some(), ..Groups::default() };
    for mut row in rows.query(&groups(&clause), &cells)? {
        found.jobs = row.number(10)?;
        found.groups.push(Group {
            kind: row.text(0),
            outcome: row.text(1),
            pattern: row.text(2),
            jobs: row.number(3)?,
            first_end: row.0[4].time(),
            last_end: row.0[5].time(),
            tenants: [row.text(6), row.text(7)],
            tenant_count: row.number(8)?,
            newest: row.text(9),
        });
    }
    Ok(found)
}

/// Where the next call goes on, if this one looks at `count` jobs behind `after`; `None` if no others follow. Jobs
/// that an index leaves out are not looked at.
fn look<C: Connection>(
    rows: &mut C,
    filter: &Filter,
    order: Order,
    after: i64,
    count: usize,
) -> Result<Option<i64>, StoreError> {
    let mut cells = vec![int(after)];
    // The members of a group are of one tenant.
    let (of_some, cell) = match (filter.group, &filter.tenant) {
        (Some(group), _) => (" and member_of = $2", Some(int(group))),
        (None, Some(tenant)) => (" and tenant = $2", Some(text(tenant))),
        (None, None) => ("", None),
    };
    cells.extend(cell);
    let index = filter.index();
    let (is_behind, step, sorted) = match order {
        Order::Newest => ("<", 1, "order by row desc"),
        Order::Oldest => (">", -1, "order by row"),
    };
    let sql = format!("select row from jobs where row {is_behind} $1{of_some}{index} {sorted} limit 1 offset {count}");
    Ok(numbers(&rows.query(&sql, &cells)?)?.pop().map(|row| row + step))
}

/// The largest groups of the jobs that a clause selects, with the fields of [`Group`](crate::store::Group), and the
/// number of jobs of all groups.
fn groups(clause: &str) -> String {
    format!(
        "select kind, outcome, pattern, jobs, first_end, last_end, first_tenant, last_tenant, tenants, \
         (select id from jobs where jobs.row = newest), total from (\
         select kind, outcome, pattern, count(*) as jobs, min(ended_at) as first_end, max(ended_at) as last_end, \
         min(tenant) as first_tenant, max(tenant) as last_tenant, count(distinct tenant) as tenants, \
         max(jobs.row) as newest, cast(sum(count(*)) over () as bigint) as total \
         from jobs where {clause} group by kind, outcome, pattern) as found order by jobs desc, newest desc limit {BATCH}"
    )
}

impl<'a> Select<'a> {
    /// Jobs in `rows` that match `filter`, in no order. `tenant = $5`, `member_of = $15` and [`Filter::index`] stand
    /// alone, so that their indexes are used.
    pub(super) fn matching<C: Connection>(filter: &'a Filter, rows: Range<i64>) -> Self {
        let any = |text: Option<&'a String>| Cell::Text(text.map(Into::into));
        let (tenant, group) = match (filter.group, &filter.tenant) {
            (Some(_), _) => ("(cast($5 as text) is null or tenant = $5)", "member_of = $15"),
            (None, Some(_)) => ("tenant = $5", "cast($15 as bigint) is null"),
            (None, None) => ("cast($5 as text) is null", "cast($15 as bigint) is null"),
        };
        let clause = format!(
            "row < $1 and row >= $2 and ($3 & (cast(1 as bigint) << cast(state as integer))) <> 0{index} \
             and (cast($4 as text) is null or kind = $4) and {tenant} \
             and (cast($6 as text) is null or {spec} -> 'labels' ->> $6 = $7) \
             and (cast($8 as bigint) is null or created_at >= $8) \
             and (cast($9 as bigint) is null or created_at < $9) \
             and (cast($10 as text) is null or {spec} ->> 'request_id' = $10) \
             and (cast($11 as text) is null or outcome = $11) and (cast($12 as text) is null or pattern = $12) \
             and (cast($13 as bigint) is null or ended_at >= $13) \
             and (cast($14 as bigint) is null or ended_at < $14) and {group}",
            index = filter.index(),
            spec = C::SPEC
        );
        let cells = vec![
            int(rows.end),
            int(rows.start),
            int(filter.state_bits()),
            any(filter.kind.as_ref()),
            any(filter.tenant.as_ref()),
            any(filter.label.as_ref().map(|(name, _)| name)),
            any(filter.label.as_ref().map(|(_, value)| value)),
            time(filter.created_from),
            time(filter.created_before),
            any(filter.request_id.as_ref()),
            any(filter.outcome.as_ref()),
            any(filter.pattern.as_ref()),
            time(filter.ended_from),
            time(filter.ended_before),
            Cell::Int(filter.group),
        ];
        Self::of(clause, cells)
    }

    pub(super) fn ordered(mut self, order: Order) -> Self {
        self.clause.push_str(if order == Order::Newest { " order by row desc" } else { " order by row" });
        self
    }
}

impl Filter {
    /// The states as bits: bit number is position in [`JobState::ALL`].
    fn state_bits(&self) -> i64 {
        let states = if self.states.is_empty() { JobState::ALL.as_slice() } else { &self.states };
        states.iter().fold(0, |bits, state| bits | 1 << *state as u8)
    }

    /// A condition that leaves its jobs to the index of unsuccessful ones, if that has all of them.
    fn index(&self) -> &'static str {
        let has_all = !self.states.is_empty() && self.states.iter().all(|state| *state > JobState::Succeeded);
        if has_all { " and state > 4" } else { "" }
    }
}

impl Order {
    /// The rows behind `after`, up to where a list [goes on](crate::store::Page::next).
    fn rows(self, after: i64, end: Option<i64>) -> Range<i64> {
        match self {
            Self::Newest => end.unwrap_or(i64::MIN)..after,
            Self::Oldest => after + 1..end.map_or(i64::MAX, |end| end + 1),
        }
    }
}
