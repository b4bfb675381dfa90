//! The link between a replica and the shared store. It loses or delays calls and answers, and can be paused or cut.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{random_bool, random_range};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep},
};
use waterwheel::store::{
    Action, Change, Claimed, Demand, Depth, Extent, Filter, Fired, Groups, JobName, JobRecord, JobState, JobStore,
    Members, Order, Page, Room, SessionId, Settle, Size, StoreError, StoredLimits, StoredQuotas, Submission, Submitted,
    Suspended, Tick, Ticked, Timestamp, Token, Wakes,
};

use super::model::Model;

/// How long the store reserves the jobs of a silent replica.
const LEASE: Duration = Duration::from_secs(30);
/// Chance that a call, or its answer, is delayed.
const SLOW: f64 = 0.01;
/// Chance that a call, or its answer, is lost while the link is up.
const LOSS: f64 = 0.002;

/// State of the link of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Up,
    /// The replica stands still, and continues later as if no time had passed.
    Paused,
    /// No call and no answer arrives.
    Cut,
}

/// The link of one replica to the store. Each call takes effect at one moment, and the model is updated then.
pub(crate) struct Link {
    store: Arc<dyn JobStore>,
    model: Arc<Mutex<Model>>,
    state: watch::Sender<LinkState>,
    /// Whether the replica may open a new session: it has none yet, or it alone was disturbed for long enough to lose
    /// it.
    may_lose: AtomicBool,
}

impl Link {
    pub(crate) fn new(store: Arc<dyn JobStore>, model: Arc<Mutex<Model>>) -> Self {
        Self { store, model, state: watch::Sender::new(LinkState::Up), may_lose: AtomicBool::new(true) }
    }

    /// Changes the state for a time. `is_alone` says whether the other replicas are unaffected.
    ///
    /// A replica has recovered from its previous disturbance before the next one.
    pub(crate) async fn disturb(&self, state: LinkState, lasts: Duration, is_alone: bool) {
        self.may_lose.store(is_alone && lasts > LEASE / 2, Relaxed);
        self.state.send_replace(state);
        sleep(lasts).await;
        self.state.send_replace(LinkState::Up);
    }

    /// A new process of the replica begins, without a session.
    pub(crate) fn begin(&self) {
        self.may_lose.store(true, Relaxed);
    }

    /// Waits until the replica is not paused.
    pub(crate) async fn awake(&self) {
        if *self.state.borrow() == LinkState::Paused {
            let mut state = self.state.subscribe();
            state.wait_for(|state| *state != LinkState::Paused).await.expect("the link has the sender");
        }
    }

    /// Transfers a call, or its answer.
    async fn pass(&self) -> Result<(), StoreError> {
        self.awake().await;
        if random_bool(SLOW) {
            sleep(Duration::from_millis(random_range(1..2_000))).await;
        }
        let is_lost = *self.state.borrow() == LinkState::Cut || random_bool(LOSS);
        if is_lost {
            sleep(Duration::from_millis(random_range(0..2_000))).await;
        }
        self.awake().await;
        if is_lost { Err(StoreError::Unavailable("the link is cut".to_owned())) } else { Ok(()) }
    }

    async fn call<T: Send>(
        &self,
        act: impl FnOnce(&dyn JobStore, &mut Model) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.pass().await?;
        let answer = {
            let mut model = self.model.lock();
            // For the thread of the store.
            model.now();
            act(&*self.store, &mut model)
        };
        self.pass().await?;
        answer
    }
}

/// The virtual time at the last look at it. The thread of the store has no clock of its own that stands still.
#[derive(Debug, Clone)]
pub(crate) struct VirtualTime {
    start: Instant,
    passed_ms: Arc<AtomicI64>,
}

impl VirtualTime {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), passed_ms: Arc::default() }
    }

    /// The time since the start.
    pub(crate) fn passed(&self) -> Duration {
        if Handle::try_current().is_ok() {
            let passed = i64::try_from(self.start.elapsed().as_millis()).expect("a day");
            self.passed_ms.store(passed, Relaxed);
        }
        Duration::from_millis(self.passed_ms.load(Relaxed).unsigned_abs())
    }
}

