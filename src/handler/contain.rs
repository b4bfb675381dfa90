//! Catches the panics of handlers. `src/pool/outcome.rs` turns one into the outcome of its job.

use std::{
    any::Any,
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Characters of a panic's message that are kept.
const LONGEST_MESSAGE: usize = 512;

/// A value that belongs to a handler, and may panic when it is dropped. The panic is logged and not propagated.
pub(crate) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the value stays until it is taken for good")
    }

    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect("the value stays until it is taken for good")
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        if let Err(panic) = contain(|| drop(value)) {
            tracing::error!(panic, "a handler panicked while it was dropped");
        }
    }
}

/// Runs code of a handler. Returns the message of a panic as an error.
pub(crate) fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(panic_message)
}

/// The message of a panic, shortened.
pub(crate) fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text");
    let text = text.chars().take(LONGEST_MESSAGE).collect();
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Dropping this panic payload may panic as well, without end, so it is leaked.
        let _ = ManuallyDrop::new(again);
    }
    text
}
