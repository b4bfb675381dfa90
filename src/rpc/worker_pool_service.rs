//! `WorkerPoolService`, and its RPCs `Submit` and `Stream`: run one job, and return its result or stream its output and
//! progress. When the caller leaves, the future is dropped: `src/pool/queued_job.rs` removes a queued job, and
//! `src/pool/stop_ladder.rs` stops a running one. A new RPC also needs a row in `src/auth/rule.rs`.

use std::{
    borrow::Borrow,
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::Stream;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

use super::{
    calls::{Calls, Meter},
    context::CallContext,
    convert,
    service_state::{CallerServices, ResponseStream, ServiceState},
    stats, status, submit_many,
};
use crate::{
    auth::{Hold, Rpc},
    model::{Completed, Job, Waterfall},
    pool::{Event, JobStream, StreamItem},
    proto::{
        self, Finished, OutputChunk, Progress, Started, StatsRequest, StatsResponse, StreamRequest, StreamResponse,
        SubmitManyRequest, SubmitManyResponse, SubmitRequest, SubmitResponse, WatchStatsRequest, WatchStatsResponse,
        stream_response, worker_pool_service_server::WorkerPoolService,
    },
};

#[async_trait]
impl WorkerPoolService for CallerServices {
    type StreamStream = ResponseStream<StreamResponse>;
    type SubmitManyStream = ResponseStream<SubmitManyResponse>;
    type WatchStatsStream = ResponseStream<WatchStatsResponse>;

    // Like the code that the macro generates, except that the request is converted before the future is created, so
    // that it is not kept in memory while the job waits.
    fn submit<'a, 'b>(
        &'a self,
        request: Request<SubmitRequest>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<SubmitResponse>, Status>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let service = &*self.0;
        let accepted = Accepted::read(service, &service.calls, Rpc::Submit, request, |request| request.job);
        Box::pin(async move {
            let Accepted { call, job, meter, hold } = accepted?;
            let outcome = match service.pools.try_submit(job) {
                Ok(ticket) => ticket.await,
                Err(rejection) => Err(rejection.into()),
            };
            match outcome {
                Ok(completed) => {
                    call.record_status(Code::Ok);
                    // The pool knows when the run ended, which saves a reading of the clock.
                    let Waterfall { queue, run, .. } = completed.waterfall;
                    meter.end_after(Code::Ok, queue + run);
                    let mut answer = call.answer(SubmitResponse { result: Some(convert::job_result(completed)) });
                    if let Some(hold) = hold {
                        // The hold lasts until the answer is sent.
                        answer.extensions_mut().insert(Arc::new(hold));
                    }
                    Ok(answer)
                }
                Err(error) => Err(call.fail(meter, &error)),
            }
        })
    }

    async fn stream(&self, request: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        stream(&self.0, request).await
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        submit_many::submit_many(&self.0, request)
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let meter = Calls::begin(&self.0.calls, Rpc::Stats, None, Instant::now());
        let answer = stats::stats(&self.0, request.into_inner());
        meter.end(answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        answer
    }

    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let refused = |status: &Status| self.0.calls.refuse(Rpc::WatchStats, status.code());
        stats::watch_stats(&self.0, request).inspect_err(refused)
    }
}

/// Largest message, in bytes. A handler may write larger chunks than clients accept, by default 4 MiB.
const MAX_CHUNK: usize = 1 << 20;

/// A call whose job was parsed and authorized.
struct Accepted<C: Borrow<Calls>> {
    call: CallContext,
    job: Box<Job>,
    meter: Meter<C>,
    /// The tenant's quota.
    hold: Option<Hold>,
}

impl<C: Borrow<Calls>> Accepted<C> {
    /// Parses the one job of a call.
    fn read<T>(
        service: &ServiceState,
        calls: C,
        rpc: Rpc,
        request: Request<T>,
        job: impl FnOnce(T) -> Option<proto::Job>,
    ) -> Result<Self, Status> {
        let refused = |status: &Status| service.calls.refuse(rpc, status.code());
        let call = CallContext::read(&request, rpc, &service.sampler).inspect_err(refused)?;
        let job = convert::job(job(request.into_inner()));
        let job = job.map_err(|violations| status::unreadable(violations, call.request_id()));
        let mut job = job.inspect_err(refused)?;
        let meter = Calls::begin(calls, rpc, Some(&job.kind), call.at);
        call.attach_to(&mut job, service.deadline.fix(call.at, call.timeout));
        match service.access.admit(&service.pools, rpc, &call, &mut job) {
            Ok(hold) => Ok(Self { call, job, meter, hold }),
            Err(status) => {
                call.end(meter, status.code());
                Err(status)
            }
        }
    }
}

/// Runs one job and streams its events. The response headers are sent once the job runs, so an earlier failure has
/// none.
async fn stream(
    service: &ServiceState,
    request: Request<StreamRequest>,
) -> Result<Response<ResponseStream<StreamResponse>>, Status> {
    let Accepted { call, job, meter, hold } =
        Accepted::read(service, service.calls.clone(), Rpc::Stream, request, |request| request.job)?;
    match service.pools.stream(*job).await {
        Ok(job) => {
            let answer = call.answer(());
            let started = Started { job_id: job.job().to_string(), worker: job.worker() };
            let events = Events {
                job,
                call,
                meter: Some(meter),
                _hold: hold,
                next: [stream_response::Event::Started(started)].into(),
                sequence: 0,
                bytes: 0,
            };
            Ok(answer.map(|()| Box::pin(events) as _))
        }
        Err(error) => Err(call.fail(meter, &error)),
    }
}

struct Events {
    job: JobStream,
    call: CallContext,
    /// `None` once the call has ended.
    meter: Option<Meter<Calls>>,
    /// The tenant's quota, held as long as the job lasts.
    _hold: Option<Hold>,
    /// Events to send next.
    next: VecDeque<stream_response::Event>,
    /// Number of the last sent event.
    sequence: u64,
    /// Bytes of the output so far.
    bytes: u64,
}

impl Events {
    fn add(&mut self, item: StreamItem) {
        match item {
            StreamItem::Event(Event::Chunk(data)) => self.add_output(data),
            StreamItem::Event(Event::Progress { fraction, message }) => {
                self.next.push_back(stream_response::Event::Progress(Progress { fraction, message }));
            }
            StreamItem::Completed(Completed { job, output, waterfall }) => {
                self.add_output(output.bytes);
                self.next.push_back(stream_response::Event::Finished(Finished {
                    job_id: job.to_string(),
                    content_type: output.content_type,
                    output_bytes: self.bytes,
                    waterfall: Some(convert::waterfall(waterfall)),
                }));
            }
        }
    }

    fn add_output(&mut self, mut rest: Bytes) {
        self.bytes += rest.len() as u64;
        while !rest.is_empty() {
            let data = rest.split_to(rest.len().min(MAX_CHUNK));
            self.next.push_back(stream_response::Event::OutputChunk(OutputChunk { data }));
        }
    }

    fn end(&mut self, code: Code) {
        if let Some(meter) = self.meter.take() {
            self.call.end(meter, code);
        }
    }
}

impl Stream for Events {
    type Item = Result<StreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.next.pop_front() {
                if let stream_response::Event::Finished(_) = event {
                    self.end(Code::Ok);
                }
                self.sequence += 1;
                return Poll::Ready(Some(Ok(StreamResponse { sequence: self.sequence, event: Some(event) })));
            }
            if self.meter.is_none() {
                return Poll::Ready(None);
            }
            match ready!(self.job.poll_next(cx)) {
                Ok(Some(item)) => self.add(item),
                Ok(None) => self.end(Code::Ok),
                Err(error) => {
                    let status = status::status(&error, self.call.request_id());
                    self.end(status.code());
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
    }
}
