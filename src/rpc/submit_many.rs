//! `SubmitMany`: many jobs on one call, results as they finish. `submit_many/outbox.rs` queues the results.

mod outbox;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Request, Response, Status, Streaming};

use self::outbox::{Kept, Outbox};
use super::{
    Arrival,
    calls::{Calls, Meter},
    context::CallContext,
    convert,
    message_stream::Messages,
    status,
    worker_pool::{Parts, ResponseStream},
};
use crate::{
    auth::{Hold, Rpc},
    memory::{AnswersFull, Charge, ConnectionMemory},
    model::{Completed, Deadline, FieldViolation, Job, JobError, WhenFull},
    pool::{Polled, Room, Ticket},
    proto::{JobFailure, SubmitManyRequest, SubmitManyResponse, submit_many_response::Outcome},
};

pub(super) const MAX_TAG: usize = 64;

/// Runs the jobs of a call.
///
/// A separate task drives the jobs, so that a caller that does not read its results does not hold workers. Unread
/// results count against the window. A full window pauses the reading of jobs, and so does a full pool.
pub(super) fn submit_many(
    parts: &Arc<Parts>,
    request: Request<Streaming<SubmitManyRequest>>,
) -> Result<Response<ResponseStream<SubmitManyResponse>>, Status> {
    let refused = |status: &Status| parts.calls.refuse(Rpc::SubmitMany, status.code());
    let call = CallContext::read(&request, "SubmitMany", &parts.sampler).inspect_err(refused)?;
    let meter = Calls::begin(parts.calls.clone(), Rpc::SubmitMany, None, call.arrival());
    let arrival = request.extensions().get::<Arrival>();
    let body = arrival.and_then(|arrival| arrival.inbound.as_ref()?.lock().take()).unwrap_or_default();
    let memory = arrival.map(|arrival| Arc::clone(&arrival.memory));
    let (outbox, answers) = Outbox::new();
    let response = call.answer(Box::pin(answers) as _);
    let driver = Driver {
        parts: Arc::clone(parts),
        inbound: Messages::new(body, request.metadata().as_ref(), parts.largest_message),
        memory,
        call,
        outbox,
        running: FuturesUnordered::new(),
        full: None,
        unread: 0,
        reading: true,
        last: None,
    };
    parts.tasks.spawn(driver.run(meter));
    Ok(response)
}

struct Driver {
    parts: Arc<Parts>,
    inbound: Messages<SubmitManyRequest>,
    memory: Option<Arc<ConnectionMemory>>,
    call: CallContext,
    outbox: Outbox,
    running: FuturesUnordered<Parked>,
    /// The job that found its pool full. Nothing is read until it has capacity.
    full: Option<Room>,
    /// Unread results when the last one was added.
    unread: usize,
    /// Whether more jobs may come.
    reading: bool,
    /// Final status of the call, after all jobs are answered; `None` is OK.
    last: Option<Status>,
}

/// A job that was pending when it was first polled.
struct Parked {
    tag: String,
    ticket: Ticket,
    /// The tenant's quota, until the answer is sent.
    hold: Option<Hold>,
}

impl Future for Parked {
    type Output = (String, Result<Completed, JobError>, Option<Hold>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.ticket.poll_unpin(cx);
        outcome.map(|outcome| (std::mem::take(&mut self.tag), outcome, self.hold.take()))
    }
}

/// The driver's next step.
enum Step {
    Answer(String, Result<Completed, JobError>, Option<Hold>),
    Read(Result<Option<SubmitManyRequest>, Status>),
    Closing,
    /// The pool or the window has capacity again.
    Room,
    TooLate,
    /// The caller has left.
    Left,
}

impl Driver {
    /// Drives the call to its end. Dropping the driver cancels its remaining jobs.
    async fn run(mut self, meter: Meter<Calls>) {
        let last = self.drive().await;
        let code = last.as_ref().map_or(Code::Ok, Status::code);
        self.call.record_status(code);
        meter.end(code);
        self.outbox.end(last);
    }

    /// Returns the call's final status; `None` is OK.
    async fn drive(&mut self) -> Option<Status> {
        let pools = self.parts.pools.clone();
        let mut closing = std::pin::pin!(async move { pools.closing().await }.fuse());
        let end = self.end();
        loop {
            // Everything that was received is processed at once, with one reading of the clock: waiting costs more than
            // a short job.
            let mut batch = None;
            while self.may_read() {
                match self.inbound.message().now_or_never() {
                    Some(message) => {
                        let deadline = *batch.get_or_insert_with(|| self.deadline());
                        self.take(message, deadline);
                    }
                    None => break,
                }
            }
            if !self.reading && self.running.is_empty() {
                return self.last.take();
            }
            match self.step(closing.as_mut(), end).await {
                Step::Answer(tag, outcome, hold) => self.answer(tag, outcome, hold),
                Step::Read(message) => {
                    let deadline = self.deadline();
                    self.take(message, deadline);
                }
                Step::Closing => {
                    self.reading = false;
                    self.last = Some(status::draining(self.call.request_id()));
                }
                Step::Room => self.full = self.full.take().filter(Room::is_awaited),
                Step::TooLate => return Some(status::too_late(self.call.request_id())),
                Step::Left => return Some(Status::cancelled("the caller left")),
            }
        }
    }

