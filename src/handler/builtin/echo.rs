//! `builtin = "echo"`: returns the payload.

use crate::{
    handler::{Context, Handler},
    model::{HandlerError, Job, Output},
};

/// Gives the payload back. The load benchmark measures everything around it, so it only moves the job's own parts.
pub(super) struct Echo;

impl Handler for Echo {
    async fn handle(&mut self, job: Box<Job>, _cx: Context) -> Result<Output, HandlerError> {
        Ok(Output { bytes: job.payload, content_type: job.content_type })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::handler::context::bench;

    #[tokio::test]
    async fn gives_back_the_same_memory() {
        let payload = Bytes::from(vec![7; 64]);
        let job = Job::new("echo", payload.clone()).content_type("image/png");
        let output = Echo.handle(Box::new(job), bench::collect(64).context).await.expect("echo cannot fail");
        assert_eq!(output.content_type, "image/png");
        assert!(std::ptr::eq(output.bytes.as_ptr(), payload.as_ptr()));
        assert_eq!(output.bytes, payload);
    }
}
