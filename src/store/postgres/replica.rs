//! State of one process that shares a database: the size of the store, and where its ready jobs begin. The process
//! notifies the others of changes, and listens to their notifications. These only save time: each process also checks
//! every second.

use std::{
    collections::{BTreeSet, HashMap},
    future::poll_fn,
    mem,
    sync::Arc,
    time::Duration,
};

use deadpool_postgres::Pool;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_postgres::{AsyncMessage, Config, Connection, Socket, tls::TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::{Size, StoreError, Wakes, wakes::Changes};

/// Shortest time between two full scans of a class, and between two counts of all jobs.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// A full scan, or a count, takes at most this part of the time.
const PAUSE_FACTOR: u32 = 20;
/// Shortest time between two notifications: at most 20 per second.
const LEAST_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two checks without a notification, and between two attempts to connect.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The letters of all checks that need no notification.
const ALL: &str = "rce";

pub(super) struct Replica {
    pub(super) pool: Pool,
    /// Drives the connections.
    pub(super) runtime: Handle,
    pub(super) wakes: Arc<Wakes>,
    size: Mutex<Size>,
    floors: Mutex<HashMap<(String, usize), Floor>>,
    /// Letters to send to other processes.
    pending: Mutex<BTreeSet<char>>,
    is_pending: Notify,
}

/// Lowest place from which ready jobs of a class are scanned.
///
/// Claimed jobs leave dead entries at the start of the index. While any transaction has an old snapshot, no vacuum
/// removes them, and each claim would scan all of them. So claims start at the first job that the full scan before the
/// last one found. Jobs of slow transactions and other replicas may appear below that place; they wait for the next
/// full scan.
struct Floor {
    place: i64,
    next: i64,
    /// Highest place that was found.
    reached: i64,
    full_scan_at: Instant,
}

impl Floor {
    fn new(now: Instant) -> Self {
        Self { place: i64::MIN, next: i64::MIN, reached: i64::MIN, full_scan_at: now }
    }
}

impl Replica {
    /// The current runtime drives the connections.
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            runtime: Handle::current(),
            wakes: Arc::default(),
            size: Mutex::default(),
            floors: Mutex::default(),
            pending: Mutex::default(),
            is_pending: Notify::new(),
        }
    }

    pub(super) fn size(&self) -> Size {
        *self.size.lock()
    }

    pub(super) fn resize(&self, jobs: i64, bytes: i64) {
        self.size.lock().add(jobs, bytes);
    }

    /// The place to scan from: the lowest possible one if a full scan is due.
    pub(super) fn floor(&self, kind: &str, rank: usize) -> i64 {
        let floors = self.floors.lock();
        let floor = floors.get(&(kind.to_owned(), rank)).filter(|floor| Instant::now() < floor.full_scan_at);
        floor.map_or(i64::MIN, |floor| floor.place)
    }

    /// Records a scan: the first and the last place that it found, and its duration if it was a full one.
    pub(super) fn note_scan(&self, kind: &str, rank: usize, found: Option<(i64, i64)>, took: Option<Duration>) {
        let now = Instant::now();
        let mut floors = self.floors.lock();
        let floor = floors.entry((kind.to_owned(), rank)).or_insert_with(|| Floor::new(now));
        let (first, last) = found.unwrap_or((floor.reached, floor.reached));
        floor.reached = floor.reached.max(last);
        if let Some(took) = took.filter(|_| floor.full_scan_at <= now) {
            floor.place = floor.next.min(first);
            floor.next = first;
            floor.full_scan_at = now + LEAST_PAUSE.max(took * PAUSE_FACTOR);
        }
    }

    /// Makes the next scan a full one, because jobs returned to their old places.
    fn forget_floors(&self) {
        self.floors.lock().clear();
    }

    /// Notifies other processes soon: `r` for ready, `b` for given back, `c` for cancellations, `e` for ended jobs.
    pub(super) fn publish(&self, changes: &Changes) {
        if changes.returned {
            self.forget_floors();
        }
        let Changes { ready, returned, cancels, ended } = changes;
        let letters = [(*ready, 'r'), (*returned, 'b'), (*cancels, 'c'), (!ended.is_empty(), 'e')];
        let mut pending = self.pending.lock();
        pending.extend(letters.into_iter().filter_map(|(is_set, letter)| is_set.then_some(letter)));
        if !pending.is_empty() {
            self.is_pending.notify_one();
        }
    }

    /// Exchanges notifications, and counts all jobs periodically. Runs until it is dropped.
    pub(super) async fn share(&self, config: Config, tls: MakeRustlsConnect) {
        tokio::join!(self.send(), self.receive(config, tls), self.count_again());
    }

    /// Sends the pending letters.
    async fn send(&self) {
        loop {
            self.is_pending.notified().await;
            let text: String = mem::take(&mut *self.pending.lock()).into_iter().collect();
            // If a notification is lost, the periodic checks find the change.
            if let Ok(client) = self.pool.get().await {
                let _ = client.execute("select pg_notify('waterwheel', $1)", &[&text]).await;
            }
            sleep(LEAST_INTERVAL).await;
        }
    }

    /// Listens for notifications, and checks every second.
    async fn receive(&self, config: Config, tls: MakeRustlsConnect) {
        loop {
            if let Ok((client, connection)) = config.connect(tls.clone()).await {
                let listen = client.batch_execute("listen waterwheel");
                let _ = tokio::join!(listen, self.hear(connection));
            }
            self.check(ALL).await;
            sleep(CHECK_INTERVAL).await;
        }
    }

    async fn hear<T: TlsStream + Unpin>(&self, mut connection: Connection<Socket, T>) {
        loop {
            let message =
                tokio::time::timeout(CHECK_INTERVAL, poll_fn(|context| connection.poll_message(context))).await;
            match message {
                Err(_) => self.check(ALL).await,
                Ok(Some(Ok(AsyncMessage::Notification(note)))) => self.check(note.payload()).await,
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(_)) | None) => return,
            }
        }
    }

    /// Wakes the waiters of each letter. Callers that wait for a job are woken only if it has ended.
    async fn check(&self, letters: &str) {
        let has = |letter| letters.contains(letter);
        if has('b') {
            self.forget_floors();
        }
        let awaited = if has('e') { self.wakes.awaited() } else { Vec::new() };
        let ended = if awaited.is_empty() { Vec::new() } else { self.ended(&awaited).await.unwrap_or_default() };
        self.wakes.announce(&Changes { ready: has('r'), returned: has('b'), cancels: has('c'), ended });
    }

    /// The awaited jobs that have ended or are gone.
    async fn ended(&self, awaited: &[String]) -> Result<Vec<String>, StoreError> {
        let sql = "select id from unnest($1::text[]) as awaited (id) \
                   where not exists (select 1 from jobs where jobs.id = awaited.id and state < 4)";
        let rows = self.pool.get().await?.query(sql, &[&awaited]).await?;
        Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }

    /// Counts all jobs periodically, in a small part of the time. Between counts, only changes of this process are
    /// added.
    async fn count_again(&self) {
        loop {
            let start = Instant::now();
            // A failed count is repeated.
            let _ = self.count().await;
            sleep((LEAST_PAUSE * 10).max(start.elapsed() * PAUSE_FACTOR)).await;
        }
    }

    pub(super) async fn count(&self) -> Result<(), StoreError> {
        let sql = "select count(*) filter (where state < 4), coalesce(sum(payload_bytes + output_bytes), 0)::bigint \
                   from jobs";
        let row = self.pool.get().await?.query_one(sql, &[]).await?;
        let number = |column: usize| Ok::<_, StoreError>(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0));
        *self.size.lock() = Size { jobs: number(0)?, bytes: number(1)? };
        Ok(())
    }
}
