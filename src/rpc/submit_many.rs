use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tonic::{Code, Request, Response, Status, Streaming};

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
    let (end, ended) = oneshot::channel();
    let driver = Driver {
        parts: Arc::clone(parts),
        inbound: request.into_inner(),
        call,
        results,
        running: FuturesUnordered::new(),
        full: None,
    };
    parts.tasks.spawn(driver.run(end));
    Ok(Response::new(Box::pin(Answers { outbox, ended })))
}

type Place = mpsc::OwnedPermit<SubmitManyResponse>;

/// What the caller reads: results, and then the status of the call, which needs no place in the window.
struct Answers {
    outbox: mpsc::Receiver<SubmitManyResponse>,
    ended: oneshot::Receiver<Status>,
}

impl Stream for Answers {
    type Item = Result<SubmitManyResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let result = ready!(self.outbox.poll_recv(cx));
        // The driver says how the call ends before it lets go of the results.
        Poll::Ready(result.map(Ok).or_else(|| self.ended.try_recv().ok().map(Err)))
    }
}

struct Driver {
    parts: Arc<Parts>,
    inbound: Streaming<SubmitManyRequest>,
    call: CallContext,
    results: mpsc::Sender<SubmitManyResponse>,
    running: FuturesUnordered<BoxFuture<'static, (Place, SubmitManyResponse)>>,
    /// The job that found its pool full; nothing is read until it has room.
    full: Option<Room>,
}

/// What the driver does next.
enum Step {
    Answer(Place, SubmitManyResponse),
    Read(Place),
    Closing,
    Room,
    TooLate,
    /// Nobody reads the results any more.
    Left,
}

/// What came of an attempt to read a job.
enum Read {
    /// There may be more.
    More,
    /// The caller sends no more.
    Done,
    /// No more can be read.
    Broken(Status),
}

impl Driver {
    /// Drives the call to its end. Dropping the driver cancels the jobs that it has left.
    async fn run(mut self, end: oneshot::Sender<Status>) {
        let last = self.drive().await;
        self.call.span.record_status(last.as_ref().map_or(Code::Ok, Status::code));
        if let Some(status) = last {
            // A caller that left does not look at the end.
            let _ = end.send(status);
        }
    }

    /// Returns what the call ends with; `None` where that is OK, or nobody looks.
    async fn drive(&mut self) -> Option<Status> {
        let closing = self.parts.pools.clone();
        let mut closing = std::pin::pin!(async move { closing.closing().await }.fuse());
        let mut last = None;
        let mut reading = true;
        while reading || !self.running.is_empty() {
            let end = self.end();
            let step = tokio::select! {
                biased;
                // Jobs that reach the deadline with the call are answered one by one before it ends.
                Some((place, response)) = self.running.next() => Step::Answer(place, response),
                () = wait_until(end) => Step::TooLate,
                () = &mut closing, if reading => Step::Closing,
                () = wait_for_room(self.full.as_ref()), if self.full.is_some() => Step::Room,
                place = self.results.clone().reserve_owned(), if reading && self.full.is_none() => {
                    place.map_or(Step::Left, Step::Read)
                }
                () = self.results.closed() => Step::Left,
            };
            match step {
                Step::Answer(place, response) => drop(place.send(response)),
                Step::Read(place) => match self.read(place).await {
                    Read::More => {}
                    Read::Done => reading = false,
                    Read::Broken(status) => (reading, last) = (false, Some(status)),
                },
                Step::Closing => (reading, last) = (false, Some(status::draining(&self.call.request_id))),
                Step::Room => self.full = None,
                Step::TooLate => return Some(status::too_late(&self.call.request_id)),
                Step::Left => return None,
            }
        }
        last
    }

    /// When the call is ended: after its last jobs, which are answered at the beginning of the margin, had time to be.
    fn end(&self) -> Option<Instant> {
        let deadline = self.call.deadline(&self.parts.deadline);
        self.call.has_deadline().then(|| deadline.reply_by() + (deadline.end() - deadline.reply_by()) / 2)
    }

    /// Reads one job and starts it, unless something else happens first.
    async fn read(&mut self, place: Place) -> Read {
        let end = self.end();
        let message = tokio::select! {
            biased;
            message = self.inbound.message() => message,
            // The jobs that run go on while the caller is silent.
            Some((done, response)) = self.running.next() => {
                drop(done.send(response));
                return Read::More;
            }
            // The loop looks at each of these again.
            () = self.results.closed() => return Read::More,
            () = self.parts.pools.closing() => return Read::More,
            () = wait_until(end) => return Read::More,
        };
        match message {
            Ok(Some(request)) => {
                self.start(place, request);
                Read::More
            }
            Ok(None) => Read::Done,
            Err(error) => Read::Broken(self.unreadable(error)),
        }
    }

    /// The codec answers a message over its limit with OUT_OF_RANGE and without details.
    fn unreadable(&self, error: Status) -> Status {
        let mut status = match error.code() {
            Code::OutOfRange => status::message_too_large(error.message()),
            _ => error,
        };
        status::name(&mut status, &self.call.request_id);
        status
    }

    fn start(&mut self, place: Place, request: SubmitManyRequest) {
        let SubmitManyRequest { tag, job } = request;
        let ticket = match self.job(&tag, job) {
            Ok(job) => self.parts.pools.try_submit(job).map_err(JobError::from),
            Err(violations) => {
                let status = status::unreadable(violations, &self.call.request_id);
                place.send(SubmitManyResponse { tag, outcome: Some(Outcome::Failure(failure(&status))) });
                return;
            }
        };
        let ticket = match ticket {
            Ok(ticket) => ticket,
            Err(error) => {
                place.send(self.response(tag, Err(error)));
                return;
            }
        };
        self.full = ticket.room().filter(Room::is_awaited);
        self.poll_once(place, tag, ticket);
    }

    /// Most short jobs are done at their first poll: only what is pending is parked.
    fn poll_once(&mut self, place: Place, tag: String, mut ticket: Ticket) {
        if let Some(outcome) = (&mut ticket).now_or_never() {
            place.send(self.response(tag, outcome));
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
}

async fn wait_until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
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
