use std::{pin::Pin, sync::Arc};

use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{context::CallContext, convert, status, worker_pool::Parts};
use crate::{
    model::{Completed, FieldViolation, Job, JobError, WhenFull},
    pool::{Room, Ticket},
    proto::{JobFailure, SubmitManyRequest, SubmitManyResponse, submit_many_response::Outcome},
};

const MAX_TAG: usize = 64;

/// `SubmitMany`: many jobs on one call, results as they finish.
///
/// A task of its own drives the jobs: a caller that does not read its results must not hold the workers that run its
/// jobs. What it has not read counts against the window, and a full window, like a full pool, stops the reading.
pub(super) fn submit_many(
    parts: &Arc<Parts>,
    request: Request<Streaming<SubmitManyRequest>>,
) -> Result<Response<Pin<Box<dyn Stream<Item = Result<SubmitManyResponse, Status>> + Send>>>, Status> {
    let call = CallContext::read(&request, "SubmitMany", &parts.sampler)?;
    let (results, outbox) = mpsc::channel(parts.window);
    let driver = Driver {
        parts: Arc::clone(parts),
        inbound: request.into_inner(),
        call,
        results,
        running: FuturesUnordered::new(),
        full: None,
    };
    parts.tasks.spawn(driver.run());
    Ok(Response::new(Box::pin(ReceiverStream::new(outbox))))
}

type Answer = Result<SubmitManyResponse, Status>;
type Place = mpsc::OwnedPermit<Answer>;

struct Driver {
    parts: Arc<Parts>,
    inbound: Streaming<SubmitManyRequest>,
    call: CallContext,
    results: mpsc::Sender<Answer>,
    running: FuturesUnordered<BoxFuture<'static, (Place, SubmitManyResponse)>>,
    /// The job that found its pool full; nothing is read until it has room.
    full: Option<Room>,
}

/// What the driver does next.
enum Step {
    Answer(Place, SubmitManyResponse),
    Read(Place),
    Room,
    End(Status),
    /// Nobody reads the results any more.
    Left,
}

impl Driver {
    async fn run(mut self) {
        let closing = self.parts.pools.clone();
        let mut closing = std::pin::pin!(async move { closing.closing().await }.fuse());
        let end = self.call.deadline(&self.parts.deadline).reply_by();
        let bounded = self.call.has_deadline();
        let mut reading = true;
        while reading || !self.running.is_empty() {
            let step = tokio::select! {
                biased;
                // Jobs that reach the deadline with the call are answered one by one before it ends.
                Some((place, response)) = self.running.next() => Step::Answer(place, response),
                () = sleep_until(end), if bounded => Step::End(status::call_too_late(&self.call.request_id)),
                () = &mut closing, if reading => { reading = false; continue }
                () = wait_for_room(self.full.as_ref()), if self.full.is_some() => Step::Room,
                place = self.results.clone().reserve_owned(), if reading && self.full.is_none() => {
                    place.map_or(Step::Left, Step::Read)
                }
                () = self.results.closed() => Step::Left,
            };
            match step {
                Step::Answer(place, response) => drop(place.send(Ok(response))),
                Step::Read(place) => reading = self.read(place).await,
                Step::Room => self.full = None,
                Step::End(status) => return self.end(status).await,
                Step::Left => return,
            }
        }
        if self.parts.pools.is_closing() {
            let status = status::draining(&self.call.request_id);
            self.end(status).await;
        }
    }

    /// Reads one job and starts it. Returns whether there may be more.
    async fn read(&mut self, place: Place) -> bool {
        let message = tokio::select! {
            biased;
            message = self.inbound.message() => message,
            // The jobs that run go on while the caller is silent.
            Some((done, response)) = self.running.next() => {
                drop(done.send(Ok(response)));
                return true;
            }
            () = self.results.closed() => return false,
            () = self.parts.pools.closing() => return false,
            () = sleep_until(self.call.deadline(&self.parts.deadline).reply_by()), if self.call.has_deadline() => {
                return true;
            }
        };
        match message {
            Ok(Some(request)) => {
                self.start(place, request);
                true
            }
            Ok(None) => false,
            Err(status) => {
                place.send(Err(status));
                self.running.clear();
                false
            }
        }
    }

    fn start(&mut self, place: Place, request: SubmitManyRequest) {
        let SubmitManyRequest { tag, job } = request;
        let ticket = match self.job(&tag, job) {
            Ok(job) => self.parts.pools.try_submit(job).map_err(JobError::from),
            Err(violations) => {
                let status = status::unreadable(violations, &self.call.request_id);
                place.send(Ok(SubmitManyResponse { tag, outcome: Some(Outcome::Failure(failure(&status))) }));
                return;
            }
        };
        let ticket = match ticket {
            Ok(ticket) => ticket,
            Err(error) => {
                place.send(Ok(self.response(tag, Err(error))));
                return;
            }
        };
        self.full = ticket.room().filter(Room::is_awaited);
        self.poll_once(place, tag, ticket);
    }

    /// Most short jobs are done at their first poll: only what is pending is parked.
    fn poll_once(&mut self, place: Place, tag: String, mut ticket: Ticket) {
        if let Some(outcome) = (&mut ticket).now_or_never() {
            place.send(Ok(self.response(tag, outcome)));
            return;
        }
        let request_id = self.call.request_id.clone();
        self.running.push(
            async move {
                let outcome = ticket.await.map_err(|error| status::status(&error, &request_id));
                (place, respond(tag, outcome))
            }
            .boxed(),
        );
    }

    fn job(&self, tag: &str, job: Option<crate::proto::Job>) -> Result<Job, Vec<FieldViolation>> {
        if tag.len() > MAX_TAG {
            let description = format!("{} bytes; at most {MAX_TAG} are allowed", tag.len());
            return Err(vec![FieldViolation::new("tag", description)]);
        }
        let mut job = convert::job(job)?;
        job.when_full.get_or_insert(WhenFull::Wait);
        self.call.own(&mut job, self.call.later_deadline(&self.parts.deadline));
        Ok(job)
    }

    fn response(&self, tag: String, outcome: Result<Completed, JobError>) -> SubmitManyResponse {
        respond(tag, outcome.map_err(|error| status::status(&error, &self.call.request_id)))
    }

    /// Ends the call with `status`, after what was answered so far.
    async fn end(self, status: Status) {
        self.call.span.record_status(status.code());
        // A caller that left does not look at the end.
        let _ =
            tokio::time::timeout_at(Instant::now() + std::time::Duration::from_secs(1), self.results.send(Err(status)))
                .await;
    }
}

async fn wait_for_room(room: Option<&Room>) {
    match room {
        Some(room) => room.wait().await,
        None => std::future::pending().await,
    }
}

fn respond(tag: String, outcome: Result<Completed, Status>) -> SubmitManyResponse {
    let outcome = match outcome {
        Ok(completed) => Outcome::Result(convert::job_result(completed)),
        Err(status) => Outcome::Failure(failure(&status)),
    };
    SubmitManyResponse { tag, outcome: Some(outcome) }
}

/// A status inside a message: the same code, text and details that a call of its own would end with.
fn failure(status: &Status) -> JobFailure {
    use prost::Message;
    let details = tonic_types::pb::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
    let details = details.into_iter().map(|any| prost_types::Any { type_url: any.type_url, value: any.value });
    JobFailure { code: status.code() as i32, message: status.message().to_owned(), details: details.collect() }
}
