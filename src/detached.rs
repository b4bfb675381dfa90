//! Detached jobs: takes jobs from a store, runs them in the pools, and keeps their ends in the store.
//!
//! [`claims`] counts what each pool has room for, [`dispatch`] takes so many jobs from the store, [`run`] runs one job,
//! and [`outcome`] turns its end into what becomes of the job. [`create`] takes new jobs, and starts those that need not
//! wait. [`schedule`] creates those that recur. [`session`] keeps the lease and the time of the store.
//!
//! A job that waits is in the store. Only as many are in a pool as it can start soon, so that a drain gives back little.

mod claims;
mod create;
mod dispatch;
mod outcome;
mod run;
mod schedule;
mod session;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, watch},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    model::{Attempt, JobId, Replay},
    pool::{Pool, Pools},
    store::{Clock, Depth, JobStore, RetryPolicy, SessionId, Settle, StoreError, Timestamp, Token},
    task::Tasks,
};
use claims::Claims;
use schedule::Schedules;
pub use schedule::{Calendar, SCHEDULE_PREFIX, Schedule};

/// Longest run of a detached job, if its kind or its caller sets none.
pub const MAX_RUN: Duration = Duration::from_secs(7 * 24 * 3600);
/// Ends of jobs that may wait to be kept.
const ENDS: usize = 1024;

/// What becomes of the detached jobs of a kind when they fail, and when they have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindPolicy {
    /// How a failed job is tried again.
    pub retry: RetryPolicy,
    /// How long a result is kept. Default 24 h.
    pub retain_for: Duration,
    /// How long a dead letter is kept. Default 7 d.
    pub retain_dead_for: Duration,
}

impl Default for KindPolicy {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self { retry: RetryPolicy::default(), retain_for: DAY, retain_dead_for: DAY * 7 }
    }
}

/// The policies of kinds by name. Kinds without one have the default.
pub type KindPolicies = BTreeMap<String, KindPolicy>;

/// The detached jobs of a process. Clones share them.
#[derive(Clone)]
pub struct Detached(Arc<Inner>);

struct Inner {
    store: Arc<dyn JobStore>,
    /// The time of schedules.
    clock: Clock,
    pools: Pools,
    policies: ArcSwap<KindPolicies>,
    schedules: Mutex<Schedules>,
    /// Cancelled when no more jobs are to be taken.
    stop: CancellationToken,
    /// Cancelled when every end is kept, and the store is closed.
    ended: CancellationToken,
    session: Mutex<Option<SessionId>>,
    claims: Mutex<Claims>,
    /// Notified when a pool may have room again.
    freed: Notify,
    /// Runs of jobs.
    tasks: Tasks,
    /// Takes their ends, until no more jobs are started.
    ends: Mutex<Option<mpsc::Sender<Settle>>>,
    /// What runs the jobs: the runtime of a connection ends with it.
    runtime: OnceLock<Handle>,
    /// Leases of this process whose ends are not kept yet.
    held: Mutex<HashSet<Token>>,
    /// Whether a claim failed, so that there may be leases beside those.
    may_have_more: AtomicBool,
    /// Jobs in the pools.
    running: Mutex<HashMap<Token, (JobId, Arc<Attempt>)>>,
    /// Jobs that a drain ended in their pool, and that are in the store again.
    returned: Mutex<HashSet<JobId>>,
    is_well: AtomicBool,
    depths: Mutex<Vec<(String, Depth)>>,
}