    async fn step(&mut self, closing: Pin<&mut (impl Future<Output = ()> + Send)>, end: Option<Instant>) -> Step {
        self.outbox.hand_over();
        let may_read = self.may_read();
        // A full pool is awaited separately: the window may have capacity, and then the loop would spin.
        let window_is_full = self.reading && self.full.is_none() && !may_read;
        let room_left = self.parts.window.saturating_sub(self.running.len());
        tokio::select! {
            biased;
            // Jobs that reach the deadline with the call are answered one by one before it ends.
            Some((tag, outcome, hold)) = self.running.next() => Step::Answer(tag, outcome, hold),
            () = self.outbox.left() => Step::Left,
            () = wait_until(end) => Step::TooLate,
            () = closing, if self.reading => Step::Closing,
            message = self.inbound.message(), if may_read => Step::Read(message),
            () = wait_for_room(self.full.as_ref()), if self.full.is_some() => Step::Room,
            () = self.outbox.below(room_left), if window_is_full && room_left > 0 => Step::Room,
        }
    }

    /// Whether another job may be read: neither the pool nor the window is full.
    fn may_read(&mut self) -> bool {
        if !self.reading || self.full.is_some() {
            return false;
        }
        // The reader only lowers the count. If the last count leaves capacity, a new one is not needed.
        if self.running.len() + self.unread >= self.parts.window {
            self.unread = self.outbox.unread();
        }
        self.running.len() + self.unread < self.parts.window
    }

    /// When the call ends: after its last jobs, which are answered at the start of the reply margin.
    fn end(&self) -> Option<Instant> {
        let deadline = self.call.deadline(&self.parts.deadline);
        self.call.has_deadline().then(|| deadline.reply_by() + (deadline.end() - deadline.reply_by()) / 2)
    }

    /// The deadline of jobs that arrive now.
    fn deadline(&self) -> Deadline {
        self.call.later_deadline(&self.parts.deadline, Instant::now())
    }

    fn take(&mut self, message: Result<Option<SubmitManyRequest>, Status>, deadline: Deadline) {
        match message {
            Ok(Some(request)) => self.start(request, deadline),
            Ok(None) => self.reading = false,
            Err(refusal) => {
                self.reading = false;
                let mut status = status::refused_by_codec(refusal);
                status::name(&mut status, self.call.request_id());
                self.last = Some(status);
            }
        }
    }

    fn start(&mut self, request: SubmitManyRequest, deadline: Deadline) {
        let SubmitManyRequest { tag, job } = request;
        let admitted = self.job(&tag, job.map(|job| *job), deadline).and_then(|mut job| {
            let hold = self.parts.guard.admit(&self.parts.pools, Rpc::SubmitMany, &self.call, &mut job)?;
            Ok((job, hold))
        });
        let (job, hold) = match admitted {
            Ok(admitted) => admitted,
            Err(status) => {
                let outcome = Some(Outcome::Failure(failure(&status)));
                self.unread = self.outbox.push(SubmitManyResponse { tag, outcome }, Kept::default());
                return;
            }
        };
        // Only pending jobs are parked, where they are polled again.
        match self.parts.pools.begin(job, &mut Context::from_waker(Waker::noop())) {
            Polled::Ended(outcome) => self.answer(tag, outcome, hold),
            Polled::Pending(ticket) => {
                self.full = ticket.room().filter(Room::is_awaited);
                self.running.push(Parked { tag, ticket, hold });
            }
        }
    }

    fn answer(&mut self, tag: String, outcome: Result<Completed, JobError>, hold: Option<Hold>) {
        let mut charge = None;
        let outcome = match outcome {
            Ok(completed) => match self.room(completed.output.bytes.len()) {
                Ok(room) => {
                    charge = room;
                    Outcome::Result(Box::new(convert::job_result(completed)))
                }
                Err(AnswersFull) => Outcome::Failure(failure(&status::answers_full())),
            },
            Err(error) => Outcome::Failure(failure(&status::status(&error, self.call.request_id()))),
        };
        let answer = SubmitManyResponse { tag, outcome: Some(outcome) };
        self.unread = self.outbox.push(answer, Kept { _charge: charge, _hold: hold });
    }

    /// Reserves memory for an answer that is not read yet.
    fn room(&self, bytes: usize) -> Result<Option<Charge>, AnswersFull> {
        self.memory.as_ref().map_or(Ok(None), |memory| memory.reserve(bytes))
    }

    fn job(&self, tag: &str, job: Option<crate::proto::Job>, deadline: Deadline) -> Result<Box<Job>, Status> {
        if tag.len() > MAX_TAG {
            let violations = vec![FieldViolation::new("tag", format!("longer than {MAX_TAG} bytes"))];
            return Err(status::unreadable(violations, self.call.request_id()));
        }
        let job = convert::job(job);
        let mut job = job.map_err(|violations| status::unreadable(violations, self.call.request_id()))?;
        job.when_full.get_or_insert(WhenFull::Wait);
        self.call.own(&mut job, deadline);
        Ok(job)
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

/// A status inside of a message, with the same code, text and details as the status of a call.
pub(super) fn failure(status: &Status) -> JobFailure {
    use prost::Message;
    let details = tonic_types::pb::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
    let details = details.into_iter().map(|any| prost_types::Any { type_url: any.type_url, value: any.value });
    JobFailure { code: status.code() as i32, message: status.message().to_owned(), details: details.collect() }
}
