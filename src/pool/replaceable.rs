//! A value that is replaced rarely and read without a lock.

use std::{
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering},
};

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

    /// Number of replacements.
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