impl Detached {
    /// The jobs of `store`, which run in `pools` once [`run`](Self::run) is polled. Schedules tick by `clock`.
    #[must_use]
    pub fn new(store: Arc<dyn JobStore>, clock: Clock, pools: Pools, policies: KindPolicies) -> Self {
        Self(Arc::new(Inner {
            store,
            clock,
            pools,
            policies: ArcSwap::from_pointee(policies),
            schedules: Mutex::default(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
            session: Mutex::default(),
            claims: Mutex::default(),
            freed: Notify::new(),
            tasks: Tasks::new(),
            ends: Mutex::default(),
            runtime: OnceLock::new(),
            held: Mutex::default(),
            may_have_more: AtomicBool::new(false),
            running: Mutex::default(),
            returned: Mutex::default(),
            is_well: AtomicBool::new(true),
            depths: Mutex::default(),
        }))
    }

    /// Runs jobs until [`stop`](Self::stop) and the end of those that had begun, and closes the store.
    pub async fn run(self) {
        let inner = &self.0;
        let (ends, kept) = mpsc::channel(ENDS);
        inner.runtime.get_or_init(Handle::current);
        *inner.ends.lock() = Some(ends.clone());
        let work = async {
            inner.dispatch(ends).await;
            inner.ends.lock().take();
            inner.tasks.wait().await;
        };
        tokio::select! {
            biased;
            ((), ()) = async { tokio::join!(work, inner.keep_ends(kept)) } => {}
            () = inner.beat() => {}
            () = inner.tick() => {}
        }
        inner.store.close().await;
        inner.ended.cancel();
    }

    /// Takes no more jobs from the store, and gives those back that have not begun.
    pub fn stop(&self) {
        self.0.stop.cancel();
    }

    /// Returns when [`run`](Self::run) has ended. Cancel safe.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &dyn JobStore {
        &*self.0.store
    }

    /// The policy of a kind.
    #[must_use]
    pub fn policy(&self, kind: &str) -> KindPolicy {
        self.0.policies.load().get(kind).copied().unwrap_or_default()
    }

    /// Replaces the policies, for jobs that are created from now on.
    pub fn set_policies(&self, policies: KindPolicies) {
        self.0.policies.store(Arc::new(policies));
    }

    /// Replaces the schedules. Of each, the last tick that all servers missed runs at once.
    pub fn set_schedules(&self, schedules: Vec<Schedule>) {
        *self.0.schedules.lock() = Schedules::new(schedules);
    }

    /// Whether the store answered when it was last asked.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.0.is_well.load(Relaxed)
    }

    /// How many jobs of each kind there are, some seconds ago at most.
    #[must_use]
    pub fn depths(&self) -> Vec<(String, Depth)> {
        self.0.depths.lock().clone()
    }

    /// The attempt of a job that runs here: its number, and what it tells.
    #[must_use]
    pub fn watch(&self, id: &str) -> Option<(u32, watch::Receiver<Replay>)> {
        let running = self.0.running.lock();
        let (_, (_, attempt)) = running.iter().find(|(token, _)| token.id == id)?;
        Some((attempt.token.number, attempt.watch()))
    }

    /// Whether a drain ended the job in its pool, and the store has it again.
    #[must_use]
    pub fn has_returned(&self, job: JobId) -> bool {
        self.0.returned.lock().contains(&job)
    }
}

/// The calendar of this machine.
#[must_use]
pub fn wall_clock() -> Clock {
    Arc::new(|| {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Timestamp::from(SystemTime::UNIX_EPOCH + now)
    })
}

impl Inner {
    /// Notes whether the store answers, and logs each change.
    fn note<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        let is_well = matches!(answer, Ok(_) | Err(StoreError::SessionLost));
        if self.is_well.swap(is_well, Relaxed) != is_well {
            match &answer {
                Err(error) => {
                    warn!(cause = %error, "the store of detached jobs fails; what runs is kept when it answers")
                }
                Ok(_) => info!("the store of detached jobs answers again"),
            }
        }
        answer
    }

    /// Asks the jobs of these tokens to stop.
    fn cancel(&self, mut which: impl FnMut(&Token) -> bool) {
        let running = self.running.lock();
        let jobs: Vec<_> = running.iter().filter(|(token, _)| which(token)).map(|(_, (job, _))| *job).collect();
        drop(running);
        for job in jobs {
            // It may have ended meanwhile.
            let _ = self.pools.all().iter().find_map(|pool: &Pool| pool.cancel(job));
        }
    }
}
