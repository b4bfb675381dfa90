//! Limits the memory that callers use outside of the pools: incomplete messages and unread answers. Each is counted per
//! connection and in total, and limited in both.
//!
//! Near its limits, slow callers are slowed down first. Flow control holds uploads back (see [`uploads`]), and a
//! connection with unread answers gets no further message ([`ConnectionMemory::poll_room`]). Only messages and answers
//! that would still exceed a limit are refused.

mod uploads;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use uploads::Uploads;
pub use uploads::{UploadAccount, UploadState};

/// Smallest chunk of an answer that is counted, in bytes. A smaller one takes no more memory than the call itself.
const COUNTED: usize = 4 << 10;

/// Limits of the memory that callers use. They apply to incomplete messages and to unread answers separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct MemoryLimits {
    /// Maximum bytes over all connections.
    pub total: usize,
    /// Maximum bytes on one connection.
    pub per_connection: usize,
    /// Time after which an unread answer is dropped.
    pub stall: Duration,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { total: 256 << 20, per_connection: 64 << 20, stall: Duration::from_secs(10) }
    }
}

impl MemoryLimits {
    /// The same limits, plus `envelope` bytes for the fields of a message besides its payload.
    #[must_use]
    pub fn with(self, envelope: usize) -> Self {
        let Self { total, per_connection, stall } = self;
        Self { total: total.saturating_add(envelope), per_connection: per_connection.saturating_add(envelope), stall }
    }
}

/// The account of a listener. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Account>);

#[derive(Debug, Default)]
struct Account {
    limits: MemoryLimits,
    connections: AtomicUsize,
    uploads: Mutex<Uploads>,
    answers: AtomicUsize,
}

/// The account of one connection.
#[derive(Debug)]
pub struct ConnectionMemory {
    memory: Memory,
    number: u64,
    /// Bytes of its incomplete messages.
    uploads: AtomicUsize,
    /// Bytes that were received, but not yet returned to the windows of their streams.
    held: AtomicUsize,
    answers: AtomicUsize,
    /// The task of the connection.
    transport: AtomicWaker,
    /// Calls whose next message waits until answers are read.
    waiting: Mutex<Vec<Waker>>,
}

/// A body whose sender can be held back.
pub trait HeldBack {
    /// Stops window updates: the peer may send only the returned bytes.
    fn hold_back(&mut self) {}

    /// Lets the peer send this number of further bytes.
    fn give_back(&mut self, bytes: usize) {
        let _ = bytes;
    }
}

/// Memory of an answer, returned on drop.
#[derive(Debug)]
pub struct Charge {
    connection: Arc<ConnectionMemory>,
    bytes: usize,
}

/// An answer would exceed a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswersFull;

impl Memory {
    /// An empty account.
    pub fn new(limits: MemoryLimits) -> Self {
        Self(Arc::new(Account { limits, ..Account::default() }))
    }

    /// The limits.
    pub fn limits(&self) -> MemoryLimits {
        self.0.limits
    }

    /// The account of one connection.
    #[must_use]
    pub fn of(&self, number: u64) -> Arc<ConnectionMemory> {
        self.0.connections.fetch_add(1, Relaxed);
        Arc::new(ConnectionMemory {
            memory: self.clone(),
            number,
            uploads: AtomicUsize::default(),
            held: AtomicUsize::default(),
            answers: AtomicUsize::default(),
            transport: AtomicWaker::default(),
            waiting: Mutex::default(),
        })
    }

    /// Bytes of incomplete messages.
    pub fn uploads(&self) -> usize {
        self.0.uploads.lock().bytes()
    }

    /// Bytes of unread answers.
    pub fn answers(&self) -> usize {
        self.0.answers.load(Relaxed)
    }
}

