//! `SubmitMany`: many jobs on one call, results as they finish.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use futures_util::{FutureExt, StreamExt, future::OptionFuture, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::{
    Arrival,
    calls::{Calls, Meter},
    context::CallContext,
    convert,
    message_stream::Messages,
    service_state::{ResponseStream, ServiceState},
    status,
};
use crate::{
    auth::{Hold, Rpc},
    memory::{AnswersFull, Charge, ConnectionMemory},
    model::{Completed, Deadline, Job, JobError, WhenFull},
    pool::{CapacityWait, Ticket},
    proto::{JobFailure, SubmitManyRequest, SubmitManyResponse, submit_many_response::Outcome},
};

pub(super) const MAX_TAG: usize = 64;
/// Bytes of unread output at which no more jobs are read. Running jobs may exceed it.
const MAX_UNREAD_BYTES: usize = 4 << 20;

/// Runs the jobs of a call.
///
/// A separate task drives the jobs, so that a caller that does not read its results does not block workers. Unread
/// results count against the window. While the window or the pool is full, no more jobs are read.
pub(super) fn submit_many(
    service: &Arc<ServiceState>,
    request: Request<Streaming<SubmitManyRequest>>,
) -> Result<Response<ResponseStream<SubmitManyResponse>>, Status> {
    let refused = |status: &Status| service.calls.refuse(Rpc::SubmitMany, status.code());
    let call = CallContext::read(&request, Rpc::SubmitMany, &service.sampler).inspect_err(refused)?;
    let meter = Calls::begin(service.calls.clone(), Rpc::SubmitMany, None, call.at);
    let memory = request.extensions().get().map(|arrival: &Arrival| Arc::clone(&arrival.memory));
    // The results within the window, and the final status.
    let (results, reader) = mpsc::channel(service.window + 1);
    let unread = Arc::<UnreadOutput>::default();
    let taken = Arc::clone(&unread);
    let reader = ReceiverStream::new(reader).map(move |result: Result<JobAnswer, Status>| {
        let JobAnswer { message, .. } = result?;
        taken.remove(output_bytes(&message));
        Ok(message)
    });
    let response = call.answer(Box::pin(reader) as _);
    let driver = Driver {
        service: Arc::clone(service),
        inbound: Messages::of(&request, service.largest_message),
        memory,
        call,
        results,
        unread,
        running: FuturesUnordered::new(),
        full: None,
        reading: true,
        last: None,
    };
    service.tasks.spawn(driver.run(meter));
    Ok(response)
}

struct Driver {
    service: Arc<ServiceState>,
    inbound: Messages<SubmitManyRequest>,
    memory: Option<Arc<ConnectionMemory>>,
    call: CallContext,
    /// Results on their way to the reader of the call. It always has a place for those of the running jobs.
    results: mpsc::Sender<Result<JobAnswer, Status>>,
    unread: Arc<UnreadOutput>,
    running: FuturesUnordered<Parked>,
    /// The job that found its pool full. No more jobs are read until it has capacity.
    full: Option<CapacityWait>,
    /// Whether more jobs may come.
    reading: bool,
    /// Final status of the call, after all jobs are answered; `None` is OK.
    last: Option<Status>,
}

/// The result of one job, with what it holds until it is read.
struct JobAnswer {
    message: SubmitManyResponse,
    /// Its memory among unread answers.
    _charge: Option<Charge>,
    /// The tenant's quota.
    _hold: Option<Hold>,
}

/// Output bytes of the results that are not read.
#[derive(Default)]
struct UnreadOutput {
    bytes: AtomicUsize,
    /// Notified when more jobs may be read again.
    below: Notify,
}

impl UnreadOutput {
    fn may_read(&self) -> bool {
        self.bytes.load(Relaxed) <= MAX_UNREAD_BYTES
    }

    fn remove(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        if before > MAX_UNREAD_BYTES && self.may_read() {
            self.below.notify_one();
        }
    }
}

fn output_bytes(message: &SubmitManyResponse) -> usize {
    match &message.outcome {
        Some(Outcome::Result(result)) => result.output.len(),
        Some(Outcome::Failure(_)) | None => 0,
    }
}

/// A job that was still pending after its first poll.
struct Parked {
    tag: String,
    ticket: Ticket,
    /// The tenant's quota, held until the answer is sent.
    hold: Option<Hold>,
}

impl Future for Parked {
    type Output = (String, Result<Completed, JobError>, Option<Hold>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.ticket.poll_unpin(cx);
        outcome.map(|outcome| (std::mem::take(&mut self.tag), outcome, self.hold.take()))
    }
}

impl Driver {
    /// Drives the call to its end. Dropping the driver cancels its remaining jobs.
    async fn run(mut self, meter: Meter<Calls>) {
        let last = self.drive().await;
        let code = last.as_ref().map_or(Code::Ok, Status::code);
        self.call.end(meter, code);
        if let Some(last) = last {
            // The caller may have left.
            let _ = self.results.try_send(Err(last));
        }
    }

