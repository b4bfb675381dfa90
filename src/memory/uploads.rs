//! Flow control for incomplete messages.
//!
//! There are two limits L of the bytes that incomplete messages hold: one for all together, and a smaller one for each
//! connection. A message may proceed, so that its sender may send more, in each of these cases:
//!
//! | case | condition |
//! |---|---|
//! | its connection holds little | held by the connection < min(L of the connection / 4, L of all / 2 − held by all) |
//! | its turn has come | for both limits: missing bytes of it and of all older ones ≤ min(L / 4, ¾ L − held) |
//! | it is the oldest of all | always, so that messages cannot deadlock |
//!
//! By the first case, each connection may add less the more memory is used, so that new connections find some
//! (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). The older ones of
//! the second case are those of all connections for the one limit, and those of the connection for the other.
//!
//! The other messages wait: flow control holds their senders back. The last quarter of a limit is for what these had
//! sent before. If a limit is reached nevertheless, the oldest message under it is evicted. A message that may proceed,
//! but makes no progress while others wait, is evicted too.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, task::AtomicWaker};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};
use tracing::debug;

use super::{ConnectionMemory, MemoryLimits};

/// Messages under one limit whose turn can come: the oldest ones.
const MAX_CHECKED: usize = 64;
/// Time within which a message must make progress while others wait.
const MAX_STALL: Duration = Duration::from_secs(2);
/// Time between two looks at a message that may proceed.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes that count as progress.
const PROGRESS: usize = 64 << 10;

/// Whether an incomplete message may proceed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UploadState {
    /// Its sender may send more.
    #[default]
    Go,
    /// Its sender must be held back.
    Wait,
    /// It was evicted in favour of others.
    Evicted,
}

/// The incomplete messages of a listener.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    bytes: usize,
    /// The next sequence number. A message gets its number when it needs a second chunk, so older ones have smaller
    /// numbers.
    next_sequence: u64,
    /// By sequence number.
    by_age: BTreeMap<u64, Incomplete>,
    /// The sequence numbers of the messages of each connection.
    by_connection: HashMap<u64, BTreeSet<u64>>,
    /// Number of messages in [`UploadState::Wait`].
    waiting: usize,
}

#[derive(Debug)]
struct Incomplete {
    /// Bytes that have arrived.
    bytes: usize,
    /// Bytes of the whole message.
    length: usize,
    connection: Arc<ConnectionMemory>,
    signal: Arc<Signal>,
}

/// The state of a message, for the task that reads it.
#[derive(Debug, Default)]
struct Signal {
    state: Mutex<UploadState>,
    waker: AtomicWaker,
}

/// The account of one incomplete message. Dropping it returns the memory.
#[derive(Debug)]
pub struct UploadAccount {
    connection: Arc<ConnectionMemory>,
    sequence: u64,
    signal: Arc<Signal>,
    bytes: usize,
    /// Its bytes when its progress was last judged, and the number of looks since then.
    before: usize,
    looks: u32,
    alarm: Option<std::pin::Pin<Box<Sleep>>>,
}

impl Signal {
    fn state(&self) -> UploadState {
        *self.state.lock()
    }
}

impl ConnectionMemory {
    /// Starts to count a message of `length` bytes.
    #[must_use]
    pub fn upload(self: &Arc<Self>, length: usize) -> UploadAccount {
        let signal = Arc::<Signal>::default();
        let mut uploads = self.memory.0.uploads.lock();
        let sequence = uploads.next_sequence;
        uploads.next_sequence += 1;
        let connection = Arc::clone(self);
        uploads.by_age.insert(sequence, Incomplete { bytes: 0, length, connection, signal: Arc::clone(&signal) });
        uploads.by_connection.entry(self.number).or_default().insert(sequence);
        UploadAccount { connection: Arc::clone(self), sequence, signal, bytes: 0, before: 0, looks: 0, alarm: None }
    }
}

