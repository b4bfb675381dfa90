//! Homes: the serving threads, each with its own reference counts and figures of a pool.

use std::{
    cell::Cell,
    ops::Deref,
    sync::{Arc, Weak},
};

use super::shell::Shell;

thread_local! {
    static HOME: Cell<usize> = const { Cell::new(0) };
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Names the runtime of the calling thread. Jobs from it prefer workers of the same home, and its figures are separate
/// from those of other threads. Threads without a name belong to home 0.
pub fn set_home(home: usize) {
    HOME.set(home);
    SERVES.set(true);
}

/// Counts the figures of the calling thread, which serves no runtime, in `home`.
pub(super) fn work_for_home(home: usize) {
    HOME.set(home);
}

/// The home of the calling thread.
#[must_use]
pub fn home() -> usize {
    HOME.get()
}

/// The home whose runtime the calling thread serves, if it was named.
pub(super) fn serving_home() -> Option<usize> {
    SERVES.get().then(home)
}

/// The shell of a pool, as the threads of one home share it.
///
/// Every running job holds one. A reference count that two threads share moves between their cores with each job, so
/// that each home has its own.
#[derive(Clone)]
pub(super) struct Shared(Arc<Counted>);

/// The shell of a pool, with one [`Shared`] for each home.
#[derive(Clone)]
pub(super) struct Homes(Arc<[Shared]>);

/// On a cache line of its own, and on the one that the processor fetches with it.
#[repr(align(128))]
struct Counted(Arc<Shell>);

impl Shared {
    pub(super) fn downgrade(&self) -> Weak<Shell> {
        Arc::downgrade(&self.0.0)
    }
}

impl From<Arc<Shell>> for Shared {
    fn from(shell: Arc<Shell>) -> Self {
        Self(Arc::new(Counted(shell)))
    }
}

impl Deref for Shared {
    type Target = Shell;

    fn deref(&self) -> &Shell {
        &self.0.0
    }
}

impl Homes {
    pub(super) fn new(shell: Shell, homes: usize) -> Self {
        let shell = Arc::new(shell);
        Self(std::iter::repeat_with(|| Shared::from(Arc::clone(&shell))).take(homes).collect())
    }

    /// For the home of the calling thread.
    pub(super) fn here(&self) -> &Shared {
        self.0.get(home()).unwrap_or(&self.0[0])
    }
}
