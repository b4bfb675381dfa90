//! Ends calls at their deadline, and calls that panic.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Response};
use hyper::service::Service;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::body::Body;

use super::route::Arrived;
use crate::{
    model::{Deadline, DeadlinePolicy},
    rpc::{
        context::{REQUEST_ID, request_id},
        status,
        timeout::{self, GRPC_TIMEOUT},
    },
};

/// Answers a call at its deadline, because its message may never arrive. Answers INTERNAL if a call panics.
#[derive(Clone)]
pub struct LateAnswers<S> {
    pub(super) inner: S,
}

/// The answer to one call.
pub struct DeadlineFuture<F> {
    answer: F,
    /// The request id that the caller sent.
    sent: Option<HeaderValue>,
    give_up: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<B, S> Service<Arrived<B>> for LateAnswers<S>
where
    S: Service<Arrived<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = DeadlineFuture<S::Future>;

    fn call(&self, call: Arrived<B>) -> Self::Future {
        let headers = call.request.headers();
        let (sent, give_up) = (headers.get(REQUEST_ID).cloned(), give_up(headers, call.arrival.at));
        DeadlineFuture { answer: self.inner.call(call), sent, give_up, alarm: None }
    }
}

/// When to give the call up: within the reply margin before the deadline, after the service's own answer is due.
fn give_up(headers: &HeaderMap, now: Instant) -> Option<Instant> {
    let asked = timeout::parse(headers.get(GRPC_TIMEOUT)?.to_str().ok()?).ok()?;
    // A deadline beyond the range of the clock is no deadline.
    now.checked_add(asked)?;
    let deadline = Deadline::new(now, asked, DeadlinePolicy::default().reply_margin);
    Some(deadline.reply_by() + (deadline.end() - deadline.reply_by()) / 2)
}

impl<F> DeadlineFuture<F> {
    /// Ready if the pending call has reached its deadline. The timer is created only for calls that wait.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(give_up) = self.give_up else { return Poll::Pending };
        self.alarm.get_or_insert_with(|| Box::pin(sleep_until(give_up))).poll_unpin(cx)
    }
}

impl<F> Future for DeadlineFuture<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = AssertUnwindSafe(|| self.answer.poll_unpin(cx));
        Poll::Ready(match catch_unwind(polled) {
            Ok(Poll::Ready(answer)) => answer,
            Ok(Poll::Pending) => {
                ready!(self.poll_alarm(cx));
                Ok(status::too_late(&request_id(self.sent.as_ref())).into_http())
            }
            Err(_) => {
                tracing::error!(request_id = ?self.sent, "a call panicked");
                Ok(status::panicked().into_http())
            }
        })
    }
}
