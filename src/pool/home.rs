use std::cell::Cell;

thread_local! {
    static HOME: Cell<usize> = const { Cell::new(0) };
}

/// Names the runtime that the calling thread serves: jobs from it take workers of the same home first, and its figures
/// are kept apart from those of other threads. Threads without a name belong to home 0.
pub fn set_home(home: usize) {
    HOME.set(home);
}

/// The home of the calling thread.
#[must_use]
pub fn home() -> usize {
    HOME.get()
}
