//! Runs detached jobs: takes them from a store, runs them in the pools, and stores their results.
//!
//! [`claims`] counts the room of each pool, and creates jobs that need not wait. [`dispatch`] takes that many jobs from
//! the store and extends the lease. [`run`] runs one job and decides what follows. [`schedule`] creates recurring jobs.
//!
//! Waiting jobs stay in the store. A pool gets only as many as it can start soon, so that a drain gives back few.

mod claims;
mod dispatch;
mod run;
mod schedule;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
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
    store::{Clock, Depth, JobStore, KindPolicy, SessionId, Settle, StoreError, Timestamp, Token},
    task::Tasks,
};
use claims::Claims;
use schedule::Schedules;
pub use schedule::{Calendar, SCHEDULE_PREFIX, Schedule};

/// Longest run of a detached job, unless its kind or its caller sets a limit.
pub const MAX_RUN: Duration = Duration::from_secs(7 * 24 * 3600);
/// Ended attempts that may wait to be stored.
const ENDS: usize = 1024;

/// Policies by the name of the kind. Kinds without an entry have the default policy.
pub type KindPolicies = BTreeMap<String, KindPolicy>;

/// The detached jobs of a process. Clones share the state.
#[derive(Clone)]
pub struct Detached(Arc<Inner>);

struct Inner {
    store: Arc<dyn JobStore>,
    /// Clock of the schedules.
    clock: Clock,
    pools: Pools,
    policies: ArcSwap<KindPolicies>,
    schedules: Mutex<Schedules>,
    /// Cancelled when no more jobs may be taken.
    stop: CancellationToken,
    /// Cancelled when all results are stored, and the store is closed.
    ended: CancellationToken,
    session: Mutex<Option<SessionId>>,
    claims: Mutex<Claims>,
    /// Notified when a pool may have room again.
    freed: Notify,
    /// Tasks that run jobs.
    tasks: Tasks,
    /// `None` before the first job is started, and after the last one.
    starter: Mutex<Option<Starter>>,
    /// Leases of this process whose results are not stored yet, each with its run while that is in a pool.
    held: Mutex<HashMap<Token, Option<Run>>>,
    /// Whether a claim failed, so that there may be leases that are not in `held`.
    may_have_more: AtomicBool,
    /// Jobs that a drain ended in their pool, and that are back in the store.
    returned: Mutex<HashSet<JobId>>,
    is_well: AtomicBool,
    depths: Mutex<Vec<(String, Depth)>>,
}

/// The run of a job in a pool.
struct Run {
    job: JobId,
    attempt: Arc<Attempt>,
}

/// What is needed to start a job.
#[derive(Clone)]
struct Starter {
    /// Runs the tasks of jobs, because the runtime of a connection may end before.
    runtime: Handle,
    /// Receives the ended attempts.
    ends: mpsc::Sender<Settle>,
}

impl Detached {
    /// Detached jobs of `store`, which run in `pools` once [`run`](Self::run) is polled. `clock` times the schedules.
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
            starter: Mutex::default(),
            held: Mutex::default(),
            may_have_more: AtomicBool::new(false),
            returned: Mutex::default(),
            is_well: AtomicBool::new(true),
            depths: Mutex::default(),
        }))
    }

    /// Runs jobs until [`stop`](Self::stop), waits for those that have begun, and closes the store.
    pub async fn run(self) {
        let inner = &self.0;
        let (ends, kept) = mpsc::channel(ENDS);
        let starter = Starter { runtime: Handle::current(), ends };
        *inner.starter.lock() = Some(starter.clone());
        let work = async {
            inner.dispatch(starter).await;
            inner.starter.lock().take();
            inner.tasks.wait().await;
        };
        tokio::select! {
            biased;
            ((), ()) = async { tokio::join!(work, inner.keep_ends(kept)) } => {}
            () = inner.extend_lease() => {}
            () = inner.tick() => {}
        }
        inner.store.close().await;
        inner.ended.cancel();
    }

    /// Takes no more jobs from the store, and gives back the jobs that have not begun.
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

    /// Replaces the policies for jobs that are created from now on.
    pub fn set_policies(&self, policies: KindPolicies) {
        self.0.policies.store(Arc::new(policies));
    }

    /// Replaces the schedules. If all servers missed ticks of a schedule, the last of them fires at once. The store
    /// forgets other schedules.
    pub fn set_schedules(&self, schedules: Vec<Schedule>) {
        self.0.schedules.lock().set(schedules, (self.0.clock)());
    }

    /// Whether the last operation of the store succeeded.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.0.is_well.load(Relaxed)
    }

    /// Numbers of jobs by kind, at most some seconds old.
    #[must_use]
    pub fn depths(&self) -> Vec<(String, Depth)> {
        self.0.depths.lock().clone()
    }

    /// The attempt of a job that runs here: its number, and its events.
    #[must_use]
    pub fn watch(&self, id: &str) -> Option<(u32, watch::Receiver<Replay>)> {
        let held = self.0.held.lock();
        let Run { attempt, .. } = held.iter().find_map(|(token, run)| run.as_ref().filter(|_| token.id == id))?;
        Some((attempt.token.number, attempt.watch()))
    }

    /// Whether a drain ended the job in its pool, and the job is back in the store.
    #[must_use]
    pub fn has_returned(&self, job: JobId) -> bool {
        self.0.returned.lock().contains(&job)
    }
}

/// The system clock.
#[must_use]
pub fn wall_clock() -> Clock {
    Arc::new(|| {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Timestamp::from(SystemTime::UNIX_EPOCH + now)
    })
}

impl Inner {
    /// Records whether the store works, and logs each change.
    fn note<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        let is_well = matches!(answer, Ok(_) | Err(StoreError::SessionLost));
        if self.is_well.swap(is_well, Relaxed) != is_well {
            match &answer {
                Err(error) => {
                    warn!(cause = %error, "the store of detached jobs fails; results of running jobs are stored when it answers again")
                }
                Ok(_) => info!("the store of detached jobs answers again"),
            }
        }
        answer
    }

    /// Records the run of a lease.
    fn hold(&self, token: &Token, run: Option<Run>) {
        if let Some(held) = self.held.lock().get_mut(token) {
            *held = run;
        }
    }

    /// Asks the selected jobs to stop.
    fn cancel(&self, mut which: impl FnMut(&Token) -> bool) {
        let held = self.held.lock();
        let runs = held.iter().filter(|(token, _)| which(token)).filter_map(|(_, run)| run.as_ref());
        let jobs: Vec<_> = runs.map(|run| run.job).collect();
        drop(held);
        for job in jobs {
            // The job may have ended meanwhile.
            let _ = self.pools.all().iter().find_map(|pool: &Pool| pool.cancel(job));
        }
    }
}
