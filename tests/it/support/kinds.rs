use std::num::NonZeroUsize;

use waterwheel::{
    Job, Output, Pool,
    handler::{BlockingHandler, Context, Handler, Kind},
    model::HandlerError,
    pool::PoolBuilder,
};

use super::{BlockingGate, Counter, Gate};

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

/// A kind that returns its payload.
pub(crate) fn echo() -> Kind {
    kind("echo", |job, _| async move { Ok(Output::new(job.payload)) })
}

/// A kind that ignores its cancel token and runs until it is aborted.
pub(crate) fn slow() -> Kind {
    kind("slow", |_, _| std::future::pending())
}

/// A kind that waits for its gate, and returns its payload. It ignores cancellation.
pub(crate) fn gated(name: &str, gate: &Gate) -> Kind {
    gated_counting(name, gate, &Counter::new())
}

/// [`gated`], which counts the jobs that start.
pub(crate) fn gated_counting(name: &str, gate: &Gate, begun: &Counter) -> Kind {
    let (gate, begun) = (gate.clone(), begun.clone());
    kind(name, move |job, _| {
        let (gate, begun) = (gate.clone(), begun.clone());
        async move {
            begun.add();
            gate.pass().await;
            Ok(Output::new(job.payload))
        }
    })
}

/// A blocking kind that counts the jobs that start, and waits for its gate. It ignores cancellation.
pub(crate) fn deaf(begun: &Counter, gate: &BlockingGate) -> Kind {
    let (begun, gate) = (begun.clone(), gate.clone());
    blocking_kind("deaf", move |_, _| {
        begun.add();
        gate.pass();
        Ok(Output::default())
    })
}

/// A kind that waits until its job is cancelled, counts that, and stops.
pub(crate) fn polite(begun: &Counter, stopped: &Counter) -> Kind {
    let (begun, stopped) = (begun.clone(), stopped.clone());
    kind("polite", move |_, cx| {
        let (begun, stopped) = (begun.clone(), stopped.clone());
        async move {
            begun.add();
            cx.cancelled().await;
            stopped.add();
            Err(HandlerError::Stopped)
        }
    })
}

/// A builder of a pool with this number of workers.
pub(crate) fn pool(workers: usize) -> PoolBuilder {
    Pool::builder("test").workers(NonZeroUsize::new(workers).expect("a pool has workers"))
}