    /// Returns the call's final status; `None` is OK.
    async fn drive(&mut self) -> Option<Status> {
        let pools = self.service.pools.clone();
        let mut closing = std::pin::pin!(async move { pools.closing().await }.fuse());
        let mut late = std::pin::pin!(OptionFuture::from(self.end().map(sleep_until)));
        let (results, unread) = (self.results.clone(), Arc::clone(&self.unread));
        let mut left = std::pin::pin!(results.closed());
        loop {
            self.take_received();
            if !self.reading && self.running.is_empty() {
                return self.last.take();
            }
            let may_read = self.may_read();
            // A full pool is awaited separately. Otherwise the loop would spin while the window has capacity.
            let window_is_full = self.reading && self.full.is_none() && !may_read;
            // The places of the running jobs, of one more job, and of the final status.
            let places = self.running.len() + 2;
            let has_read = async {
                let _ = results.reserve_many(places).await;
                while !unread.may_read() {
                    unread.below.notified().await;
                }
            };
            tokio::select! {
                biased;
                // Jobs that share the call's deadline are answered one by one before the call ends.
                Some((tag, outcome, hold)) = self.running.next() => self.answer(tag, outcome, hold),
                () = &mut left => return Some(Status::cancelled("the caller left")),
                Some(()) = &mut late => return Some(status::too_late(self.call.request_id())),
                () = &mut closing, if self.reading => {
                    self.reading = false;
                    self.last = Some(status::draining(self.call.request_id()));
                }
                message = self.inbound.message(), if may_read => {
                    let deadline = self.deadline();
                    self.take(message, deadline);
                }
                Some(()) = OptionFuture::from(self.full.as_ref().map(CapacityWait::end)) => {
                    self.full = self.full.take().filter(CapacityWait::is_waiting);
                }
                () = has_read, if window_is_full && self.running.len() < self.service.window => {}
            }
        }
    }

    /// Reads all received jobs, with one reading of the clock: waiting costs more than a short job.
    fn take_received(&mut self) {
        let mut batch = None;
        while self.may_read() {
            let Some(message) = self.inbound.message().now_or_never() else { return };
            let deadline = *batch.get_or_insert_with(|| self.deadline());
            self.take(message, deadline);
        }
    }

    /// Whether another job may be read: neither the pool nor the window is full.
    fn may_read(&self) -> bool {
        let has_place = self.running.len() + 1 < self.results.capacity();
        self.reading && self.full.is_none() && has_place && self.unread.may_read()
    }

    /// When the call ends: after its last jobs, which are answered at the start of the reply margin.
    fn end(&self) -> Option<Instant> {
        let deadline = self.service.deadline.fix(self.call.at, self.call.timeout);
        self.call.timeout.is_some().then(|| deadline.reply_by() + (deadline.end() - deadline.reply_by()) / 2)
    }

    /// The deadline of jobs that arrive now.
    fn deadline(&self) -> Deadline {
        self.call.later_deadline(&self.service.deadline, Instant::now())
    }

    fn take(&mut self, message: Result<Option<SubmitManyRequest>, Status>, deadline: Deadline) {
        match message {
            Ok(Some(request)) => self.start(request, deadline),
            Ok(None) => self.reading = false,
            Err(refusal) => {
                self.reading = false;
                self.last = Some(self.call.with_request_id(status::refused_by_codec(refusal)));
            }
        }
    }

    fn start(&mut self, request: SubmitManyRequest, deadline: Deadline) {
        let SubmitManyRequest { tag, job } = request;
        let admitted = self.job(&tag, job.map(|job| *job), deadline).and_then(|mut job| {
            let hold = self.service.access.admit(&self.service.pools, Rpc::SubmitMany, &self.call, &mut job)?;
            Ok((job, hold))
        });
        let (job, hold) = match admitted {
            Ok(admitted) => admitted,
            Err(status) => return self.push(tag, Outcome::Failure(failure(&status)), None, None),
        };
        // Only pending jobs are parked; they are polled again there.
        let mut ticket = match self.service.pools.try_submit(job) {
            Ok(ticket) => ticket,
            Err(rejection) => return self.answer(tag, Err(rejection.into()), hold),
        };
        match ticket.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => self.answer(tag, outcome, hold),
            Poll::Pending => {
                self.full = ticket.capacity_wait().filter(CapacityWait::is_waiting);
                self.running.push(Parked { tag, ticket, hold });
            }
        }
    }

    fn answer(&mut self, tag: String, outcome: Result<Completed, JobError>, hold: Option<Hold>) {
        let mut charge = None;
        let outcome = match outcome {
            Ok(completed) => match self.memory.as_ref().map_or(Ok(None), |it| it.reserve(completed.output.bytes.len()))
            {
                Ok(reserved) => {
                    charge = reserved;
                    Outcome::Result(Box::new(convert::job_result(completed)))
                }
                Err(AnswersFull) => Outcome::Failure(failure(&status::answers_full())),
            },
            Err(error) => Outcome::Failure(failure(&status::status(&error, self.call.request_id()))),
        };
        self.push(tag, outcome, charge, hold);
    }

    fn push(&self, tag: String, outcome: Outcome, charge: Option<Charge>, hold: Option<Hold>) {
        let message = SubmitManyResponse { tag, outcome: Some(outcome) };
        self.unread.bytes.fetch_add(output_bytes(&message), Relaxed);
        // The caller may have left.
        let _ = self.results.try_send(Ok(JobAnswer { message, _charge: charge, _hold: hold }));
    }

    fn job(&self, tag: &str, job: Option<crate::proto::Job>, deadline: Deadline) -> Result<Box<Job>, Status> {
        if tag.len() > MAX_TAG {
            return Err(self.call.invalid("tag", format!("longer than {MAX_TAG} bytes")));
        }
        let job = convert::job(job);
        let mut job = job.map_err(|violations| status::unreadable(violations, self.call.request_id()))?;
        job.when_full.get_or_insert(WhenFull::Wait);
        self.call.attach_to(&mut job, deadline);
        Ok(job)
    }
}

/// The status for one job of a call, with the same code, text and details as the status of a call.
pub(super) fn failure(status: &Status) -> JobFailure {
    use prost::Message;
    let details = tonic_types::pb::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
    JobFailure { code: status.code() as i32, message: status.message().to_owned(), details }
}
