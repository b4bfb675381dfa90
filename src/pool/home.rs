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

/// Names the runtime that the calling thread serves: jobs from it take workers of the same home first, and its figures
/// are kept apart from those of other threads. Threads without a name belong to home 0.
pub fn set_home(home: usize) {
    HOME.set(home);
    SERVES.set(true);
}

/// Keeps the figures of the calling thread, which serves no runtime, with those of `home`.
pub(super) fn work_for_home(home: usize) {
    HOME.set(home);
}

/// The home of the calling thread.
#[must_use]
pub fn home() -> usize {
    HOME.get()
}

/// The home whose runtime the calling thread serves, where it was named.
pub(super) fn serving_home() -> Option<usize> {
    SERVES.get().then(home)
}

/// The shell of a pool, as the threads of one home hold it.
///
/// Every job that runs holds it. A count of references that two threads share moves between their cores with each job,
/// so each home counts its own.
#[derive(Clone)]
pub(super) struct Shared(Arc<Counted>);

/// The shell of a pool as all homes hold it, each by a [`Shared`] of its own.
#[derive(Clone)]
pub(super) struct Homes(Arc<[Shared]>);

/// Apart from whatever else is counted: a cache line, and the one that is read ahead with it.
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

    /// As the home of the calling thread holds it.
    pub(super) fn here(&self) -> &Shared {
        self.0.get(home()).unwrap_or(&self.0[0])
    }
}
