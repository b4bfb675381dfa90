use std::{
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering},
};

/// A value that an operator replaces now and then, read without a lock as what it is.
///
/// The ones before are kept: somebody may look at them, and there are no more than an operator makes.
#[derive(Debug)]
pub(super) struct Latest<T> {
    all: boxcar::Vec<T>,
    last: AtomicUsize,
}

impl<T> Latest<T> {
    pub(super) fn new(first: T) -> Self {
        Self { all: boxcar::vec![first], last: AtomicUsize::new(0) }
    }

    /// Replaces it. Of two at the same time, either is the last.
    pub(super) fn replace(&self, value: T) {
        self.last.store(self.all.push(value), Ordering::Release);
    }

    /// Goes up with each replacement, from 0 on.
    pub(super) fn version(&self) -> usize {
        self.last.load(Ordering::Acquire)
    }
}

impl<T> Deref for Latest<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.all[self.version()]
    }
}
