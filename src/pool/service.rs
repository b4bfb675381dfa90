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

#[cfg(test)]
mod tests {
    use tower::{ServiceBuilder, ServiceExt as _};

    use super::*;
    use crate::{
        handler::Kind,
        model::{Output, RejectionReason},
    };

    /// A pool beside middleware of the ecosystem.
    #[tokio::test]
    async fn a_pool_is_a_service_whose_errors_are_those_of_a_job() {
        let upper = Kind::from_fn("upper", async |job, _cx| Ok(Output::new(job.payload.to_ascii_uppercase())));
        let pool = Pool::builder("text").kind(upper).build();
        let mut service =
            ServiceBuilder::new().map_request(|text: &str| Job::new("upper", text.to_owned())).service(pool.clone());
        let done = service.ready().await.expect("always").call("hello").await.expect("it ends");
        assert_eq!(done.output.bytes, "HELLO");
        pool.drain();
        let refusal = service.ready().await.expect("always").call("late").await.expect_err("a refusal");
        assert!(matches!(&refusal, JobError::Rejected(why) if why.reason == RejectionReason::Draining), "{refusal:?}");
    }
}
