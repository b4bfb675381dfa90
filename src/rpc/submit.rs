use std::{future::poll_fn, task::Poll};

use tonic::{Code, Request, Response, Status};

use super::{context::CallContext, convert, status, worker_pool::Parts};
use crate::{
    auth::Rpc,
    pool::Polled,
    proto::{SubmitRequest, SubmitResponse},
};

/// `Submit`: one job, its result.
pub(super) async fn submit(parts: &Parts, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
    let call = CallContext::read(&request, "Submit", &parts.sampler)?;
    let job = convert::job(request.into_inner().job);
    let mut job = job.map_err(|violations| status::unreadable(violations, call.request_id()))?;
    let deadline = call.deadline(&parts.deadline);
    call.own(&mut job, deadline);
    let _hold = parts.guard.admit(Rpc::Submit, &call, &mut job)?;
    let mut job = Some(job);
    let begun = poll_fn(|cx| Poll::Ready(parts.pools.begin(job.take().expect("polled once"), cx))).await;
    let outcome = match begun {
        Polled::Ended(outcome) => outcome,
        Polled::Pending(ticket) => ticket.await,
    };
    match outcome {
        Ok(completed) => {
            call.record_status(Code::Ok);
            Ok(call.answer(SubmitResponse { result: Some(convert::job_result(completed)) }))
        }
        Err(error) => {
            let status = status::status(&error, call.request_id());
            call.record_status(status.code());
            Err(status)
        }
    }
}
