//! Which job the running code works for, without a span.
//!
//! A span costs as much as all the rest of a short job. A call that nobody traces has none: its jobs are known to the
//! log by a task-local that is set whenever their handler is polled, or runs on its thread.

use super::Context;

tokio::task_local! {
    static CURRENT: Context;
}

/// What `read` finds in the context of the job that the caller works for; `None` outside of any.
pub fn current<T>(read: impl FnOnce(&Context) -> T) -> Option<T> {
    CURRENT.try_with(read).ok()
}

/// Runs `code` for the job of `cx`.
pub fn within<T>(cx: &Context, code: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(cx.clone(), code)
}

/// Runs `future`, in whatever task, for the job of `cx`.
pub fn carry<F: Future>(cx: &Context, future: F) -> impl Future<Output = F::Output> + use<F> {
    CURRENT.scope(cx.clone(), future)
}
