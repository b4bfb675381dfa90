//! Kinds made of functions, for handlers without a state of their own.

use std::sync::Arc;

use super::{BlockingHandler, Context, Handler, Kind};
use crate::model::{HandlerError, Job, Output};

/// A handler that calls a function, which all workers share.
struct Function<F>(Arc<F>);

impl<F, R, T> Handler for Function<F>
where
    F: Fn(Box<Job>, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<T, HandlerError>> + Send,
    T: Into<Output>,
{
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let run = (self.0)(job, cx);
        run.await.map(Into::into)
    }
}

impl<F, T> BlockingHandler for Function<F>
where
    F: Fn(Box<Job>, Context) -> Result<T, HandlerError> + Send + Sync + 'static,
    T: Into<Output>,
{
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        (self.0)(job, cx).map(Into::into)
    }
}

impl Kind {
    /// A kind whose jobs mostly wait, and run an async function or closure. `?` turns any error into a
    /// [refusal](HandlerError::Refused) of the job.
    ///
    /// ```
    /// # use waterwheel::{Job, Pool, handler::Kind};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let read = Kind::from_fn("read", async |job, _cx| Ok(std::str::from_utf8(&job.payload)?.to_uppercase()));
    /// let pool = Pool::builder("text").kind(read).build();
    /// assert_eq!(pool.submit(Job::new("read", "hello")).await?.output.bytes, "HELLO");
    /// assert!(pool.submit(Job::new("read", b"\xff".as_slice())).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A closure that captures something is written as `move |job, cx| { let it = it.clone(); async move { … } }`.
    pub fn from_fn<R, T>(
        name: impl Into<Arc<str>>,
        run: impl Fn(Box<Job>, Context) -> R + Send + Sync + 'static,
    ) -> Self
    where
        R: Future<Output = Result<T, HandlerError>> + Send + 'static,
        T: Into<Output> + 'static,
    {
        let run = Arc::new(run);
        Self::new(name, move || Function(Arc::clone(&run)))
    }

    /// A kind whose jobs compute or block, and run a function or closure on the threads of the pool; otherwise as
    /// [`from_fn`](Self::from_fn).
    ///
    /// ```
    /// # use waterwheel::handler::Kind;
    /// let count = Kind::blocking_fn("count", |job, _cx| Ok(job.payload.len().to_string()));
    /// ```
    pub fn blocking_fn<T: Into<Output> + 'static>(
        name: impl Into<Arc<str>>,
        run: impl Fn(Box<Job>, Context) -> Result<T, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        let run = Arc::new(run);
        Self::blocking(name, move || Function(Arc::clone(&run)))
    }
}
