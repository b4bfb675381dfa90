use std::{future::poll_fn, sync::Arc, task::Poll};

use tonic::{Code, Request, Response, Status};

use super::{
    calls::{Calls, Method},
    context::CallContext,
    convert, status,
    worker_pool::Parts,
};
use crate::{
    auth::Rpc,
    model::Waterfall,
    pool::Polled,
    proto::{SubmitRequest, SubmitResponse},
};

/// `Submit`: one job, its result.
pub(super) async fn submit(parts: &Parts, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
    let refused = |status: &Status| parts.calls.refuse(Method::Submit, status.code());
    let call = CallContext::read(&request, "Submit", &parts.sampler).inspect_err(refused)?;
    let job = convert::job(request.into_inner().job);
    let job = job.map_err(|violations| status::unreadable(violations, call.request_id()));
    let mut job = job.inspect_err(refused)?;
    let meter = Calls::begin(&parts.calls, Method::Submit, Some(&job.kind), call.arrival());
    let deadline = call.deadline(&parts.deadline);
    call.own(&mut job, deadline);
    let hold = match parts.guard.admit(&parts.pools, Rpc::Submit, &call, &mut job) {
        Ok(hold) => hold,
        Err(status) => {
            meter.end(status.code());
            return Err(status);
        }
    };
    let begun = {
        let mut job = Some(job);
        poll_fn(|cx| Poll::Ready(parts.pools.begin(job.take().expect("polled once"), cx))).await
    };
    let outcome = match begun {
        Polled::Ended(outcome) => outcome,
        Polled::Pending(ticket) => ticket.await,
    };
    match outcome {
        Ok(completed) => {
            call.record_status(Code::Ok);
            // The pool knows when the run ended: the clock need not be read again.
            let Waterfall { queue, run, .. } = completed.waterfall;
            meter.end_after(Code::Ok, queue + run);
            let mut answer = call.answer(SubmitResponse { result: Some(convert::job_result(completed)) });
            if let Some(hold) = hold {
                // It ends when the answer is sent.
                answer.extensions_mut().insert(Arc::new(hold));
            }
            Ok(answer)
        }
        Err(error) => {
            let status = status::status(&error, call.request_id());
            call.record_status(status.code());
            meter.end(status.code());
            Err(status)
        }
    }
}
