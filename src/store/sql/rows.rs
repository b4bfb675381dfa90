//! Rows in a database. The SQL is the same for all databases; a [`Connection`] runs it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{
    group_counts::insert_groups,
    record::{
        COLUMNS, Cell, FIXED, Values, cells_of, int, json, numbers, read_record, read_records, rows_of, text, time,
    },
    statements::{
        Bulk, COLUMN_LIST, DELETE_JOBS, DEPTHS, HELD_KEYS, INSERT_JOBS, INSERT_OUTPUTS, INSERT_PAYLOADS, LOAD_PAYLOADS,
        LOCK_JOBS, LOCK_ROWS, READ_JOBS, READY, SAVE_JOBS, Select, delete,
    },
};
use crate::store::{
    BATCH, Demand, Depth, Extent, JobRecord, JobState, SessionId, Size, StoreError, Suspended, Timestamp, Token,
    engine::LastTick, request::Added, wakes::Changes,
};

/// Bytes of the payloads and outputs that one transaction removes; the last job may exceed it.
const MAX_REMOVED_BYTES: u64 = 64 << 20;
/// Longest name and longest reason of an operator, in bytes.
const MAX_SAID: usize = 256;
/// Longest text of the jobs in the pools of a session, which is read.
const MAX_DEMAND: usize = 1 << 20;

/// A job that was removed.
pub(in crate::store) struct Removed {
    pub(in crate::store) row: i64,
    pub(in crate::store) tenant: String,
    pub(in crate::store) bytes: i64,
}