impl UploadAccount {
    /// Records that `bytes` of the message have arrived in all. Returns whether its sender may send more.
    pub fn grow_to(&mut self, bytes: usize) -> UploadState {
        self.bytes = bytes;
        self.connection.memory.0.uploads.lock().grow(self.sequence, bytes)
    }

    /// Ready when a waiting message may proceed, or is evicted. For a message that may proceed it is ready ten times
    /// per second, and evicts a message without progress if others wait.
    pub fn poll_state(&mut self, cx: &mut Context<'_>) -> Poll<UploadState> {
        self.signal.waker.register(cx.waker());
        match self.signal.state() {
            UploadState::Wait => Poll::Pending,
            UploadState::Evicted => Poll::Ready(UploadState::Evicted),
            UploadState::Go => {
                let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(CHECK_INTERVAL)));
                while alarm.poll_unpin(cx).is_ready() {
                    self.looks += 1;
                    if CHECK_INTERVAL * self.looks >= MAX_STALL {
                        if self.bytes - self.before < PROGRESS {
                            self.connection.memory.0.uploads.lock().give_way(self.sequence);
                        }
                        (self.before, self.looks) = (self.bytes, 0);
                    }
                    alarm.as_mut().reset(Instant::now() + CHECK_INTERVAL);
                }
                Poll::Ready(self.signal.state())
            }
        }
    }
}

impl Drop for UploadAccount {
    fn drop(&mut self) {
        let mut uploads = self.connection.memory.0.uploads.lock();
        uploads.remove(self.sequence);
        uploads.advance(self.connection.number);
    }
}

impl Uploads {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a message that has grown to `bytes`. Evicts the oldest messages of a limit that is exceeded.
    fn grow(&mut self, sequence: u64, bytes: usize) -> UploadState {
        let Some(message) = self.by_age.get_mut(&sequence) else { return UploadState::Evicted };
        let grown = bytes.saturating_sub(message.bytes);
        message.bytes += grown;
        self.bytes += grown;
        let connection = Arc::clone(&message.connection);
        connection.uploads.fetch_add(grown, Relaxed);
        let MemoryLimits { total, per_connection, .. } = connection.memory.limits();
        while connection.uploads.load(Relaxed) > per_connection
            && let Some(oldest) = self.by_connection.get(&connection.number).and_then(BTreeSet::first).copied()
        {
            self.evict(oldest);
        }
        while self.bytes > total
            && let Some(oldest) = self.by_age.first_key_value().map(|(sequence, _)| *sequence)
        {
            self.evict(oldest);
        }
        if !self.by_age.contains_key(&sequence) {
            return UploadState::Evicted;
        }
        let state = if self.may_proceed(sequence) { UploadState::Go } else { UploadState::Wait };
        self.set_state(sequence, state);
        if self.waiting > 0 {
            // The message now misses fewer bytes, so the next one may also fit.
            self.advance(connection.number);
        }
        state
    }

    /// Whether a message may proceed: the cases above.
    fn may_proceed(&self, sequence: u64) -> bool {
        let Some(message) = self.by_age.get(&sequence) else { return false };
        let MemoryLimits { total, per_connection, .. } = message.connection.memory.limits();
        let own = message.connection.uploads.load(Relaxed);
        if own < (per_connection / 4).min((total / 2).saturating_sub(self.bytes)) {
            return true;
        }
        let of_connection = self.by_connection.get(&message.connection.number).into_iter().flatten().copied();
        let free = |bound: usize, held: usize| (bound / 4).min((bound - bound / 4).saturating_sub(held));
        self.fits(sequence, self.by_age.keys().copied(), free(total, self.bytes))
            && self.fits(sequence, of_connection, free(per_connection, own))
    }

