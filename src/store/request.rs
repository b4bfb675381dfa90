//! Arguments and results of the store's operations.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use crate::model::{Durations, Rate};

use super::{Claimed, JobRecord, JobState, NewJob, SessionId, Timestamp};

/// What a tenant may hold, as a multiple of what is free.
const TENANT_FACTOR: u64 = 3;

/// Most jobs of a kind that all servers of a store run at the same time, and start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredLimit {
    /// Of all its jobs; none is leased beyond it. A store of one process leaves this limit to the pool, and the rate.
    pub all: Option<u32>,
    /// Highest rate at which its jobs are leased.
    pub rate: Option<Rate>,
    /// Of the jobs of each limit key that [have a limit](super::KindPolicy::has_key_limit); further ones are blocked.
    pub per_key: Option<u32>,
    /// Highest rate at which the jobs of each limit key are leased. A store of one process leaves it to the pool.
    pub key_rate: Option<Rate>,
}

/// Limits by kind.
pub type StoredLimits = BTreeMap<String, StoredLimit>;

/// A session's room for jobs, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// The session.
    pub session: SessionId,
    /// Number of jobs by kind.
    pub kinds: BTreeMap<String, usize>,
    /// Maximum payload bytes of all jobs together; the last one may exceed it.
    pub bytes: usize,
}

/// Jobs to create.
#[derive(Debug, Clone, Default)]
pub struct Submission {
    /// The jobs.
    pub jobs: Vec<NewJob>,
    /// The session that leases them at once where it can.
    pub session: Option<SessionId>,
}

/// The result for a job to create.
#[derive(Debug, Clone)]
pub enum Submitted {
    /// The job is durable.
    Created,
    /// The job is durable, and leased to the session.
    Leased(Box<Claimed>),
    /// A job with this id and payload existed already.
    Existing(Box<JobRecord>),
    /// A job with this id and another payload existed already.
    Conflict,
    /// The job does not fit. Nothing was stored.
    Full(Full),
    /// The tenant has no such group. Nothing was stored.
    NoGroup,
    /// The group takes no more members. Nothing was stored.
    GroupClosed,
}

/// Why a job does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The backlog is full, or the tenant has its part of it.
    Backlog,
    /// The tenant would hold more than its quota allows.
    Quota {
        /// What it holds.
        held: Size,
        /// Its quota.
        quota: Bounds,
    },
}

/// A change that a caller or an operator requests for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// End the job, unless it has ended. A running job ends when its session settles it.
    Cancel,
    /// Make an ended job ready again, with a new budget of attempts and without an expiry.
    Retry,
    /// Remove an ended job.
    Delete,
    /// Close the group that the job waits for: it takes no more members.
    CloseGroup,
}

/// The result of a request to change a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The change is done.
    Done,
    /// The job runs, and its session is asked to stop it.
    Requested,
    /// There is no such job.
    NotFound,
    /// The job's state does not allow it.
    WrongState(JobState),
    /// The job does not fit into the backlog again.
    Full(Full),
}

/// How much of a job is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// No payload and no output.
    Bare,
    /// The output, without the payload.
    Output,
    /// Payload and output.
    All,
}

/// Selects jobs. An empty filter selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// States of the job; empty means any.
    pub states: Vec<JobState>,
    /// Kind of the job.
    pub kind: Option<String>,
    /// Tenant of the job.
    pub tenant: Option<String>,
    /// A label of the job, with its value.
    pub label: Option<(String, String)>,
    /// Created at or after this time.
    pub created_from: Option<Timestamp>,
    /// Created before this time.
    pub created_before: Option<Timestamp>,
    /// Request id of the call that created the job.
    pub request_id: Option<String>,
    /// Name of the [outcome](super::Attempt::outcome) of the last attempt; empty if there is none.
    pub outcome: Option<String>,
    /// Pattern of the error of the last attempt; empty if there is none.
    pub pattern: Option<String>,
    /// Ended at or after this time.
    pub ended_from: Option<Timestamp>,
    /// Ended before this time.
    pub ended_before: Option<Timestamp>,
    /// Members of [this group](JobRecord::member_of).
    pub group: Option<i64>,
}

/// The order of a list: that in which jobs were accepted, or its reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// From the newest job to the oldest.
    Newest,
    /// From the oldest job to the newest.
    Oldest,
}

/// A part of a list.
#[derive(Debug, Default)]
pub struct Page {
    /// The jobs. There may be none, although more follow: a call looks at a bounded number of jobs.
    pub jobs: Vec<JobRecord>,
    /// Where the next part begins; `None` after the last one.
    pub next: Option<i64>,
}

/// Jobs of one kind whose last attempts ended alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Kind of the jobs.
    pub kind: String,
    /// Name of the outcome of the last attempts; empty if there is none.
    pub outcome: String,
    /// Pattern of their errors.
    pub pattern: String,
    /// Number of jobs.
    pub jobs: u64,
    /// End of the job that ended first; `None` if none has ended.
    pub first_end: Option<Timestamp>,
    /// End of the job that ended last.
    pub last_end: Option<Timestamp>,
    /// The first and the last of their tenants by name.
    pub tenants: [String; 2],
    /// Number of their tenants.
    pub tenant_count: u64,
    /// Id of the newest job.
    pub newest: String,
}

