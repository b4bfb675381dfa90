//! A pool as a `tower` service, for the middleware of that ecosystem.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tower_service::Service;

use super::Pool;
use crate::model::{Completed, Job, JobError};

/// [`submit`](Pool::submit) as a service. It is always ready: a full pool refuses the job at once or lets it wait, as
/// its [`WhenFull`](crate::WhenFull) says. Dropping the future cancels the job.
impl Service<Job> for Pool {
    type Response = Completed;
    type Error = JobError;
    type Future = Pin<Box<dyn Future<Output = Result<Completed, JobError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: Job) -> Self::Future {
        Box::pin(self.submit(job))
    }
}
