//! `Stream`: one job, with its output and progress as they are made.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::Stream;
use tonic::{Code, Request, Response, Status};

use super::{
    calls::{Calls, Meter},
    context::CallContext,
    convert, status,
    submit::Accepted,
    worker_pool::{Parts, ResponseStream},
};
use crate::{
    auth::{Hold, Rpc},
    model::Completed,
    pool::{Event, JobStream, StreamItem},
    proto::{Finished, OutputChunk, Progress, Started, StreamRequest, StreamResponse, stream_response},
};

/// Largest message, in bytes. A handler may write more at once than a client accepts, by default 4 MiB.
const MAX_CHUNK: usize = 1 << 20;

/// Runs one job and streams its events. The call is answered once the job runs; a failure before that has no response
/// headers.
pub(super) async fn stream(
    parts: &Parts,
    request: Request<StreamRequest>,
) -> Result<Response<ResponseStream<StreamResponse>>, Status> {
    let Accepted { call, job, meter, hold } =
        Accepted::read(parts, parts.calls.clone(), Rpc::Stream, request, |request| request.job)?;
    match parts.pools.stream(*job).await {
        Ok(job) => {
            let answer = call.answer(());
            let events = Events {
                job,
                call,
                meter: Some(meter),
                _hold: hold,
                sequence: 0,
                bytes: 0,
                rest: Bytes::new(),
                last: None,
                ended: false,
            };
            Ok(answer.map(|()| Box::pin(events) as _))
        }
        Err(error) => {
            let status = status::status(&error, call.request_id());
            call.record_status(status.code());
            meter.end(status.code());
            Err(status)
        }
    }
}

struct Events {
    job: JobStream,
    call: CallContext,
    /// Taken at the end.
    meter: Option<Meter<Calls>>,
    /// The tenant's quota, as long as the job lasts.
    _hold: Option<Hold>,
    sequence: u64,
    bytes: u64,
    /// The rest of a chunk that is too large for one message.
    rest: Bytes,
    /// The end, while the handler's result is sent before it as a chunk.
    last: Option<Completed>,
    ended: bool,
}

impl Events {
    fn number(&mut self, event: stream_response::Event) -> StreamResponse {
        self.sequence += 1;
        StreamResponse { sequence: self.sequence, event: Some(event) }
    }

    fn chunk(&mut self, mut data: Bytes) -> StreamResponse {
        self.rest = data.split_off(data.len().min(MAX_CHUNK));
        self.bytes += data.len() as u64;
        self.number(stream_response::Event::OutputChunk(OutputChunk { data }))
    }

    fn finish(&mut self, completed: Completed) -> StreamResponse {
        self.end(Code::Ok);
        let finished = Finished {
            job_id: completed.job.to_string(),
            content_type: completed.output.content_type,
            output_bytes: self.bytes,
            waterfall: Some(convert::waterfall(completed.waterfall)),
        };
        self.number(stream_response::Event::Finished(finished))
    }

    fn end(&mut self, code: Code) {
        self.ended = true;
        self.call.record_status(code);
        if let Some(meter) = self.meter.take() {
            meter.end(code);
        }
    }

    fn convert(&mut self, item: StreamItem) -> StreamResponse {
        match item {
            StreamItem::Event(Event::Chunk(data)) => self.chunk(data),
            StreamItem::Event(Event::Progress { fraction, message }) => {
                self.number(stream_response::Event::Progress(Progress { fraction, message }))
            }
            StreamItem::Completed(mut completed) if !completed.output.bytes.is_empty() => {
                let data = std::mem::take(&mut completed.output.bytes);
                self.last = Some(completed);
                self.chunk(data)
            }
            StreamItem::Completed(completed) => self.finish(completed),
        }
    }
}

impl Stream for Events {
    type Item = Result<StreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.sequence == 0 {
            let started = Started { job_id: self.job.job().to_string(), worker: self.job.worker() };
            return Poll::Ready(Some(Ok(self.number(stream_response::Event::Started(started)))));
        }
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            return Poll::Ready(Some(Ok(self.chunk(rest))));
        }
        if let Some(completed) = self.last.take() {
            return Poll::Ready(Some(Ok(self.finish(completed))));
        }
        match ready!(self.job.poll_next(cx)) {
            Ok(Some(item)) => {
                let response = self.convert(item);
                Poll::Ready(Some(Ok(response)))
            }
            Ok(None) => {
                self.end(Code::Ok);
                Poll::Ready(None)
            }
            Err(error) => {
                let status = status::status(&error, self.call.request_id());
                self.end(status.code());
                Poll::Ready(Some(Err(status)))
            }
        }
    }
}
