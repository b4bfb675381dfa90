//! The operations of a store, within one transaction. They change rows, and collect the notifications to send after the
//! commit.

mod fair_order;
mod groups;
mod key_rates;
mod limits;
mod operate;
mod passing_time;
mod rates;
mod submit;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

pub(super) use fair_order::FairOrder;
use key_rates::KeyChanges;
pub(super) use key_rates::next_start;
use rates::StoredBucket;

use super::{
    Bounds, Claimed, Demand, Full, JobRecord, JobState, Room, SessionId, Settle, Size, StoreError, StoredLimits,
    StoredQuotas, Timestamp, Token,
    job::{ordering_lock, owned},
    request::Added,
    sql::{Connection, MemberChange, Select},
    wakes::Changes,
};
use crate::model::Criticality;

/// Maximum number of keys that a transaction locks singly. The database has room for some thousand locks.
const MAX_LOCKS: usize = 64;

/// The last tick of a schedule.
#[derive(Debug, Clone)]
pub(super) struct LastTick {
    pub(super) at: Timestamp,
    /// Pattern and time zone by which it ticked.
    pub(super) pattern: String,
    /// Id of the last job that was created.
    pub(super) run: String,
}

/// Operations on `rows`, at the time `now`.
pub(super) struct Engine<C> {
    pub(super) rows: C,
    pub(super) now: Timestamp,
    pub(super) changes: Changes,
    bounds: Bounds,
    /// What the transaction adds so far.
    added: Added,
    /// Names of the keys that the transaction has locked; `None` for all.
    locked: Option<BTreeSet<String>>,
    /// Where the search goes on after the transaction.
    searched: Option<Option<(String, String)>>,
    /// What it changes of groups, by the row of the job that waits for each.
    groups: BTreeMap<i64, MemberChange>,
    /// Whether it looks for jobs that an earlier transaction could not start.
    finds_due: bool,
    /// The buckets that it has locked, by kind.
    buckets: BTreeMap<String, StoredBucket>,
    key_changes: KeyChanges,
    shared: Arc<Shared>,
}

/// What the engines of a process share.
pub(super) struct Shared {
    fair_order: Mutex<FairOrder>,
    pub(super) quotas: ArcSwap<StoredQuotas>,
    limits: ArcSwap<StoredLimits>,
    /// The last limit key of the search for jobs that a raised limit lets in; `None` if it is over.
    searched: Mutex<Option<(String, String)>>,
    /// Time of the last tick.
    ticked_at: Mutex<Timestamp>,
}

impl<C: Connection> Engine<C> {
    pub(super) fn new(rows: C, bounds: Bounds, shared: Arc<Shared>) -> Self {
        let (now, changes) = (Timestamp::default(), Changes::default());
        let (groups, finds_due, buckets) = (BTreeMap::new(), false, BTreeMap::new());
        let (added, locked, searched, key_changes) = (Added::default(), None, None, KeyChanges::default());
        Self { rows, now, changes, bounds, added, locked, searched, groups, finds_due, buckets, key_changes, shared }
    }

    /// Begins a transaction that changes these keys, or if `None` any. It locks all if they are many.
    pub(super) fn begin(&mut self, keys: Option<BTreeSet<String>>) -> Result<(), StoreError> {
        self.now = self.rows.begin()?;
        self.locked = keys.filter(|keys| C::IS_SHARED && keys.len() <= MAX_LOCKS);
        self.rows.lock_keys(self.locked.as_ref())
    }

    /// Locks a key that was not known at the begin. It does not wait for another transaction, which may wait for a row.
    fn lock_key(&mut self, key: String) -> Result<(), StoreError> {
        let Some(locked) = self.locked.as_mut().filter(|locked| !locked.contains(&key)) else { return Ok(()) };
        if locked.len() >= MAX_LOCKS || !self.rows.try_lock_key(&key)? {
            return Err(StoreError::Conflict);
        }
        locked.insert(key);
        Ok(())
    }

    /// Commits the transaction, and returns its changes.
    pub(super) fn commit(&mut self) -> Result<Changes, StoreError> {
        self.settle_groups()?;
        self.save_key_changes()?;
        self.save_buckets()?;
        self.rows.commit(&mem::take(&mut self.added))?;
        if let Some(searched) = self.searched.take() {
            *self.shared.searched.lock() = searched;
        }
        Ok(mem::take(&mut self.changes))
    }

    pub(super) fn roll_back(&mut self) {
        self.rows.roll_back();
        self.added = Added::default();
        self.searched = None;
        self.groups.clear();
        self.buckets.clear();
        self.key_changes.clear();
        self.finds_due = false;
        self.changes = Changes::default();
    }

    /// Size of the contents, with what the transaction adds.
    pub(super) fn size(&self) -> Size {
        let mut size = self.rows.size();
        size.add(self.added.jobs, self.added.bytes);
        size
    }

