//! `Submit`: one job, its result. When the caller leaves, its future is dropped: `src/pool/permit.rs` takes a queued job
//! out, and `src/pool/attached.rs` stops a running one.

use std::{borrow::Borrow, future::poll_fn, sync::Arc, task::Poll};

use tonic::{Code, Request, Response, Status};

use super::{
    calls::{Calls, Meter},
    context::CallContext,
    convert, status,
    worker_pool::Parts,
};
use crate::{
    auth::{Hold, Rpc},
    model::{Job, Waterfall},
    pool::Polled,
    proto::{self, SubmitRequest, SubmitResponse},
};

/// A call whose job was parsed and authorized.
pub(super) struct Accepted<C: Borrow<Calls>> {
    pub(super) call: CallContext,
    pub(super) job: Box<Job>,
    pub(super) meter: Meter<C>,
    /// The tenant's quota.
    pub(super) hold: Option<Hold>,
}

impl<C: Borrow<Calls>> Accepted<C> {
    /// Parses the one job of a call.
    pub(super) fn read<T>(
        parts: &Parts,
        calls: C,
        rpc: Rpc,
        request: Request<T>,
        job: impl FnOnce(T) -> Option<proto::Job>,
    ) -> Result<Self, Status> {
        let refused = |status: &Status| parts.calls.refuse(rpc, status.code());
        let call = CallContext::read(&request, rpc.name(), &parts.sampler).inspect_err(refused)?;
        let job = convert::job(job(request.into_inner()));
        let job = job.map_err(|violations| status::unreadable(violations, call.request_id()));
        let mut job = job.inspect_err(refused)?;
        let meter = Calls::begin(calls, rpc, Some(&job.kind), call.arrival());
        let deadline = call.deadline(&parts.deadline);
        call.own(&mut job, deadline);
        match parts.guard.admit(&parts.pools, rpc, &call, &mut job) {
            Ok(hold) => Ok(Self { call, job, meter, hold }),
            Err(status) => {
                meter.end(status.code());
                Err(status)
            }
        }
    }
}

/// Runs one job. The request is read at once, so that nothing of it is kept while the job waits.
pub(super) fn submit(
    parts: &Parts,
    request: Request<SubmitRequest>,
) -> impl Future<Output = Result<Response<SubmitResponse>, Status>> + Send {
    let accepted = Accepted::read(parts, &parts.calls, Rpc::Submit, request, |request| request.job);
    async move {
        let Accepted { call, job, meter, hold } = accepted?;
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
                // The pool knows when the run ended, which saves reading the clock again.
                let Waterfall { queue, run, .. } = completed.waterfall;
                meter.end_after(Code::Ok, queue + run);
                let mut answer = call.answer(SubmitResponse { result: Some(convert::job_result(completed)) });
                if let Some(hold) = hold {
                    // It lasts until the answer is sent.
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
}