/// The answer of the store in memory. Its thread answers in real time, so no virtual time passes.
pub(crate) fn now<T>(answer: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    // A task that has used up its budget would be woken only once it yields, which it does not do here.
    let mut answer = pin!(tokio::task::unconstrained(answer));
    loop {
        match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

#[async_trait]
impl JobStore for Link {
    fn wakes(&self) -> &Wakes {
        self.store.wakes()
    }

    fn set_quotas(&self, quotas: StoredQuotas) {
        self.store.set_quotas(quotas);
    }

    fn set_limits(&self, limits: StoredLimits) {
        self.store.set_limits(limits);
    }

    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError> {
        let opened = self.call(|store, model| {
            let session = now(store.open_session(lease))?;
            model.opened(session, lease);
            if !self.may_lose.swap(false, Relaxed) {
                model.fault(format!("{session:?} was opened after an outage of all replicas"));
            }
            Ok(session)
        });
        let opened = opened.await;
        // After an error, the replica may try again.
        self.may_lose.fetch_or(opened.is_err(), Relaxed);
        opened
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError> {
        self.call(|store, model| {
            let answers = now(store.submit(submission.clone()))?;
            model.submitted(&submission.jobs, &answers);
            Ok(answers)
        })
        .await
    }

    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        self.call(|store, model| {
            let claimed = now(store.claim(room))?;
            model.claimed(&claimed);
            Ok(claimed)
        })
        .await
    }

    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        self.call(|store, model| {
            let states = now(store.settle(ends.clone()))?;
            model.settled(&ends, &states);
            Ok(states)
        })
        .await
    }

    async fn extend_lease(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.call(|store, model| {
            let cancelled = now(store.extend_lease(session))?;
            model.extended(session);
            Ok(cancelled)
        })
        .await
    }

    async fn share_demand(&self, session: SessionId, own: Demand) -> Result<Vec<Demand>, StoreError> {
        self.call(|store, _| now(store.share_demand(session, own.clone()))).await
    }

    async fn leased(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.call(|store, _| now(store.leased(session))).await
    }

    async fn release(&self, session: SessionId, tokens: Vec<Token>) -> Result<(), StoreError> {
        self.call(|store, model| {
            now(store.release(session, tokens.clone()))?;
            model.released(&tokens);
            Ok(())
        })
        .await
    }

    async fn change(&self, jobs: Vec<JobName>, action: Action) -> Result<Vec<Change>, StoreError> {
        assert_eq!(action, Action::Cancel, "callers only cancel");
        self.call(|store, model| {
            let changes = now(store.change(jobs.clone(), action))?;
            model.cancelled(&jobs, &changes);
            Ok(changes)
        })
        .await
    }

    async fn key_holder(&self, tenant: &str, key: &str) -> Result<Option<String>, StoreError> {
        self.store.key_holder(tenant, key).await
    }

    async fn next_start(&self, kind: &str, key: &str) -> Result<Option<Timestamp>, StoreError> {
        self.store.next_start(kind, key).await
    }

    async fn members(&self, row: i64) -> Result<Option<Members>, StoreError> {
        self.store.members(row).await
    }

    async fn secret(&self) -> Result<Bytes, StoreError> {
        self.store.secret().await
    }

    async fn keep_schedules(&self, names: Vec<String>) -> Result<(), StoreError> {
        self.call(|store, _| now(store.keep_schedules(names))).await
    }

    async fn fire(&self, tick: Tick) -> Result<Fired, StoreError> {
        self.call(|store, model| {
            let fired = now(store.fire(tick.clone()))?;
            model.fired(&tick, fired);
            Ok(fired)
        })
        .await
    }

    async fn suspend(&self, pool: &str, suspended: Option<Suspended>) -> Result<(), StoreError> {
        self.call(|store, _| now(store.suspend(pool, suspended))).await
    }

    async fn suspended(&self) -> Result<BTreeMap<String, Suspended>, StoreError> {
        self.call(|store, _| now(store.suspended())).await
    }

    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError> {
        self.call(|store, _| now(store.tick(end_leases))).await
    }

    async fn get(&self, id: &str, extent: Extent) -> Result<Option<JobRecord>, StoreError> {
        now(self.store.get(id, extent))
    }

    async fn output(&self, row: i64, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        now(self.store.output(row, offset, length))
    }

    async fn group(&self, filter: Filter) -> Result<Groups, StoreError> {
        now(self.store.group(filter))
    }

    async fn list(&self, filter: Filter, order: Order, after: Option<i64>, limit: usize) -> Result<Page, StoreError> {
        now(self.store.list(filter, order, after, limit))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.call(|store, _| now(store.probe())).await
    }

    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError> {
        // On virtual time a count takes no time, so the replica would count again every second.
        Ok(Vec::new())
    }

    async fn size(&self) -> Result<Size, StoreError> {
        now(self.store.size())
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
