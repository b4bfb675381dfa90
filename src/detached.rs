//! Runs detached jobs: takes them from a store, runs them in the pools, and stores their results.
//!
//! The life of a job, step by step:
//! 1. [`intake`] bounds the bytes on their way into the store, and [`submit`] stores the job. A job that need not wait
//!    goes on with step 3.
//! 2. The job waits in the store. [`claims`] counts the room of each pool, and [`dispatch`] takes that many jobs.
//! 3. [`run`] runs one attempt in the pool, and decides what follows.
//! 4. [`results`] stores that. The job has ended, or waits again as in step 2.
//!
//! From step 2 to step 4, the job is leased to the session of this process. [`leases`] has an entry for each such job,
//! and [`session`] extends the lease. [`maintenance`] calls what is periodic, and [`schedule`] creates recurring jobs.
//! [`suspensions`] follows the operators of all servers.
//!
//! A pool gets only as many jobs as it can start soon, so that a drain gives back few.

mod claims;
mod demand;
mod dispatch;
mod intake;
mod leases;
mod maintenance;
mod results;
mod run;
mod schedule;
mod session;
mod submit;
mod suspensions;

use std::{
    collections::BTreeMap,
    mem::discriminant,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    handler::Context,
    model::JobId,
    pool::{LostWhile, Pool, Pools},
    store::{
        Action, Change, Clock, Demand, Depth, JobName, JobStore, KindPolicy, NewJob, Settle, StoreError, Submitted,
        Timestamp, Token,
    },
    task::Tasks,
};
use claims::Claims;
use intake::Intake;
use leases::{Leases, Stage};
use schedule::Schedules;
pub use schedule::{Calendar, SCHEDULE_PREFIX, Schedule};
use suspensions::Suspensions;

/// Longest run of a detached job, unless its kind or its caller sets a limit.
pub const MAX_RUN: Duration = Duration::from_secs(7 * 24 * 3600);
/// Ended attempts that may wait to be stored.
const ENDS: usize = 1024;
/// Bytes of output waiting to be stored, above which no more jobs are taken.
const MAX_UNSTORED: usize = 64 << 20;
/// Time for which an operation that failed may still take effect, such as a commit that waits in a stopped database.
const DOUBT: Duration = Duration::from_secs(600);

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
    schedules: ArcSwap<Schedules>,
    suspensions: Suspensions,
    /// Cancelled when no more jobs may be taken.
    stop: CancellationToken,
    /// Cancelled when all results are stored, and the store is closed.
    ended: CancellationToken,
    claims: Mutex<Claims>,
    intake: Arc<Intake>,
    /// Notified when a pool may have room again.
    freed: Notify,
    /// Tasks that store and run jobs.
    tasks: Tasks,
    /// `None` before the first job is started, and after the last one.
    starter: Mutex<Option<Starter>>,
    leases: Leases,
    /// Time until which the store may have leases of the session that are not in `leases`.
    doubt_until: Mutex<Option<Instant>>,
    /// Bytes of the output of runs whose results are not stored yet.
    unstored: AtomicUsize,
    /// The last failure of the store, until it takes new jobs again.
    away: ArcSwapOption<StoreError>,
    /// Whether results wait that the store has refused.
    is_keeping: AtomicBool,
    /// `None` while they cannot be counted.
    depths: Mutex<Option<Vec<(String, Depth)>>>,
    /// Jobs in the pools of the other servers; `None` while they are not known.
    elsewhere: Mutex<Option<Vec<Demand>>>,
}

