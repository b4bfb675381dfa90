//! What lies between a replica and the store that it shares: it loses calls and answers, delays them, or stands still.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use rand::{random_bool, random_range};
use tokio::{sync::watch, time::sleep};
use waterwheel::store::{
    Action, Capabilities, Change, Claimed, Depth, Filter, Fired, JobState, JobStore, MemoryStore, Page, Room,
    SessionId, Settle, Size, StoreError, StoredJob, Submission, Submitted, Tick, Ticked, Token, Wakes,
};

use super::books::Books;

/// How long the store keeps jobs for a replica that is away.
const LEASE: Duration = Duration::from_secs(30);
/// Chance that a call, or its answer, takes long.
const SLOW: f64 = 0.01;
/// Chance that a call, or its answer, is lost in fair weather.
const LOSS: f64 = 0.002;

/// What befalls a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// It does nothing, and then goes on as if nothing had been.
    Paused,
    /// Neither its calls arrive, nor their answers.
    Cut,
}

/// One replica's way to the store. Each call takes effect at one moment, and the books have it then.
pub(crate) struct Link {
    store: Arc<MemoryStore>,
    books: Arc<Mutex<Books>>,
    weather: watch::Sender<Weather>,
    /// Whether it was away for so long, and alone, that it may lose its session; or has none yet.
    may_lose: AtomicBool,
}

impl Link {
    pub(crate) fn new(store: Arc<MemoryStore>, books: Arc<Mutex<Books>>) -> Self {
        Self { store, books, weather: watch::Sender::new(Weather::Fair), may_lose: AtomicBool::new(true) }
    }

    /// Alone, or with all others at the same time. By then, what it lost before is made good.
    pub(crate) async fn suffer(&self, weather: Weather, lasts: Duration, is_alone: bool) {
        self.may_lose.store(is_alone && lasts > LEASE / 2, Relaxed);
        self.weather.send_replace(weather);
        sleep(lasts).await;
        self.weather.send_replace(Weather::Fair);
    }

    /// It has no session yet.
    pub(crate) fn begin(&self) {
        self.may_lose.store(true, Relaxed);
    }

    /// Returns when the replica is not paused.
    pub(crate) async fn awake(&self) {
        if *self.weather.borrow() == Weather::Paused {
            let mut weather = self.weather.subscribe();
            weather.wait_for(|weather| *weather != Weather::Paused).await.expect("the link has the sender");
        }
    }

    /// A call, or its answer, is on its way.
    async fn pass(&self) -> Result<(), StoreError> {
        self.awake().await;
        if random_bool(SLOW) {
            sleep(Duration::from_millis(random_range(1..2_000))).await;
        }
        let is_lost = *self.weather.borrow() == Weather::Cut || random_bool(LOSS);
        if is_lost {
            sleep(Duration::from_millis(random_range(0..2_000))).await;
        }
        self.awake().await;
        if is_lost { Err(StoreError::Unavailable("the link is cut".to_owned())) } else { Ok(()) }
    }

    async fn call<T: Send>(
        &self,
        act: impl FnOnce(&MemoryStore, &mut Books) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.pass().await?;
        let answer = act(&self.store, &mut self.books.lock());
        self.pass().await?;
        answer
    }
}

/// The answer of the store in memory, which never waits.
fn now<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("an answer")
}

#[async_trait]
impl JobStore for Link {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn wakes(&self) -> &Wakes {
        self.store.wakes()
    }

    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError> {
        let opened = self.call(|store, books| {
            let session = now(store.open_session(lease))?;
            books.opened(session, lease);
            if !self.may_lose.swap(false, Relaxed) {
                books.fault(format!("{session:?} is opened after an outage for all"));
            }
            Ok(session)
        });
        let opened = opened.await;
        // The next session is the one that counts.
        self.may_lose.fetch_or(opened.is_err(), Relaxed);
        opened
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError> {
        self.call(|store, books| {
            let answers = now(store.submit(submission.clone()))?;
            books.submitted(&submission.jobs, &answers);
            Ok(answers)
        })
        .await
    }

    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        self.call(|store, books| {
            let claimed = now(store.claim(room))?;
            books.claimed(&claimed);
            Ok(claimed)
        })
        .await
    }

    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        self.call(|store, books| {
            let states = now(store.settle(ends.clone()))?;
            books.settled(&ends, &states);
            Ok(states)
        })
        .await
    }

    async fn beat(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.call(|store, books| {
            let cancelled = now(store.beat(session))?;
            books.beaten(session);
            Ok(cancelled)
        })
        .await
    }

    async fn release(&self, session: SessionId, held: Vec<Token>) -> Result<(), StoreError> {
        self.call(|store, books| {
            now(store.release(session, held.clone()))?;
            books.released(session, &held);
            Ok(())
        })
        .await
    }

    async fn change(&self, ids: Vec<String>, action: Action) -> Result<Vec<Change>, StoreError> {
        assert_eq!(action, Action::Cancel, "callers do nothing else");
        self.call(|store, books| {
            let changes = now(store.change(ids.clone(), action))?;
            books.cancelled(&ids, &changes);
            Ok(changes)
        })
        .await
    }

    async fn fire(&self, ticks: Vec<Tick>) -> Result<Vec<Fired>, StoreError> {
        self.call(|store, books| {
            let fired = now(store.fire(ticks.clone()))?;
            books.fired(&ticks, &fired);
            Ok(fired)
        })
        .await
    }

    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError> {
        self.call(|store, _| now(store.tick(end_leases))).await
    }

    async fn purge(&self, filter: Filter) -> Result<usize, StoreError> {
        self.store.purge(filter).await
    }

    async fn get(&self, id: &str, with_payload: bool) -> Result<Option<StoredJob>, StoreError> {
        self.store.get(id, with_payload).await
    }

    async fn list(&self, filter: Filter, page: Option<String>, limit: usize) -> Result<Page, StoreError> {
        self.store.list(filter, page, limit).await
    }

    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError> {
        // A count takes no time here, so that it would be made again each second.
        Ok(Vec::new())
    }

    async fn size(&self) -> Result<Size, StoreError> {
        self.store.size().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.store.check().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
