//! One run of a detached job in its pool.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::time::Instant;

use super::{Inner, MAX_RUN, outcome};
use crate::{
    model::{Attempt, AttemptToken, Call, Completed, Deadline, Job, JobError, Rejection, WhenFull},
    pool::Ticket,
    store::{Claimed, Settle, Token},
};

/// Longest wait in the pool: far more than its look-ahead takes.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Time without jobs of a kind that its pool refused, unless the pool says more.
const REFUSED_FOR: Duration = Duration::from_millis(500);

/// How a run ended.
pub(super) enum End {
    /// The pool refused it.
    Refused(Rejection),
    /// It had not begun when the process was asked to stop.
    NotBegun,
    Ended(Result<Completed, JobError>),
}

impl Inner {
    /// Runs a job to the end of its attempt.
    pub(super) async fn run_one(&self, claimed: Claimed, pool: Arc<str>) -> Settle {
        let (kind, bytes) = (claimed.request.job.kind.clone(), claimed.request.job.payload.len());
        let mut place = Place { inner: self, pool, kind, bytes, has_begun: false };
        let Token { id, attempt, session, .. } = &claimed.token;
        let token = AttemptToken { job: id.clone(), number: *attempt, epoch: session.number() };
        let attempt = Arc::new(Attempt::new(token));
        let end = match self.pools.try_submit(job(&claimed, &attempt)) {
            Ok(ticket) => {
                let id = ticket.job();
                self.running.lock().insert(claimed.token.clone(), (id, attempt));
                let end = self.follow(ticket, &mut place).await;
                self.running.lock().remove(&claimed.token);
                if let End::Ended(Err(error)) = &end
                    && outcome::is_given_back(error)
                {
                    self.returned.lock().insert(id);
                }
                end
            }
            Err(rejection) => {
                let pause = rejection.retry_after.unwrap_or_default().max(REFUSED_FOR);
                self.claims.lock().refuse(&claimed.request.job.kind, Instant::now() + pause);
                End::Refused(rejection)
            }
        };
        let worker = place.pool.to_string();
        drop(place);
        outcome::settle(claimed, end, worker, rand::random())
    }

    /// Waits for the end of a job. A stop gives it back if it has not begun.
    async fn follow(&self, ticket: Ticket, place: &mut Place<'_>) -> End {
        let mut ticket = ticket;
        let mut stopped = pin!(self.stop.cancelled());
        poll_fn(|cx| {
            if let Poll::Ready(ended) = pin!(&mut ticket).poll(cx) {
                return Poll::Ready(End::Ended(ended));
            }
            if ticket.has_begun() {
                place.begin();
                return Poll::Pending;
            }
            stopped.as_mut().poll(cx).map(|()| End::NotBegun)
        })
        .await
    }
}

/// The job as its pool gets it: its time is bounded by its run, and it waits for capacity.
fn job(claimed: &Claimed, attempt: &Arc<Attempt>) -> Job {
    let request = &claimed.request;
    let run = request.job.run_timeout.unwrap_or(MAX_RUN).min(MAX_RUN);
    let attempt = Some(Arc::clone(attempt));
    let call = Call { request_id: request.request_id.parse().ok(), attempt, ..Call::here() };
    Job {
        timeout: None,
        run_timeout: Some(run),
        queue_timeout: None,
        when_full: Some(WhenFull::Wait),
        // The margin of an answer is a tenth of it at most.
        deadline: Some(Deadline::new(Instant::now(), (MAX_RUN + MAX_WAIT) * 2, Duration::ZERO)),
        call: Some(Arc::new(call)),
        ..request.job.clone()
    }
}

/// The place of a job among those of its pool, counted until it is dropped.
struct Place<'a> {
    inner: &'a Inner,
    pool: Arc<str>,
    kind: String,
    /// Size of its payload.
    bytes: usize,
    has_begun: bool,
}

impl Place<'_> {
    fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.inner.claims.lock().left(&self.pool, &self.kind, self.bytes);
            self.inner.freed.notify_one();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.begin();
        self.inner.claims.lock().ended(&self.pool);
        self.inner.freed.notify_one();
    }
}