/// A database connection of one thread.
pub(in crate::store) trait Connection: Sized + Send + 'static {
    /// Whether other processes write at the same time, so that rows must be locked before a change.
    const IS_SHARED: bool;
    /// The JSON of a job's other fields, in conditions of any job.
    const SPEC: &'static str = "spec";

    /// Whether sessions end with their leases, because other processes can run their jobs.
    fn ends_leases(&self) -> bool {
        Self::IS_SHARED
    }
    /// Makes the next statements fail once `gone` is cancelled.
    fn interrupt_on(&mut self, _gone: CancellationToken) {}
    /// The current time.
    fn now(&mut self) -> Result<Timestamp, StoreError>;
    /// `count` new sequence numbers, in ascending order.
    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError>;
    /// Number of jobs that have not ended, and bytes, as committed. It may be an estimate.
    fn size(&self) -> Size;
    /// The part of a tenant.
    fn tenant_size(&mut self, tenant: &str) -> Result<Size, StoreError>;
    /// Starts a writing transaction, and returns its time.
    fn begin(&mut self) -> Result<Timestamp, StoreError>;
    /// Commits the transaction, which changes the sizes by `added`.
    fn commit(&mut self, added: &Added) -> Result<(), StoreError>;
    /// Rolls the transaction back.
    fn roll_back(&mut self);
    /// Notifies other processes of the changes of a transaction.
    fn publish(&mut self, _: &Changes) {}
    /// Waits for these keys, or if `None` for all, and locks them until the transaction ends.
    fn lock_keys(&mut self, _: Option<&BTreeSet<String>>) -> Result<(), StoreError> {
        Ok(())
    }
    /// Locks a further key, unless another transaction has it. Returns whether it did.
    fn try_lock_key(&mut self, _: &str) -> Result<bool, StoreError> {
        Ok(true)
    }
    /// Prevents others from leasing jobs of kinds with a limit, until the transaction ends.
    fn lock_limits(&mut self) -> Result<(), StoreError> {
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
    /// Runs a statement, and returns the result rows.
    fn query(&mut self, sql: &str, cells: &[Cell<'_>]) -> Result<Vec<Values>, StoreError>;
    /// Runs a statement for many rows, and returns the result rows.
    fn bulk(&mut self, bulk: &Bulk, rows: &[Vec<Cell<'_>>]) -> Result<Vec<Values>, StoreError>;

    /// Adds jobs with their payloads. Returns the added rows; ids that exist already are left out.
    fn insert(&mut self, records: &[JobRecord]) -> Result<Vec<i64>, StoreError> {
        if !records.is_empty() {
            self.require_room()?;
        }
        // In one order, so that two servers that insert the same ids do not wait for each other.
        let mut by_id: Vec<_> = records.iter().collect();
        by_id.sort_unstable_by_key(|record| &record.request.id);
        let cells: Vec<_> = by_id.into_iter().map(|record| cells_of(record, &COLUMNS)).collect();
        let mut rows = numbers(&self.bulk(&INSERT_JOBS, &cells)?)?;
        rows.sort_unstable();
        let is_new = |record: &&JobRecord| rows.binary_search(&record.row).is_ok();
        insert_groups(self, records.iter().filter(is_new))?;
        self.insert_bytes(&INSERT_PAYLOADS, records.iter().filter(is_new), |record| &record.request.job.payload)?;
        Ok(rows)
    }

    /// Adds the bytes of records, except for those without any.
    fn insert_bytes<'a>(
        &mut self,
        bulk: &Bulk,
        records: impl Iterator<Item = &'a JobRecord>,
        bytes: fn(&JobRecord) -> &Bytes,
    ) -> Result<(), StoreError> {
        let filled = records.filter(|record| !bytes(record).is_empty());
        let cells: Vec<_> = filled.map(|record| vec![int(record.row), Cell::Bytes(bytes(record))]).collect();
        self.bulk(bulk, &cells).map(drop)
    }

    /// A job, with its bytes as far as they are wanted. One that cannot be read is shown as failed.
    fn get(&mut self, id: &str, extent: Extent) -> Result<Option<JobRecord>, StoreError> {
        // One statement, so that the job and its bytes are consistent.
        let bytes = |table, has| format!("(select bytes from {table} where {table}.row = jobs.row and {has})");
        let (payload, output) = (bytes("payloads", extent >= Extent::All), bytes("outputs", extent >= Extent::Output));
        let sql = format!("select {}, {payload}, {output} from jobs where id = $1", *COLUMN_LIST);
        let read = |mut row: Values| {
            let mut record = shown(read_record(&mut row));
            record.request.job.payload = row.bytes(COLUMNS.len()).into();
            record.output.bytes = row.bytes(COLUMNS.len() + 1).into();
            record
        };
        Ok(self.query(&sql, &[text(id)])?.pop().map(read))
    }

    /// A part of an output; empty if there is none.
    fn output(&mut self, row: i64, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        let sql = "select substr(bytes, cast($1 as integer), cast($2 as integer)) from outputs where row = $3";
        let number = |number: u64| int(i64::try_from(number).unwrap_or(i64::MAX));
        self.first_bytes(sql, &[number(offset + 1), number(length), int(row)])
    }

    /// The first value of the first row; empty if there is none.
    fn first_bytes(&mut self, sql: &str, cells: &[Cell<'_>]) -> Result<Bytes, StoreError> {
        Ok(self.query(sql, cells)?.pop().map(|mut row| row.bytes(0).into()).unwrap_or_default())
    }

    /// The existing jobs with these ids, in any order. Like the methods below, it leaves out payloads and outputs.
    fn look_at(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError> {
        let rows = self.bulk(&READ_JOBS, &rows_of(ids, |id| text(id)))?;
        Ok(read_records(rows).map(shown).collect())
    }

    /// The same, locked for a change. A transaction that waits for another one here has inserted nothing.
    fn find(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError> {
        Ok(read_records(self.bulk(&LOCK_JOBS, &rows_of(ids, |id| text(id)))?).collect())
    }

    /// Locks the existing jobs with these ids, where other servers may write.
    fn lock_jobs(&mut self, ids: &[&str]) -> Result<(), StoreError> {
        if Self::IS_SHARED { self.bulk(&LOCK_ROWS, &rows_of(ids, |id| text(id))).map(drop) } else { Ok(()) }
    }

    /// Saves the changing fields of jobs, and their outputs.
    fn save(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        let cells: Vec<_> = records.iter().map(|record| cells_of(record, &COLUMNS[..FIXED])).collect();
        self.bulk(&SAVE_JOBS, &cells)?;
        self.insert_bytes(&INSERT_OUTPUTS, records.iter(), |record| &record.output.bytes)
    }

    /// Removes those of the jobs that have ended, with their payloads and outputs. Returns what was removed.
    fn remove(&mut self, rows: &[i64]) -> Result<Vec<Removed>, StoreError> {
        let mut removed = self.bulk(&DELETE_JOBS, &rows_of(rows, |row| int(*row)))?;
        let rows = rows_of(&numbers(&removed)?, |row| int(*row));
        ["payloads", "outputs"].into_iter().try_for_each(|table| self.bulk(&delete(table), &rows).map(drop))?;
        removed
            .iter_mut()
            .map(|row| Ok(Removed { row: row.number(0)?, tenant: row.text(1), bytes: row.number(2)? }))
            .collect()
    }

    /// Adds the payloads to records, and notes the damaged ones.
    fn load_payloads(&mut self, records: &mut [JobRecord]) -> Result<(), StoreError> {
        let mut payloads = self.bulk(&LOAD_PAYLOADS, &rows_of(records, |record| int(record.row)))?;
        let payloads = payloads.iter_mut().map(|row| Ok((row.number(0)?, row.bytes(1))));
        let mut payloads: BTreeMap<i64, Vec<u8>> = payloads.collect::<Result<_, StoreError>>()?;
        for record in records {
            record.request.job.payload = payloads.remove(&record.row).unwrap_or_default().into();
            record.check_payload();
        }
        Ok(())
    }

    /// Removes the output of a job.
    fn remove_output(&mut self, record: &JobRecord) -> Result<(), StoreError> {
        self.bulk(&delete("outputs"), &[vec![int(record.row)]]).map(drop)
    }

    /// Those of the ordering keys, each with its tenant, that a job holds.
    fn held_keys(&mut self, keys: &BTreeSet<(&str, &str)>) -> Result<Vec<(String, String)>, StoreError> {
        let cells: Vec<_> = keys.iter().map(|(tenant, key)| vec![text(tenant), text(key)]).collect();
        Ok(self.bulk(&HELD_KEYS, &cells)?.iter_mut().map(|row| (row.text(0), row.text(1))).collect())
    }

    /// Id of the job of the tenant that holds the ordering key.
    fn key_holder(&mut self, (tenant, key): (&str, &str)) -> Result<Option<String>, StoreError> {
        let sql = "select id from jobs where tenant = $1 and ordering_key = $2 and holds_key";
        Ok(self.query(sql, &[text(tenant), text(key)])?.pop().map(|mut row| row.text(0)))
    }

    /// The secret of the store.
    fn secret(&mut self) -> Result<Bytes, StoreError> {
        self.first_bytes("select bytes from secrets", &[])
    }

    /// Rows of at most `limit` jobs, fewer if their payloads and outputs are too large to be removed at once, and
    /// whether more follow.
    fn removable(&mut self, which: Select<'_>, limit: usize) -> Result<(Vec<i64>, bool), StoreError> {
        let Select { clause, mut cells, .. } = which;
        cells.push(int(limit as i64 + 1));
        let sql = format!("select row, payload_bytes + output_bytes from jobs where {clause} limit ${}", cells.len());
        let found = self.query(&sql, &cells)?;
        let (mut bytes, mut rows) = (0, Vec::new());
        for row in found.iter().take(limit) {
            if bytes >= MAX_REMOVED_BYTES {
                break;
            }
            rows.push(row.number(0)?);
            bytes += row.number::<u64>(1)?;
        }
        let is_cut = rows.len() < found.len();
        Ok((rows, is_cut))
    }

    /// Locks the selected jobs, so that no other transaction changes them.
    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        let lock = if which.skips_locked { " for update skip locked" } else { " for update" };
        self.query_jobs(which, limit, if Self::IS_SHARED { lock } else { "" })
    }

    /// The selected jobs; `lock` ends the statement.
    fn query_jobs(&mut self, which: Select<'_>, limit: usize, lock: &str) -> Result<Vec<JobRecord>, StoreError> {
        let Select { clause, mut cells, .. } = which;
        cells.push(int(i64::try_from(limit).unwrap_or(i64::MAX)));
        let sql = format!("select {} from jobs where {clause} limit ${}{lock}", *COLUMN_LIST, cells.len());
        Ok(read_records(self.query(&sql, &cells)?).collect())
    }

    /// Numbers of jobs by kind.
    fn depths(&mut self) -> Result<Vec<(String, Depth)>, StoreError> {
        let now = self.now()?;
        let mut depths = BTreeMap::<_, Depth>::new();
        for mut row in self.query(&DEPTHS, &[])? {
            let depth = depths.entry(row.text(0)).or_default();
            let (state, jobs) = (row.number::<usize>(1)?, row.number(2)?);
            match JobState::ALL.get(state) {
                Some(JobState::Scheduled) => depth.scheduled = jobs,
                Some(JobState::Ready) => depth.ready = jobs,
                Some(JobState::Blocked) => depth.blocked = jobs,
                Some(JobState::Running) => depth.leased = jobs,
                _ => depth.dead = jobs,
            }
            depth.oldest_ready = depth.oldest_ready.or(row.0[3].time().map(|due| now.since(due)));
        }
        Ok(depths.into_iter().collect())
    }

    /// Places of the first and the last ready job of a kind and a class.
    fn places(&mut self, kind: &str, rank: usize) -> Result<Option<(i64, i64)>, StoreError> {
        // Each is one step in the index.
        let of = |end| format!("(select {end}(place) from jobs where state = {READY} and kind = $1 and rank = $2)");
        let sql = format!("select {}, {}", of("min"), of("max"));
        let found = self.query(&sql, &[text(kind), int(rank as i64)])?.pop();
        Ok(found.and_then(|row| row.0[0].number().zip(row.0[1].number())))
    }

    /// Place of the last ready job of a tenant.
    fn last_place(&mut self, kind: &str, rank: usize, tenant: &str) -> Result<Option<i64>, StoreError> {
        let sql =
            format!("select max(place) from jobs where state = {READY} and kind = $1 and rank = $2 and tenant = $3");
        let found = self.query(&sql, &[text(kind), int(rank as i64), text(tenant)])?.pop();
        Ok(found.and_then(|row| row.0[0].number()))
    }

    /// Length of a session's lease. Other transactions cannot remove the session before this one ends.
    fn session(&mut self, session: SessionId) -> Result<Option<Duration>, StoreError> {
        let lock = if Self::IS_SHARED { " for key share" } else { "" };
        let sql = format!("select lease_ms from sessions where session = $1{lock}");
        let found = self.query(&sql, &[int(session.0)])?.pop();
        found.map(|row| row.number(0).map(Duration::from_millis)).transpose()
    }

    /// The tokens of the jobs that are leased to a session.
    fn leased(&mut self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        let leased = self.query_jobs(Select::leased(session), usize::MAX, "")?;
        Ok(leased.iter().filter_map(JobRecord::token).collect())
    }

    /// Saves a session and the end of its lease.
    fn set_session(&mut self, session: SessionId, lease: Duration, end: Timestamp) -> Result<(), StoreError> {
        let sql = "insert into sessions (session, lease_ms, ends_at) values ($1, $2, $3) \
                   on conflict (session) do update set ends_at = excluded.ends_at";
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        self.query(sql, &[int(session.0), int(lease), time(end)]).map(drop)
    }

    /// Saves the jobs in the pools of a session.
    fn set_demand(&mut self, session: SessionId, demand: &Demand) -> Result<(), StoreError> {
        let sql = "update sessions set demand = $1 where session = $2";
        self.query(sql, &[text(&json(demand)), int(session.0)]).map(drop)
    }

    /// The jobs in the pools of the other sessions whose lease has not ended. What cannot be read is left out.
    fn demands(&mut self, session: SessionId, now: Timestamp) -> Result<Vec<Demand>, StoreError> {
        let sql = format!(
            "select demand from sessions where session <> $1 and ends_at > $2 and length(demand) <= {MAX_DEMAND} \
             limit {BATCH}"
        );
        let mut found = self.query(&sql, &[int(session.0), time(now)])?;
        Ok(found.iter_mut().filter_map(|row| row.0[0].json()).collect())
    }

    /// Removes the sessions whose lease has ended, and returns them.
    fn remove_sessions(&mut self, now: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        let sql = "delete from sessions where ends_at <= $1 returning session";
        Ok(numbers(&self.query(sql, &[time(now)])?)?.into_iter().map(SessionId).collect())
    }

    /// The last tick of a schedule.
    fn schedule(&mut self, name: &str) -> Result<Option<LastTick>, StoreError> {
        let sql = "select tick, pattern, run from schedules where name = $1";
        let read = |mut row: Values| {
            Ok(LastTick { at: Timestamp::from_millis(row.number(0)?), pattern: row.text(1), run: row.text(2) })
        };
        self.query(sql, &[text(name)])?.pop().map(read).transpose()
    }

    /// Saves the last tick of a schedule.
    fn set_schedule(&mut self, name: &str, last: &LastTick) -> Result<(), StoreError> {
        let sql = "insert into schedules (name, tick, pattern, run) values ($1, $2, $3, $4) on conflict (name) \
                   do update set tick = excluded.tick, pattern = excluded.pattern, run = excluded.run";
        let LastTick { at, pattern, run } = last;
        self.query(sql, &[text(name), time(*at), text(pattern), text(run)]).map(drop)
    }

    /// Removes the last ticks of all schedules but these.
    fn keep_schedules(&mut self, names: &[String]) -> Result<(), StoreError> {
        for mut row in self.query("select name from schedules", &[])? {
            let name = row.text(0);
            if !names.contains(&name) {
                self.query("delete from schedules where name = $1", &[text(&name)])?;
            }
        }
        Ok(())
    }

    /// Notes a suspension of a pool, or its end.
    fn suspend(&mut self, pool: &str, suspended: Option<&Suspended>, now: Timestamp) -> Result<(), StoreError> {
        let Some(Suspended { is_shut, since: _, principal, reason }) = suspended else {
            return self.query("delete from suspensions where pool = $1", &[text(pool)]).map(drop);
        };
        let sql = "insert into suspensions (pool, is_shut, since, principal, reason) values ($1, $2, $3, $4, $5) \
                   on conflict (pool) do update set is_shut = excluded.is_shut, principal = excluded.principal, \
                   reason = excluded.reason, since = case when suspensions.is_shut = excluded.is_shut \
                   then suspensions.since else excluded.since end";
        self.query(sql, &[text(pool), Cell::Flag(*is_shut), time(now), text(principal), text(reason)]).map(drop)
    }

    /// The suspended pools.
    fn suspended(&mut self) -> Result<BTreeMap<String, Suspended>, StoreError> {
        let sql =
            format!("select pool, is_shut, since, principal, reason from suspensions order by pool limit {BATCH}");
        let read = |mut row: Values| {
            let since = Timestamp::from_millis(row.number(2)?);
            let is_shut = row.0[1].flag().unwrap_or_default();
            let [principal, reason] = [3, 4].map(|column| {
                let mut text = row.text(column);
                text.truncate(text.floor_char_boundary(MAX_SAID));
                text
            });
            Ok((row.text(0), Suspended { is_shut, since, principal, reason }))
        };
        self.query(&sql, &[])?.into_iter().map(read).collect()
    }
}

/// A job as readers show it: one that cannot be read has failed, even before a writer meets it.
pub(super) fn shown(mut record: JobRecord) -> JobRecord {
    if record.is_unreadable() {
        record.set_aside(record.due_at);
    }
    record
}