    /// Why another job of a tenant does not fit; `None` if it fits.
    fn refusal(&mut self, tenant: &str, bytes: u64) -> Result<Option<Full>, StoreError> {
        let (size, quota) = (self.size(), self.shared.quotas.load().of(tenant));
        if !self.bounds.allow(size, bytes) {
            return Ok(Some(Full::Backlog));
        }
        if tenant.is_empty() && quota.is_none() {
            return Ok(None);
        }
        let mut own = self.rows.tenant_size(tenant)?;
        if let Some((jobs, bytes)) = self.added.tenants.get(tenant) {
            own.add(*jobs, *bytes);
        }
        if let Some(quota) = quota.filter(|quota| !quota.allow(own, bytes)) {
            return Ok(Some(Full::Quota { held: own, quota }));
        }
        let fits = tenant.is_empty() || self.bounds.allow_tenant(size, own, bytes);
        Ok(if fits { None } else { Some(Full::Backlog) })
    }

    /// Selects jobs to change them. Those that cannot be read are set aside, so that they stop no others.
    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        loop {
            let records = self.rows.select(which.clone(), limit)?;
            if !self.set_aside(&records)? {
                return Ok(records);
            }
        }
    }

    /// The existing jobs with these ids, in any order.
    fn find(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError> {
        let records = self.rows.find(ids)?;
        if self.set_aside(&records)? { self.rows.find(ids) } else { Ok(records) }
    }

    /// Ends the jobs that cannot be read. Returns whether there were any.
    fn set_aside(&mut self, records: &[JobRecord]) -> Result<bool, StoreError> {
        let mut found: Vec<_> = records.iter().filter(|record| record.is_unreadable()).cloned().collect();
        for record in &mut found {
            record.set_aside(self.now);
            self.changes.set_aside.push((record.row, record.fault.unwrap_or_default()));
        }
        let is_any = !found.is_empty();
        self.save_changed(found)?;
        Ok(is_any)
    }

    pub(super) fn open_session(&mut self, lease: Duration) -> Result<SessionId, StoreError> {
        let session = SessionId(self.number()?);
        self.rows.set_session(session, lease, self.now.plus(lease))?;
        Ok(session)
    }

    pub(super) fn extend_lease(&mut self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        let lease = self.rows.session(session)?.ok_or(StoreError::SessionLost)?;
        self.rows.set_session(session, lease, self.now.plus(lease))?;
        let jobs = self.select(Select::to_cancel(session), usize::MAX)?;
        Ok(jobs.iter().filter_map(JobRecord::token).collect())
    }

    pub(super) fn share_demand(&mut self, session: SessionId, own: &Demand) -> Result<Vec<Demand>, StoreError> {
        if !self.rows.ends_leases() {
            return Ok(Vec::new());
        }
        self.rows.set_demand(session, own)?;
        self.rows.demands(session, self.now)
    }

    pub(super) fn claim(&mut self, room: &Room) -> Result<Vec<Claimed>, StoreError> {
        self.rows.session(room.session)?.ok_or(StoreError::SessionLost)?;
        if self.shared.has_key_rates() {
            self.look_at_keys()?;
        }
        let mut records = Vec::new();
        for (kind, count) in self.within_limits(&room.kinds)? {
            let count = self.within_rate(&kind, count)?;
            records.extend(self.ready(room.session, &kind, count)?);
        }
        let short = self.within_key_rates(&mut records)?;
        let mut records = self.within(room, records);
        self.rows.load_payloads(&mut records)?;
        self.set_aside(&records)?;
        records.retain(|record| !record.is_unreadable());
        for record in &mut records {
            record.lease(room.session, self.now);
            self.take_token(record);
        }
        self.save(&records)?;
        short.into_iter().try_for_each(|key| self.look_at_key(key))?;
        Ok(records.into_iter().filter_map(JobRecord::claimed).collect())
    }

    /// The first jobs that the bytes of the room allow, with at most one suspect.
    fn within(&mut self, room: &Room, ready: Vec<JobRecord>) -> Vec<JobRecord> {
        let (mut records, mut bytes, mut has_suspect) = (Vec::new(), 0, false);
        for record in ready {
            if record.is_suspect() && mem::replace(&mut has_suspect, true) {
                // Other jobs may have waited behind the suspect that is left.
                self.changes.ready = true;
            } else if bytes < room.bytes as u64 {
                bytes += record.payload_bytes;
                records.push(record);
            }
        }
        records
    }

    /// Ready jobs of a kind: important classes first, then by place.
    fn ready(&mut self, session: SessionId, kind: &str, count: usize) -> Result<Vec<JobRecord>, StoreError> {
        let mut records = Vec::new();
        for class in Criticality::BY_IMPORTANCE {
            let left = count - records.len();
            if left > 0 {
                let (rank, begin) = (class.rank(), Instant::now());
                let floor = self.rows.floor(kind, rank);
                let found = self.select(Select::ready(kind, rank, floor, self.now, session), left)?;
                let [first, last] = [found.first(), found.last()].map(|job| job.map(|record| record.place));
                let took = if floor == i64::MIN { Some(begin.elapsed()) } else { None };
                self.rows.note_scan(kind, rank, first.zip(last), took);
                self.shared.fair_order.lock().claimed(kind, rank, last, found.len() < left);
                records.extend(found);
            }
        }
        Ok(records)
    }

    pub(super) fn settle(&mut self, ends: &[&Settle]) -> Result<Vec<Option<JobState>>, StoreError> {
        let ids: Vec<_> = ends.iter().map(|end| end.token.id.as_str()).collect();
        let records = self.find(&ids)?.into_iter();
        let mut records: HashMap<_, _> = records.filter_map(|record| Some((record.token()?, record))).collect();
        let mut settled = Vec::new();
        let mut answers = Vec::with_capacity(ends.len());
        for end in ends {
            // Settled jobs are removed from the map, so a second end for the same attempt is void.
            let Some(mut record) = records.remove(&end.token) else {
                answers.push(None);
                continue;
            };
            // Another suspect may run then.
            self.changes.ready |= record.is_suspect();
            record.settle(end, self.now);
            self.resize(&record, 0, record.output.bytes.len() as i64);
            self.changes.returned |= record.state == JobState::Ready;
            self.note_place(&record.request.job.kind);
            answers.push(Some(record.state));
            settled.push(record);
        }
        self.save_changed(settled)?;
        Ok(answers)
    }

    /// Saves changed records. For each that has ended, the next job of its ordering key becomes ready, and for each
    /// that is not to run now, the next ones of its limit key. One that is given back may be beyond the rate of that.
    fn save_changed(&mut self, mut records: Vec<JobRecord>) -> Result<(), StoreError> {
        let (mut released, mut limited) = (Vec::new(), BTreeSet::new());
        for record in &mut records {
            self.changes.ready |= record.state == JobState::Ready;
            let may_change = |(kind, _): &(&str, &str)| {
                !record.has_slot() || record.state == JobState::Ready && self.key_rate(kind).is_some()
            };
            limited.extend(record.request.limit_key().filter(may_change).map(owned));
            if record.state.is_ended() {
                self.resize(record, -1, 0);
                if record.release_key() {
                    released.extend(record.request.ordering_key().map(owned));
                }
            }
        }
        self.save(&records)?;
        for (tenant, key) in released {
            self.lock_key(ordering_lock((&tenant, &key)))?;
            let mut next = self.select(Select::blocked(&tenant, &key), 1)?;
            for record in &mut next {
                self.enter(record)?;
                self.changes.ready = true;
            }
            self.save(&next)?;
        }
        self.let_in(&limited)
    }

    fn save(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        self.changes.changed.extend(records.iter().map(|record| record.request.id.clone()));
        self.rows.save(records)
    }

    /// Changes the sizes of all and of the job's tenant, and the counts of its group.
    fn resize(&mut self, record: &JobRecord, jobs: i64, bytes: i64) {
        self.added.add(&record.request.job.tenant, jobs, bytes);
        if let Some(group) = record.member_of.filter(|_| jobs != 0) {
            self.groups.entry(group).or_default().count(record.state, jobs);
        }
    }

    /// Makes a job ready in the fair order of tenants, or blocked behind those that hold its keys.
    fn enter(&mut self, record: &mut JobRecord) -> Result<(), StoreError> {
        if let Some(key) = record.request.ordering_key().filter(|_| record.needs_key()) {
            self.lock_key(ordering_lock(key))?;
            let is_held = self.rows.key_holder(key)?.is_some();
            record.take_key(is_held);
        }
        let may_run = !record.needs_key() && self.has_free_slot(record)?;
        let place = match may_run {
            // It has not begun since, so that later jobs may not pass it. A blocked one has no place in the fair order.
            true if record.state == JobState::Scheduled && record.was_held() => {
                self.changes.returned = true;
                record.place
            }
            true => self.place(record)?,
            false => self.number()?,
        };
        record.enter(may_run, place);
        Ok(())
    }

    fn place(&mut self, record: &JobRecord) -> Result<i64, StoreError> {
        self.shared.fair_order.lock().place(&record.request.job, &mut self.rows)
    }

    /// Writes without a change of a job, and fails where a new job does not fit on the disk.
    pub(super) fn probe(&mut self) -> Result<(), StoreError> {
        self.rows.require_room()?;
        self.number().map(|_| ())
    }

    fn number(&mut self) -> Result<i64, StoreError> {
        self.rows.numbers(1)?.pop().ok_or_else(|| StoreError::Database("numbers are missing".to_owned()))
    }
}
