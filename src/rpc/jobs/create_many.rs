//! `CreateJobs`: many jobs on one call. The store keeps those together that come at the same time.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

use super::{Asked, create, measured, named};
use crate::{
    model::FieldViolation,
    proto::{CreateJobRequest, CreateJobsRequest, CreateJobsResponse, create_jobs_response::Outcome},
    rpc::{
        Arrival,
        message_stream::Messages,
        status,
        submit_many::{MAX_TAG, failure},
        worker_pool::ResponseStream,
    },
};

/// Path of the RPC, whose messages are read here and not by the codec.
pub(in crate::rpc) const CREATE_JOBS: &str = "/waterwheel.v1.JobService/CreateJobs";

/// Creates jobs, and answers each once it is durable. A caller that does not read its answers is read no further.
pub(super) fn create_jobs(
    mut asked: Asked,
    request: &Request<Streaming<CreateJobsRequest>>,
) -> Result<Response<ResponseStream<CreateJobsResponse>>, Status> {
    let arrival = request.extensions().get::<Arrival>();
    let body = arrival.and_then(|arrival| arrival.inbound.as_ref()?.lock().take()).unwrap_or_default();
    let inbound = Messages::new(body, request.metadata().as_ref(), asked.parts.largest_message);
    let window = asked.parts.window;
    let meter = asked.meter.take();
    let asked = Arc::new(asked);
    let messages = stream::unfold(Some(inbound), async |inbound| {
        let mut inbound: Messages<CreateJobsRequest> = inbound?;
        match inbound.message().await {
            Ok(Some(message)) => Some((Ok(message), Some(inbound))),
            Ok(None) => None,
            Err(fault) => Some((Err(status::refused_by_codec(fault)), None)),
        }
    });
    let (creator, caller) = (Arc::clone(&asked), Arc::clone(&asked));
    let answers = messages.map(move |message| create(Arc::clone(&creator), message)).buffer_unordered(window);
    let answers = answers.map(move |answer| answer.map_err(|status| named(&caller.call, status)));
    Ok(asked.call.answer(measured(meter, answers)))
}

async fn create(asked: Arc<Asked>, message: Result<CreateJobsRequest, Status>) -> Result<CreateJobsResponse, Status> {
    let CreateJobsRequest { job, job_id, options, tag } = message?;
    if tag.len() > MAX_TAG {
        let fault = FieldViolation::new("tag", format!("longer than {MAX_TAG} bytes"));
        return Err(status::unreadable(vec![fault], asked.call.request_id()));
    }
    let outcome = match create::create_job(&asked, CreateJobRequest { job, job_id, options }).await {
        Ok(created) => Outcome::Created(created),
        Err(status) => Outcome::Failure(failure(&status)),
    };
    Ok(CreateJobsResponse { tag, outcome: Some(outcome) })
}
