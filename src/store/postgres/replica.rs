//! State of one process that shares a database: whether the database is there, the size of the store, and where its
//! ready jobs begin. The process notifies the others of changes, and listens to their notifications. These only save
//! time: each process also looks every second.

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    future::{pending, poll_fn},
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_postgres::{AsyncMessage, Connection, Socket, tls::TlsStream, types::Type};

use super::{
    database_session::{LOOK_INTERVAL, Session, answered, mute},
    hosts::Hosts,
    schema,
};
use crate::store::{Size, StoreError, Wakes, request::Added, wakes::Changes};

/// Shortest time between two full scans of a class, and between two counts of all jobs.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for the first count.
const FIRST_COUNT: Duration = Duration::from_secs(2);
/// A full scan, or a count, takes at most this part of the time.
const PAUSE_FACTOR: u32 = 20;
/// Shortest time between two notifications: at most 20 per second.
const LEAST_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(250);
/// Bound of the time in which the schema is migrated.
const MIGRATION_TIME: Duration = Duration::from_secs(60);
/// The letters of all looks that need no notification.
const ALL: &str = "rcj";

pub(super) struct Replica {
    hosts: Hosts,
    /// Where notifications come from; `None` if a pooler in between keeps no sessions.
    listened: Option<Hosts>,
    /// Why the database is away; `None` while it answers.
    away: watch::Sender<Option<StoreError>>,
    /// Drives the connections.
    pub(super) runtime: Handle,
    pub(super) wakes: Arc<Wakes>,
    pub(super) sizes: Mutex<Sizes>,
    floors: Mutex<HashMap<(String, usize), Floor>>,
    /// Letters to send to other processes.
    pending: Mutex<BTreeSet<char>>,
    is_pending: Notify,
    /// Letters of other processes.
    heard: Mutex<BTreeSet<char>>,
    is_heard: Notify,
}

/// Sizes of all, and of each tenant, at the last count, with the changes of this process since then.
#[derive(Default)]
pub(super) struct Sizes {
    pub(super) all: Size,
    pub(super) tenants: HashMap<String, Size>,
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

impl Replica {
    /// The current runtime drives the connections. The database is away until [`share`](Self::share) has reached it.
    pub(super) fn new(hosts: Hosts, listened: Option<Hosts>) -> Self {
        let unknown = StoreError::Unavailable("it has not been reached".to_owned());
        Self {
            hosts,
            listened,
            away: watch::Sender::new(Some(unknown)),
            runtime: Handle::current(),
            wakes: Arc::default(),
            sizes: Mutex::default(),
            floors: Mutex::default(),
            pending: Mutex::default(),
            is_pending: Notify::new(),
            heard: Mutex::default(),
            is_heard: Notify::new(),
        }
    }

    /// A new connection, unless the database is away.
    pub(super) async fn connect(&self) -> Result<Session, StoreError> {
        let away = self.away.borrow().clone();
        match away {
            Some(error) => Err(error),
            None => self.hosts.connect().await.map_err(wait_for_it),
        }
    }

    /// Returns when the database is away. Cancel safe.
    pub(super) async fn away(&self) -> StoreError {
        let mut away = self.away.subscribe();
        let found = away.wait_for(Option::is_some).await;
        found.map_or(StoreError::Closed, |error| error.clone().unwrap_or(StoreError::Closed))
    }