/// Jobs by kind, outcome and error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups {
    /// The largest groups, at most [`BATCH`](super::BATCH), the largest first.
    pub groups: Vec<Group>,
    /// Number of jobs, including those of other groups.
    pub jobs: u64,
    /// Whether there are older jobs that were not counted: a call looks at a bounded number of jobs.
    pub is_cut: bool,
}

/// One tick of a schedule.
#[derive(Debug, Clone)]
pub struct Tick {
    /// Name of the schedule.
    pub schedule: String,
    /// Its pattern and time zone. The first tick of another pattern that was missed does not fire.
    pub pattern: String,
    /// When the tick was due.
    pub at: Timestamp,
    /// The time of the clock by which it was due.
    pub now: Timestamp,
    /// What to do if the run of an earlier tick has not ended.
    pub overlap: Overlap,
    /// The job to create.
    pub job: NewJob,
    /// Whether the tick was due before the server knew the schedule. Then it fires only if the schedule has ticked
    /// before.
    pub is_missed: bool,
}

/// What a tick does while the run of an earlier tick has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// The tick creates no run.
    Skip,
    /// The new run waits in the backlog.
    Queue,
}

/// The result of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fired {
    /// The run was created.
    Created,
    /// The tick was skipped: an earlier run has not ended, or the tick was missed and the schedule is new.
    Skipped,
    /// This tick, or a later one, fired before.
    Already,
    /// The tick did not fire: its job does not fit, or another job has its id.
    Refused,
}

/// The result of maintenance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Jobs whose start time came.
    pub promoted: usize,
    /// Jobs taken back from sessions whose lease had ended.
    pub returned: usize,
    /// Expired jobs.
    pub expired: usize,
    /// Jobs removed after their retention.
    pub removed: usize,
    /// Whether a batch was full, so that maintenance should run again at once.
    pub more: bool,
}

/// A pool that an operator holds back, on all servers of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspended {
    /// Whether the pool accepts no jobs, and finishes those that it has. Else it accepts jobs, and starts none.
    pub is_shut: bool,
    /// Since when, by the clock of the store.
    pub since: Timestamp,
    /// Who did it; empty without authentication.
    pub principal: String,
    /// Why; empty if nobody said.
    pub reason: String,
}

/// Numbers of jobs of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Jobs that wait for their start time or their next attempt.
    pub scheduled: u64,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Jobs that wait for their ordering key.
    pub blocked: u64,
    /// Running jobs.
    pub leased: u64,
    /// Dead letters.
    pub dead: u64,
    /// Age of the longest ready job.
    pub oldest_ready: Option<Duration>,
}

/// Numbers of jobs that run or wait in a server, by pool.
pub type Demand = BTreeMap<String, u64>;

/// What a store measures of its database. `None` is unknown.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Durations of its transactions.
    pub commits: Option<Durations>,
    /// Bytes of the log of an SQLite file that are not merged into it.
    pub log_bytes: Option<u64>,
    /// Bytes that are free on the disk of that file.
    pub free_bytes: Option<u64>,
}

/// Size of a store's contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Jobs that have not ended.
    pub jobs: u64,
    /// Bytes of payloads and outputs, including those of ended jobs.
    pub bytes: u64,
}

impl Size {
    pub(super) fn add(&mut self, jobs: i64, bytes: i64) {
        self.jobs = self.jobs.saturating_add_signed(jobs);
        self.bytes = self.bytes.saturating_add_signed(bytes);
    }
}

/// Jobs and bytes that a transaction adds.
#[derive(Debug, Default)]
pub(super) struct Added {
    pub(super) jobs: i64,
    pub(super) bytes: i64,
    /// Those of each tenant.
    pub(super) tenants: HashMap<String, (i64, i64)>,
}

impl Added {
    pub(super) fn add(&mut self, tenant: &str, jobs: i64, bytes: i64) {
        self.jobs += jobs;
        self.bytes += bytes;
        let own = self.tenants.entry(tenant.to_owned()).or_default();
        *own = (own.0 + jobs, own.1 + bytes);
    }
}

/// Bounds of a store. A tenant with a name may hold at most three times as much as is free, so that others find room
/// (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct Bounds {
    /// Maximum number of jobs that have not ended.
    pub max_jobs: u64,
    /// Maximum bytes of payloads and outputs, including those of ended jobs.
    pub max_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_jobs: 10_000_000, max_bytes: 16 << 30 }
    }
}

impl Bounds {
    /// Whether another job with `bytes` fits.
    pub(super) fn allow(&self, size: Size, bytes: u64) -> bool {
        size.jobs < self.max_jobs && size.bytes.saturating_add(bytes) <= self.max_bytes
    }

    /// Whether another job with `bytes` fits into the part of its tenant, which holds `own` of `size`.
    pub(super) fn allow_tenant(&self, size: Size, own: Size, bytes: u64) -> bool {
        let part = |bound: u64, used: u64| bound.saturating_sub(used).saturating_mul(TENANT_FACTOR);
        own.jobs < part(self.max_jobs, size.jobs) && own.bytes.saturating_add(bytes) <= part(self.max_bytes, size.bytes)
    }
}

/// What tenants may hold at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredQuotas {
    /// Each tenant without its own quota; `None` for no quota.
    pub each: Option<Bounds>,
    /// Tenants with their own. Jobs without a tenant have the name `""`.
    pub named: HashMap<String, Option<Bounds>>,
}

impl StoredQuotas {
    /// The quota of a tenant.
    pub(super) fn of(&self, tenant: &str) -> Option<Bounds> {
        self.named.get(tenant).copied().unwrap_or(self.each)
    }
}