impl ConnectionMemory {
    /// Reserves memory for an answer of `bytes`. Returns `None` for a small one, which is not counted.
    ///
    /// # Errors
    /// If the answer would exceed a limit.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Option<Charge>, AnswersFull> {
        if bytes < COUNTED {
            return Ok(None);
        }
        let MemoryLimits { total, per_connection, .. } = self.memory.limits();
        let own = self.answers.fetch_add(bytes, Relaxed) + bytes;
        let all = self.memory.0.answers.fetch_add(bytes, Relaxed) + bytes;
        let charge = Charge { connection: Arc::clone(self), bytes };
        if own > per_connection || all > total { Err(AnswersFull) } else { Ok(Some(charge)) }
    }

    /// Counts a chunk of an answer until all of it is dropped.
    ///
    /// # Errors
    /// If the chunk would exceed a limit.
    pub fn charge(self: &Arc<Self>, piece: Bytes) -> Result<Bytes, AnswersFull> {
        Ok(match self.reserve(piece.len())? {
            Some(charge) => Bytes::from_owner(Charged { piece, _charge: charge }),
            None => piece,
        })
    }

    /// Ready when another message may be delivered. A connection with unread answers may use a quarter of its own
    /// limit, and at most the part that half of the total limit leaves free. So others find memory, however many
    /// connections do not read.
    pub fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        self.waiting.lock().push(cx.waker().clone());
        // The last answer may have been read before the waker was registered.
        if self.has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn has_room(&self) -> bool {
        let own = self.answers.load(Relaxed);
        if own == 0 {
            return true;
        }
        let MemoryLimits { total, per_connection, .. } = self.memory.limits();
        own < (per_connection / 4).min((total / 2).saturating_sub(self.memory.answers()))
    }

    /// Counts received bytes of a message that waits. The window of their stream is not renewed.
    pub fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
        self.transport.wake();
    }

    /// Counts bytes that were returned to the window of their stream.
    pub fn let_go(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        self.transport.wake();
    }

    /// The current limits of the transport. `waker` is woken when they change.
    pub fn grant(&self, waker: &Waker) -> Grant {
        self.transport.register(waker);
        let held = self.held.load(Relaxed);
        let is_crowded = held > 0 || self.uploads.load(Relaxed) > self.memory.limits().per_connection / 8;
        let share = self.memory.limits().total / 4 / self.memory.0.connections.load(Relaxed).max(1);
        Grant { held, is_crowded, share }
    }
}

/// The figures that determine a connection's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Bytes by which the connection's window is widened, to replace those of waiting messages.
    pub held: usize,
    /// Whether messages are held back, or incomplete ones take more than an eighth of the memory of the connection.
    /// Then the windows of its streams are small.
    pub is_crowded: bool,
    /// This connection's share of the bytes that may be received but unread.
    pub share: usize,
}

impl Drop for ConnectionMemory {
    fn drop(&mut self) {
        self.memory.0.connections.fetch_sub(1, Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.connection.memory.0.answers.fetch_sub(self.bytes, Relaxed);
        self.connection.answers.fetch_sub(self.bytes, Relaxed);
        let waiting = std::mem::take(&mut *self.connection.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A chunk of an answer, with its memory.
struct Charged {
    piece: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn memory() -> Memory {
        Memory::new(MemoryLimits { total: 100 << 10, per_connection: 40 << 10, ..MemoryLimits::default() })
    }

    fn has_room(connection: &ConnectionMemory) -> bool {
        connection.poll_room(&mut Context::from_waker(noop_waker_ref())).is_ready()
    }

    #[test]
    fn answers_are_counted_while_a_part_of_them_is_kept() {
        let memory = memory();
        let connection = memory.of(1);
        let mut piece = connection.charge(vec![1; 8 << 10].into()).expect("capacity");
        let part = piece.split_to(10);
        drop(piece);
        assert_eq!(memory.answers(), 8 << 10);
        assert!(has_room(&connection));
        drop(part);
        assert_eq!(memory.answers(), 0);
        assert!(connection.reserve(COUNTED - 1).expect("small").is_none());
    }

    #[test]
    fn each_bound_of_answers_holds() {
        let memory = memory();
        let connections = [1, 2, 3].map(|number| memory.of(number));
        let own = connections[0].reserve(40 << 10).expect("capacity");
        assert_eq!(connections[0].reserve(COUNTED).map(drop), Err(AnswersFull), "its own bound");
        let other = connections[1].reserve(40 << 10).expect("capacity");
        assert_eq!(connections[2].reserve(30 << 10).map(drop), Err(AnswersFull), "the bound of all");
        assert!(!has_room(&connections[0]) && has_room(&connections[2]), "those that read are not held back");
        drop((own, other));
        assert_eq!(memory.answers(), 0);
        assert!(has_room(&connections[0]));
    }
}