    /// Whether the missing bytes of a message fit in `free`, together with those of the older messages, which come
    /// first in `sequences`. The oldest message always fits.
    fn fits(&self, sequence: u64, sequences: impl Iterator<Item = u64>, free: usize) -> bool {
        let mut missing = 0;
        for (index, other) in sequences.take(MAX_CHECKED).enumerate() {
            missing += self.by_age.get(&other).map_or(0, |message| message.length.saturating_sub(message.bytes));
            if other == sequence {
                return index == 0 || missing <= free;
            }
        }
        false
    }

    /// Lets waiting messages proceed, as far as the limits allow, after a message of `connection` has changed.
    fn advance(&mut self, connection: u64) {
        if self.waiting == 0 {
            return;
        }
        let of_connection = self.by_connection.get(&connection).into_iter().flatten().copied();
        let sequences: Vec<_> =
            of_connection.take(MAX_CHECKED).chain(self.by_age.keys().copied().take(MAX_CHECKED)).collect();
        for sequence in sequences {
            let waits = self.by_age.get(&sequence).is_some_and(|message| message.signal.state() == UploadState::Wait);
            if waits && self.may_proceed(sequence) {
                self.set_state(sequence, UploadState::Go);
            }
        }
    }

    fn set_state(&mut self, sequence: u64, state: UploadState) {
        let Some(message) = self.by_age.get(&sequence) else { return };
        let before = std::mem::replace(&mut *message.signal.state.lock(), state);
        if before == state {
            return;
        }
        message.signal.waker.wake();
        if state == UploadState::Wait {
            self.waiting += 1;
        } else if before == UploadState::Wait {
            self.waiting -= 1;
        }
    }

    /// Evicts a message that makes no progress while others wait.
    fn give_way(&mut self, sequence: u64) {
        if self.waiting > 0 {
            let connection = self.by_age.get(&sequence).map(|message| message.connection.number);
            self.evict(sequence);
            connection.inspect(|connection| self.advance(*connection));
        }
    }

    /// Gives the bytes of a message back, and has its call refused.
    fn evict(&mut self, sequence: u64) {
        self.set_state(sequence, UploadState::Evicted);
        if let Some(Incomplete { bytes, connection, .. }) = self.remove(sequence) {
            debug!(connection = connection.number, size_bytes = bytes, "an incomplete message was evicted for others");
        }
    }

