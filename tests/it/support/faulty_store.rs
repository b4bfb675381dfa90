//! A store whose operations fail, or wait, when a test says so.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use waterwheel::store::{
    Action, Change, Claimed, Demand, Depth, Extent, Filter, Fired, Groups, JobName, JobRecord, JobState, JobStore,
    Members, Order, Page, Room, SessionId, Settle, Size, StoreError, StoredLimits, StoredQuotas, Submission, Submitted,
    Suspended, Tick, Ticked, Timestamp, Token, Wakes,
};

use super::{Counter, Gate};

/// An operation that may have faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Submit,
    Claim,
    Settle,
    Release,
    Change,
    Suspend,
    Suspended,
    Tick,
    Depths,
}

/// What happens to an operation.
#[derive(Clone)]
pub(crate) enum Fault {
    /// It takes effect, and fails.
    FailsAfter,
    /// It waits for the gate before it takes effect.
    Waits(Gate),
    /// It takes effect, and its answer waits for the gate.
    AnswersLate(Gate),
    /// It waits for the first gate before it takes effect, and its answer for the second.
    WaitsTwice(Gate, Gate),
}

/// A store with faults.
pub(crate) struct FaultyStore {
    pub(crate) store: Arc<dyn JobStore>,
    faults: Mutex<Vec<(Operation, Fault)>>,
    /// Operations that failed, or wait, by a fault.
    pub(crate) faulted: Counter,
    /// Answers that named cancelled jobs.
    pub(crate) looks: Counter,
    /// Answers that a session is lost.
    pub(crate) losses: Counter,
    /// The notifications; they never come if the test has muted them.
    muted: Option<Wakes>,
}

impl FaultyStore {
    pub(crate) fn new(store: Arc<dyn JobStore>) -> Self {
        let [faulted, looks, losses] = [(); 3].map(|()| Counter::new());
        Self { store, faults: Mutex::default(), faulted, looks, losses, muted: None }
    }

    /// A store without notifications.
    pub(crate) fn muted(store: Arc<dyn JobStore>) -> Self {
        Self { muted: Some(Wakes::default()), ..Self::new(store) }
    }

    /// The next operation of this sort has the fault. Several faults come one after another.
    pub(crate) fn fault(&self, operation: Operation, fault: Fault) {
        self.faults.lock().push((operation, fault));
    }

    /// Number of faults that operations of this sort have not had yet.
    pub(crate) fn faults_left(&self, operation: Operation) -> usize {
        self.faults.lock().iter().filter(|(of, _)| *of == operation).count()
    }

    async fn call<T>(
        &self,
        operation: Operation,
        act: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let fault = {
            let mut faults = self.faults.lock();
            let found = faults.iter().position(|(of, _)| *of == operation);
            found.map(|index| faults.remove(index).1)
        };
        if let Some(Fault::Waits(gate) | Fault::WaitsTwice(gate, _)) = &fault {
            self.faulted.add();
            gate.pass().await;
        }
        let answer = act.await;
        match fault {
            Some(Fault::FailsAfter) => {
                self.faulted.add();
                Err(StoreError::Unavailable("the answer was lost".to_owned()))
            }
            Some(Fault::AnswersLate(gate) | Fault::WaitsTwice(_, gate)) => {
                self.faulted.add();
                gate.pass().await;
                answer
            }
            _ => answer,
        }
    }
}

#[async_trait::async_trait]
impl JobStore for FaultyStore {
    fn wakes(&self) -> &Wakes {
        self.muted.as_ref().unwrap_or_else(|| self.store.wakes())
    }

    fn set_quotas(&self, quotas: StoredQuotas) {
        self.store.set_quotas(quotas);
    }

    fn set_limits(&self, limits: StoredLimits) {
        self.store.set_limits(limits);
    }

    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError> {
        self.store.open_session(lease).await
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError> {
        self.call(Operation::Submit, self.store.submit(submission)).await
    }

    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        self.call(Operation::Claim, self.store.claim(room)).await
    }

    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        self.call(Operation::Settle, self.store.settle(ends)).await
    }

    async fn extend_lease(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        let cancelled = self.store.extend_lease(session).await;
        if cancelled.as_ref().is_ok_and(|cancelled| !cancelled.is_empty()) {
            self.looks.add();
        }
        if matches!(cancelled, Err(StoreError::SessionLost)) {
            self.losses.add();
        }
        cancelled
    }

    async fn share_demand(&self, session: SessionId, own: Demand) -> Result<Vec<Demand>, StoreError> {
        self.store.share_demand(session, own).await
    }

    async fn leased(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.store.leased(session).await
    }

    async fn release(&self, session: SessionId, tokens: Vec<Token>) -> Result<(), StoreError> {
        self.call(Operation::Release, self.store.release(session, tokens)).await
    }

    async fn change(&self, jobs: Vec<JobName>, action: Action) -> Result<Vec<Change>, StoreError> {
        self.call(Operation::Change, self.store.change(jobs, action)).await
    }

    async fn get(&self, id: &str, extent: Extent) -> Result<Option<JobRecord>, StoreError> {
        self.store.get(id, extent).await
    }

    async fn key_holder(&self, tenant: &str, key: &str) -> Result<Option<String>, StoreError> {
        self.store.key_holder(tenant, key).await
    }

    async fn next_start(&self, kind: &str, key: &str) -> Result<Option<Timestamp>, StoreError> {
        self.store.next_start(kind, key).await
    }

    async fn output(&self, row: i64, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.store.output(row, offset, length).await
    }

    async fn group(&self, filter: Filter) -> Result<Groups, StoreError> {
        self.store.group(filter).await
    }

    async fn list(&self, filter: Filter, order: Order, after: Option<i64>, limit: usize) -> Result<Page, StoreError> {
        self.store.list(filter, order, after, limit).await
    }

    async fn fire(&self, tick: Tick) -> Result<Fired, StoreError> {
        self.store.fire(tick).await
    }

    async fn members(&self, row: i64) -> Result<Option<Members>, StoreError> {
        self.store.members(row).await
    }

    async fn secret(&self) -> Result<Bytes, StoreError> {
        self.store.secret().await
    }

    async fn keep_schedules(&self, names: Vec<String>) -> Result<(), StoreError> {
        self.store.keep_schedules(names).await
    }

    async fn suspend(&self, pool: &str, suspended: Option<Suspended>) -> Result<(), StoreError> {
        self.call(Operation::Suspend, self.store.suspend(pool, suspended)).await
    }

    async fn suspended(&self) -> Result<BTreeMap<String, Suspended>, StoreError> {
        self.call(Operation::Suspended, self.store.suspended()).await
    }

    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError> {
        self.call(Operation::Tick, self.store.tick(end_leases)).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.store.probe().await
    }

    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError> {
        self.call(Operation::Depths, self.store.depths()).await
    }

    async fn size(&self) -> Result<Size, StoreError> {
        self.store.size().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
