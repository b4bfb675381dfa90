//! What operations take and give.

use std::{collections::BTreeMap, time::Duration};

use super::{Claimed, JobRecord, JobState, NewJob, SessionId, Timestamp};

/// How many jobs of each kind a session has room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// The session.
    pub session: SessionId,
    /// Jobs for each kind.
    pub kinds: BTreeMap<String, usize>,
    /// Payloads of all of them; the last one may exceed it.
    pub bytes: usize,
}

/// Jobs to create.
#[derive(Debug, Clone, Default)]
pub struct Submission {
    /// The jobs.
    pub jobs: Vec<NewJob>,
    /// Room to lease some of them at once.
    pub room: Option<Room>,
}

/// What became of a job to create.
#[derive(Debug, Clone)]
pub enum Submitted {
    /// It is durable.
    Created,
    /// It is durable, and leased to the session.
    Leased(Box<Claimed>),
    /// A job with this id and payload was there.
    Existing(Box<JobRecord>),
    /// A job with this id and another payload was there.
    Conflict,
    /// The backlog is at its bound. Nothing was kept.
    Full,
}

/// What a caller or an operator may do to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// End it, if it has not ended. A running one ends when its session settles it.
    Cancel,
    /// Make it ready again, if it has ended: with all its attempts before it, and without an expiry.
    Retry,
    /// Remove it, if it has ended.
    Delete,
}

/// What became of a request to change a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is done.
    Done,
    /// The job runs, and its session is asked to stop it.
    Requested,
    /// There is no such job.
    NotFound,
    /// The job's state does not allow it.
    WrongState(JobState),
    /// The backlog is at its bound.
    Full,
}

/// Which jobs. Empty means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states; empty means any.
    pub states: Vec<JobState>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// With this label and value.
    pub label: Option<(String, String)>,
    /// Created then or later.
    pub created_from: Option<Timestamp>,
    /// Created before.
    pub created_before: Option<Timestamp>,
}

/// A part of a list, the newest jobs first.
#[derive(Debug, Clone)]
pub struct Page {
    /// The jobs.
    pub jobs: Vec<JobRecord>,
    /// Token of the next page. `None` if this is the last.
    pub next: Option<String>,
}

/// One tick of a schedule.
#[derive(Debug, Clone)]
pub struct Tick {
    /// Name of the schedule.
    pub schedule: String,
    /// When the tick was due.
    pub at: Timestamp,
    /// What to do if the run of an earlier tick has not ended.
    pub overlap: Overlap,
    /// The run.
    pub job: NewJob,
    /// Whether it was due before the server looked. It then runs only if the schedule has ticked before.
    pub is_missed: bool,
}

/// What a tick does while the run of an earlier tick has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// It creates no run.
    Skip,
    /// Its run waits in the backlog.
    Queue,
}

/// What became of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fired {
    /// Its run was created.
    Created,
    /// An earlier run has not ended, or it was missed by a new schedule, so that it was skipped.
    Skipped,
    /// This tick, or a later one, had fired before.
    Already,
    /// The backlog is at its bound, or another job has the id. The tick did not fire.
    Refused,
}

/// What maintenance did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Jobs whose time had come.
    pub promoted: usize,
    /// Jobs of sessions whose lease had ended.
    pub returned: usize,
    /// Jobs that expired.
    pub expired: usize,
    /// Jobs removed after their retention.
    pub removed: usize,
    /// Whether more is to be done at once: a batch was full.
    pub more: bool,
}

/// Jobs of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Jobs that wait for a time.
    pub scheduled: u64,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Jobs that wait for their ordering key.
    pub blocked: u64,
    /// Jobs that run.
    pub leased: u64,
    /// Dead letters.
    pub dead: u64,
    /// Age of the job that has been ready for the longest time.
    pub oldest_ready: Option<Duration>,
}

impl Depth {
    /// Counts jobs in a state.
    pub(super) fn add(&mut self, state: JobState, jobs: u64) {
        match state {
            JobState::Scheduled => self.scheduled += jobs,
            JobState::Ready => self.ready += jobs,
            JobState::Blocked => self.blocked += jobs,
            JobState::Running => self.leased += jobs,
            JobState::Failed => self.dead += jobs,
            JobState::Succeeded | JobState::Cancelled | JobState::Expired => {}
        }
    }
}

/// What a store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Jobs that have not ended.
    pub jobs: u64,
    /// Bytes of payloads and outputs, those of ended jobs included.
    pub bytes: u64,
}

impl Size {
    pub(super) fn add(&mut self, jobs: i64, bytes: i64) {
        self.jobs = self.jobs.saturating_add_signed(jobs);
        self.bytes = self.bytes.saturating_add_signed(bytes);
    }
}

/// Bounds of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most jobs that have not ended. Default 10 million.
    pub max_jobs: u64,
    /// Most bytes of payloads and outputs, those of ended jobs included. Default 16 GiB.
    pub max_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_jobs: 10_000_000, max_bytes: 16 << 30 }
    }
}

impl Bounds {
    /// Whether a further job with `bytes` fits.
    pub(super) fn allow(&self, size: Size, bytes: u64) -> bool {
        size.jobs < self.max_jobs && size.bytes.saturating_add(bytes) <= self.max_bytes
    }
}

/// What a store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name: `memory`, `sqlite` or `postgres`.
    pub name: &'static str,
    /// Whether accepted jobs outlive the process.
    pub is_durable: bool,
    /// Whether replicas share it.
    pub is_shared: bool,
}