    fn remove(&mut self, sequence: u64) -> Option<Incomplete> {
        let message = self.by_age.remove(&sequence)?;
        let Incomplete { bytes, connection, signal, length: _ } = &message;
        self.waiting -= usize::from(signal.state() == UploadState::Wait);
        self.bytes -= bytes;
        connection.uploads.fetch_sub(*bytes, Relaxed);
        if let Some(sequences) = self.by_connection.get_mut(&connection.number) {
            sequences.remove(&sequence);
            if sequences.is_empty() {
                self.by_connection.remove(&connection.number);
            }
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::super::Memory;
    use super::*;

    fn memory(total: usize, per_connection: usize) -> Memory {
        Memory::new(MemoryLimits { total, per_connection, ..MemoryLimits::default() })
    }

    fn state(upload: &mut UploadAccount) -> Option<UploadState> {
        match upload.poll_state(&mut Context::from_waker(noop_waker_ref())) {
            Poll::Ready(state) => Some(state),
            Poll::Pending => None,
        }
    }

    /// Has a message make no progress for as long as it may.
    async fn stand(upload: &mut UploadAccount) {
        for _ in 0..=MAX_STALL.as_millis() / CHECK_INTERVAL.as_millis() {
            tokio::time::advance(CHECK_INTERVAL).await;
            state(upload);
        }
    }

    fn held(memory: &Memory) -> (usize, usize, usize, usize) {
        let uploads = memory.0.uploads.lock();
        (uploads.bytes, uploads.by_age.len(), uploads.by_connection.len(), uploads.waiting)
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_a_quarter_messages_go_on_in_the_order_of_their_age() {
        let memory = memory(4000, 400);
        let connection = memory.of(1);
        let mut uploads: Vec<_> = (0..4).map(|_| connection.upload(90)).collect();
        assert_eq!([0, 1, 2].map(|at: usize| uploads[at].grow_to(30)), [UploadState::Go; 3]);
        assert_eq!(uploads[3].grow_to(30), UploadState::Wait, "three miss 180 of the 100 that a quarter leaves");
        assert_eq!([uploads[1].grow_to(31), uploads[0].grow_to(31)], [UploadState::Wait, UploadState::Go]);
        assert_eq!((state(&mut uploads[1]), held(&memory)), (None, (122, 4, 1, 2)));
        // The oldest becomes whole.
        drop(uploads.remove(0));
        assert_eq!(state(&mut uploads[0]), Some(UploadState::Go), "it is the oldest now");
        assert_eq!(state(&mut uploads[2]), Some(UploadState::Go), "there is capacity again");
        drop(uploads);
        assert_eq!(held(&memory), (0, 0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stands_still_gives_way_only_while_others_wait() {
        let memory = memory(4 << 20, 1 << 20);
        let connection = memory.of(1);
        let (mut still, mut next) = (connection.upload(900 << 10), connection.upload(900 << 10));
        assert_eq!(still.grow_to(300 << 10), UploadState::Go);
        assert_eq!(state(&mut still), Some(UploadState::Go));
        stand(&mut still).await;
        assert_eq!(state(&mut still), Some(UploadState::Go), "no message waits");
        assert_eq!(next.grow_to(100), UploadState::Wait);
        stand(&mut still).await;
        assert_eq!(state(&mut still), Some(UploadState::Evicted));
        assert_eq!(state(&mut next), Some(UploadState::Go));
        assert_eq!(still.grow_to(400 << 10), UploadState::Evicted);
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_is_held_the_less_each_connection_may_add() {
        let memory = memory(1000, 1000);
        let mut uploads: Vec<_> = (0..5).map(|number| memory.of(number).upload(500)).collect();
        assert_eq!(uploads[0].grow_to(240), UploadState::Go, "the oldest");
        assert_eq!(uploads[1].grow_to(100), UploadState::Go, "160 are free");
        assert_eq!(uploads[2].grow_to(50), UploadState::Go, "110 are free");
        assert_eq!(uploads[3].grow_to(60), UploadState::Wait, "50 are free");
        assert_eq!(uploads[4].grow_to(20), UploadState::Go, "30 are free");
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_miss_little_wait_where_three_quarters_are_held() {
        let memory = memory(4000, 400);
        let connection = memory.of(1);
        let mut uploads: Vec<_> = (0..14).map(|_| connection.upload(30)).collect();
        let turns: Vec<_> = uploads.iter_mut().map(|upload| upload.grow_to(25)).collect();
        assert_eq!(turns[..10], [UploadState::Go; 10], "ten miss 50, and 50 of 300 are free");
        assert_eq!(turns[10..], [UploadState::Wait; 4], "all of them miss 70, which would fit into a quarter");
        assert_eq!(
            [uploads[0].grow_to(26), uploads[1].grow_to(26)],
            [UploadState::Go, UploadState::Wait],
            "only the oldest goes on"
        );
        drop(uploads.remove(0));
        assert_eq!(state(&mut uploads[0]), Some(UploadState::Go));
    }

    #[test]
    fn the_oldest_gives_way_at_the_bound() {
        let memory = memory(100, 60);
        let connections = [memory.of(1), memory.of(2)];
        let mut first = connections[0].upload(90);
        let mut second = connections[0].upload(90);
        first.grow_to(40);
        second.grow_to(30);
        assert_eq!(first.grow_to(41), UploadState::Evicted, "the bound of its connection");
        let mut other = connections[1].upload(90);
        assert_eq!(other.grow_to(60), UploadState::Wait);
        second.grow_to(45);
        assert_eq!((second.grow_to(46), held(&memory).0), (UploadState::Evicted, 60), "the bound of all");
    }
}
