//! What keeps threads from waiting for each other: the shard of each thread, and values that are read without a lock.
//!
//! A shard is one runtime thread with its part of the workers and counters.

use std::{
    cell::Cell,
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering},
};

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(0) };
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread the runtime thread of a shard. Its jobs prefer workers of the same shard, and its figures
/// are separate. Threads without a shard count as shard 0.
pub fn set_shard(shard: usize) {
    SHARD.set(shard);
    SERVES.set(true);
}

/// Counts the figures of the calling thread, a worker's, in `shard`. The thread serves no calls of the shard.
pub(super) fn work_for_shard(shard: usize) {
    SHARD.set(shard);
}

/// The shard of the calling thread.
#[must_use]
pub fn shard() -> usize {
    SHARD.get()
}

/// The shard whose calls the calling thread serves, if [`set_shard`] has assigned one.
pub(super) fn serving_shard() -> Option<usize> {
    SERVES.get().then(shard)
}

/// A value that an operator replaces now and then, and that is read without a lock.
///
/// Old values are kept, because readers may still use them. Operators replace values so rarely that the memory does not
/// matter.
#[derive(Debug)]
pub(super) struct Replaceable<T> {
    all: boxcar::Vec<T>,
    last: AtomicUsize,
}

impl<T> Replaceable<T> {
    pub(super) fn new(first: T) -> Self {
        Self { all: boxcar::vec![first], last: AtomicUsize::new(0) }
    }

    /// Replaces the value. Of two concurrent calls, either may win.
    pub(super) fn replace(&self, value: T) {
        self.last.store(self.all.push(value), Ordering::Release);
    }

    /// Another number after each replacement.
    pub(super) fn version(&self) -> usize {
        self.last.load(Ordering::Acquire)
    }
}

impl<T> Deref for Replaceable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.all[self.version()]
    }
}
