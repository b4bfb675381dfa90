use std::num::NonZeroUsize;

use waterwheel::{
    Job, Output, Pool,
    handler::{BlockingHandler, Context, Handler, Kind},
    model::HandlerError,
    pool::PoolBuilder,
};

struct Run<F>(F);

impl<F, R> Handler for Run<F>
where
    F: Fn(Job, Context) -> R + Send + 'static,
    R: Future<Output = Result<Output, HandlerError>> + Send,
{
    fn handle(&mut self, job: Box<Job>, cx: Context) -> impl Future<Output = Result<Output, HandlerError>> + Send {
        (self.0)(*job, cx)
    }
}

struct Block<F>(F);

impl<F> BlockingHandler for Block<F>
where
    F: Fn(Job, Context) -> Result<Output, HandlerError> + Send + 'static,
{
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        (self.0)(*job, cx)
    }
}

/// An asynchronous kind made of a function.
pub(crate) fn kind<F, R>(name: &str, run: F) -> Kind
where
    F: Fn(Job, Context) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Output, HandlerError>> + Send,
{
    Kind::new(name, move || Run(run.clone()))
}

/// A blocking kind made of a function.
pub(crate) fn blocking_kind<F>(name: &str, run: F) -> Kind
where
    F: Fn(Job, Context) -> Result<Output, HandlerError> + Clone + Send + Sync + 'static,
{
    Kind::blocking(name, move || Block(run.clone()))
}

/// Gives the payload back.
pub(crate) fn echo() -> Kind {
    kind("echo", |job, _| async move { Ok(Output::new(job.payload)) })
}

/// Runs until it is cut off, and does not look at its token.
pub(crate) fn slow() -> Kind {
    kind("slow", |_, _| std::future::pending())
}

/// Starts to build a pool with that many workers.
pub(crate) fn pool(workers: usize) -> PoolBuilder {
    Pool::builder("test").workers(NonZeroUsize::new(workers).expect("a pool has workers"))
}