/// A run that a drain could not finish, or stopped, or whose result was not stored. The job runs again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRun {
    /// Id of the job.
    pub job: String,
    /// Request id of the call that created it; empty if there is none.
    pub request_id: String,
    /// Kind of the job.
    pub kind: String,
    /// Pool that ran it.
    pub pool: String,
    /// Its stage.
    pub lost_while: LostWhile,
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
    pub fn new(store: Arc<dyn JobStore>, clock: Clock, pools: Pools, policies: KindPolicies) -> Self {
        Self(Arc::new(Inner {
            store,
            clock,
            pools,
            policies: ArcSwap::from_pointee(policies),
            schedules: ArcSwap::default(),
            suspensions: Suspensions::default(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
            claims: Mutex::default(),
            intake: Arc::default(),
            freed: Notify::new(),
            tasks: Tasks::new(),
            starter: Mutex::default(),
            leases: Leases::default(),
            doubt_until: Mutex::default(),
            unstored: AtomicUsize::new(0),
            away: ArcSwapOption::empty(),
            is_keeping: AtomicBool::new(false),
            depths: Mutex::default(),
            elsewhere: Mutex::default(),
        }))
    }

    /// Runs jobs until [`stop`](Self::stop), waits for those that have begun, and closes the store.
    pub async fn run(self) {
        let inner = &self.0;
        let (ends, kept) = mpsc::channel(ENDS);
        let starter = Starter { runtime: Handle::current(), ends };
        *inner.starter.lock() = Some(starter.clone());
        let work = async {
            inner.first_look().await;
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

    /// The store, for reads. Writes go through [`create`](Self::create) and [`change`](Self::change), which note that
    /// the store is away.
    pub fn store(&self) -> &dyn JobStore {
        &*self.0.store
    }

    /// Creates a job, and returns once it is durable. If the future is dropped, the job is created nevertheless.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if too many bytes are on their way into the store, and those of [`JobStore::submit`].
    pub async fn create(&self, job: NewJob) -> Result<Submitted, StoreError> {
        let inner = Arc::clone(&self.0);
        let counted = inner.intake.count(&job).ok_or(StoreError::Busy)?;
        // Only the task knows whether the store has leased the job, so it must end even if the caller leaves.
        let submission = async move {
            let answer = inner.submit(job).await;
            drop(counted);
            answer
        };
        let ended = || Err(StoreError::Unavailable("the server ends".to_owned()));
        self.0.tasks.shield(submission).await.unwrap_or_else(ended)
    }

    /// Cancels, retries or deletes jobs.
    ///
    /// # Errors
    /// Those of [`JobStore::change`].
    pub async fn change(&self, jobs: Vec<JobName>, action: Action) -> Result<Vec<Change>, StoreError> {
        self.0.note(self.0.store.change(jobs, action).await)
    }

    /// The policy of a kind.
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
        self.0.schedules.store(Arc::new(Schedules::new(schedules, (self.0.clock)())));
    }

    /// The schedules, by name, each with at most this many next ticks.
    pub fn schedules(&self, ticks: usize) -> Vec<(Schedule, Vec<Timestamp>)> {
        self.0.next_ticks(ticks)
    }

    /// Why the store takes no new jobs: an operation has failed since it last took a write for trial.
    pub fn away(&self) -> Option<Arc<StoreError>> {
        self.0.away.load_full()
    }

    /// Numbers of jobs by kind, as last counted; `None` if that failed.
    pub fn depths(&self) -> Option<Vec<(String, Depth)>> {
        self.0.depths.lock().clone()
    }

    /// The run of a job that is in a pool of this server.
    pub fn run_of(&self, id: &str) -> Option<Context> {
        self.0.leases.run_of(id)
    }

    /// Whether a run of the job has ended here, and its end is not stored yet.
    pub fn is_unstored(&self, id: &str) -> bool {
        self.0.leases.is_unstored(id)
    }

    /// Until when no jobs of a kind are taken from the store, because its pool refused one.
    pub fn refused_until(&self, kind: &str) -> Option<Instant> {
        self.0.claims.lock().refused_until(kind)
    }

    /// Whether jobs are taken from the store no more.
    pub fn is_stopped(&self) -> bool {
        self.0.stop.is_cancelled()
    }

    /// The runs that were stopped after [`stop`](Self::stop). Their jobs are in the store, and run again.
    pub fn given_back(&self) -> Vec<LostRun> {
        self.0.leases.given_back()
    }

    /// The runs that have not ended, and those whose results are not stored.
    pub fn unfinished(&self) -> Vec<LostRun> {
        self.0.leases.unfinished()
    }
}

/// The system clock.
pub fn wall_clock() -> Clock {
    Arc::new(|| Timestamp::default().plus(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()))
}

impl Inner {
    /// Records that the store is away, and logs each new kind of failure: the first may only follow from the one that
    /// says what to do. Only [`probe`](Self::probe) finds that it is back.
    fn note<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &answer
            && error.is_outage()
            && !matches!(error, StoreError::Conflict | StoreError::Closed)
            && self
                .away
                .swap(Some(Arc::new(error.clone())))
                .is_none_or(|last| discriminant(&*last) != discriminant(error))
        {
            warn!(cause = %error, "the store of detached jobs fails; results of running jobs are stored when it answers again");
        }
        answer
    }

    /// Asks a store that is away whether it takes new jobs again. Reads, and transactions without a change, succeed
    /// where a write does not.
    async fn probe(&self) {
        let is_back = self.away.load().is_some() && self.note(self.store.probe().await).is_ok();
        if is_back && !self.is_keeping.load(Relaxed) {
            self.away.store(None);
            info!("the store of detached jobs answers again");
        }
    }

    /// Changes the stage of a leased job.
    fn set(&self, token: &Token, stage: Stage) {
        self.cancel(self.leases.set(token, stage));
    }

    /// Asks jobs in the pools to stop.
    fn cancel(&self, jobs: impl IntoIterator<Item = JobId>) {
        for job in jobs {
            // The job may have ended meanwhile.
            let _ = self.pools.all().iter().find_map(|pool: &Pool| pool.cancel(job));
        }
    }

    /// An operation failed with an unknown effect, so that it may have leased jobs.
    fn doubt(&self) {
        *self.doubt_until.lock() = Some(Instant::now() + DOUBT);
    }

    /// Whether more jobs may be taken from the store.
    fn may_take(&self) -> bool {
        !self.stop.is_cancelled() && self.unstored.load(Relaxed) < MAX_UNSTORED
    }
}