    pub(super) fn resize(&self, added: &Added) {
        let mut sizes = self.sizes.lock();
        sizes.all.add(added.jobs, added.bytes);
        for (tenant, (jobs, bytes)) in &added.tenants {
            sizes.tenants.entry(tenant.clone()).or_default().add(*jobs, *bytes);
        }
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
        let floor = floors.entry((kind.to_owned(), rank)).or_insert(Floor {
            place: i64::MIN,
            next: i64::MIN,
            reached: i64::MIN,
            full_scan_at: now,
        });
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

    /// Notifies other processes soon: `r` for ready, `b` for given back, `c` for cancellations, `j` for changed jobs.
    pub(super) fn publish(&self, changes: &Changes) {
        if changes.returned {
            self.forget_floors();
        }
        let Changes { ready, place: _, returned, cancels, opens: _, changed, set_aside: _ } = changes;
        let letters = [(*ready, 'r'), (*returned, 'b'), (*cancels, 'c'), (!changed.is_empty(), 'j')];
        let mut pending = self.pending.lock();
        pending.extend(letters.into_iter().filter_map(|(is_set, letter)| is_set.then_some(letter)));
        if !pending.is_empty() {
            self.is_pending.notify_one();
        }
    }

    /// Connects, and brings the schema up to date. What waits for the database may go on.
    pub(super) async fn reach(&self) -> Result<Session, StoreError> {
        let reached = timeout(MIGRATION_TIME, schema::migrate(&self.hosts)).await;
        let session = reached.map_err(|_| StoreError::Unavailable("it takes too long".to_owned()))??;
        self.away.send_replace(None);
        Ok(session)
    }

    /// Follows the database from a first connection on, or looks for it. Exchanges notifications, and counts all jobs
    /// periodically. Runs until it is dropped.
    pub(super) async fn share(&self, first: Option<Session>) {
        tokio::join!(self.stay(first), self.listen(), self.count_again());
    }

    /// Follows the database, or looks for it. An answer that does not come ends all operations.
    async fn stay(&self, mut session: Option<Session>) {
        loop {
            let reached = if let Some(session) = session.take() { Ok(session) } else { self.reach().await };
            let error = match reached {
                Ok(session) => match tokio::try_join!(self.send(&session), self.look(&session)) {
                    Err(error) if error == mute(self.hosts.patience) || error == schema::no_writes() => Some(error),
                    // A lost connection says nothing of the others. It is made again first.
                    Err(_) => None,
                },
                Err(error) => Some(wait_for_it(error)),
            };
            if error.is_some() {
                self.hosts.leave();
                self.away.send_replace(error);
            }
            sleep(CONNECT_INTERVAL).await;
        }
    }

    /// Sends the pending letters.
    async fn send(&self, session: &Session) -> Result<Infallible, StoreError> {
        loop {
            self.is_pending.notified().await;
            let text: String = mem::take(&mut *self.pending.lock()).into_iter().collect();
            // If a notification is lost, the looks of the others find the change.
            self.answered(session.query("select pg_notify('waterwheel', $1)", &[(&text, Type::TEXT)])).await?;
            sleep(LEAST_INTERVAL).await;
        }
    }

    /// Looks for changes when others tell of some, and every second, also whether the database still takes writes.
    async fn look(&self, session: &Session) -> Result<Infallible, StoreError> {
        let mut look_at = Instant::now();
        loop {
            tokio::select! {
                () = sleep_until(look_at) => {
                    schema::takes_writes(&self.hosts, session).await?;
                    self.check(session, ALL).await?;
                    look_at = Instant::now() + LOOK_INTERVAL;
                }
                () = self.is_heard.notified() => {
                    let letters: String = mem::take(&mut *self.heard.lock()).into_iter().collect();
                    self.check(session, &letters).await?;
                }
            }
        }
    }

    /// Listens for notifications. After an outage, the database may be another host.
    async fn listen(&self) {
        let Some(hosts) = &self.listened else { return pending().await };
        loop {
            if let Ok((client, connection)) = hosts.open().await {
                tokio::select! {
                    _ = async { tokio::join!(client.batch_execute("listen waterwheel"), self.hear(connection)) } => {}
                    _ = self.away() => {}
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn hear<T: TlsStream + Unpin>(&self, mut connection: Connection<Socket, T>) {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message {
                self.heard.lock().extend(note.payload().chars().filter(|letter| "rbcj".contains(*letter)));
                self.is_heard.notify_one();
            }
        }
    }

    /// Wakes the waiters of each letter. Callers that wait for a job are woken only if it is not as it was found
    /// before.
    async fn check(&self, session: &Session, letters: &str) -> Result<(), StoreError> {
        let has = |letter| letters.contains(letter);
        if has('b') {
            self.forget_floors();
        }
        let (ready, returned, cancels) = (has('r'), has('b'), has('c'));
        self.wakes.announce(&Changes { ready, returned, cancels, ..Changes::default() });
        let awaited = if has('j') { self.wakes.awaited() } else { Vec::new() };
        if awaited.is_empty() {
            return Ok(());
        }
        let sql = "select awaited.id, concat_ws(' ', state, starts, cancel_requested) \
                   from unnest($1) as awaited (id) left join jobs on jobs.id = awaited.id";
        for row in self.answered(session.look(sql, &[(&awaited, Type::TEXT_ARRAY)])).await? {
            self.wakes.found(row.try_get(0)?, row.try_get(1)?);
        }
        Ok(())
    }

    async fn answered<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        answered(self.hosts.patience, answer).await
    }

    /// Counts all jobs periodically, in a small part of the time. Between counts, only changes of this process are
    /// added.
    async fn count_again(&self) {
        let mut session = None;
        loop {
            let start = Instant::now();
            // A failed count is repeated.
            let counted = tokio::select! {
                counted = self.count(&mut session) => counted,
                error = self.away() => Err(error),
            };
            if counted.is_err() {
                session = None;
                sleep(LOOK_INTERVAL).await;
            } else {
                sleep((LEAST_PAUSE * 10).max(start.elapsed() * PAUSE_FACTOR)).await;
            }
        }
    }

    /// Counts all jobs before the start, unless that takes long. Until they are counted, the bounds allow more.
    pub(super) async fn count_first(&self) {
        // A failed count is repeated.
        let _ = timeout(FIRST_COUNT, self.count(&mut None)).await;
    }

    async fn count(&self, session: &mut Option<Session>) -> Result<(), StoreError> {
        let sql = "select tenant, count(*) filter (where ended_at is null), sum(payload_bytes + output_bytes)::bigint \
                   from jobs group by tenant";
        let session = if let Some(session) = session { session } else { session.insert(self.connect().await?) };
        let mut sizes = Sizes::default();
        for row in session.look(sql, &[]).await? {
            let (jobs, bytes) = (row.try_get(1)?, row.try_get(2)?);
            sizes.all.add(jobs, bytes);
            sizes.tenants.entry(row.try_get(0)?).or_default().add(jobs, bytes);
        }
        *self.sizes.lock() = sizes;
        Ok(())
    }
}

/// A running server waits for whatever its database refuses it: its operator may mend that meanwhile.
fn wait_for_it(error: StoreError) -> StoreError {
    if error.is_outage() { error } else { StoreError::Unavailable(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::store::PostgresOptions;

    #[tokio::test(start_paused = true)]
    async fn a_full_scan_takes_at_most_a_twentieth_of_the_time() {
        let url = "postgres://u@localhost/jobs".to_owned().try_into().expect("a URL");
        let options = PostgresOptions::new(url);
        let replica = Replica::new(Hosts::new(&options.url, &options).expect("hosts"), None);
        for (took, pause) in [(Duration::ZERO, 1), (Duration::from_secs(1), 20), (Duration::from_secs(3), 60)] {
            let note = |first: i64| replica.note_scan("k", 0, Some((first, 9)), Some(took));
            note(5);
            advance(Duration::from_secs(pause)).await;
            assert_eq!(replica.floor("k", 0), i64::MIN, "a full scan is due {took:?}");
            note(7);
            assert_eq!(replica.floor("k", 0), 5, "what the scan before the last one found first");
            advance(Duration::from_secs(pause) - Duration::from_millis(1)).await;
            assert_eq!(replica.floor("k", 0), 5, "{took:?}");
            replica.forget_floors();
        }
    }
}
