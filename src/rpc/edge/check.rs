//! Passes a call on, or answers it.

use std::{convert::Infallible, future::ready, sync::Arc};

use futures_util::future::{BoxFuture, Either};
use http::Response;
use hyper::service::Service;
use tonic::body::Body;

use crate::{memory::ConnectionMemory, rpc::answer_body::AnswerBody};

/// A check of each call.
pub trait Check<R> {
    /// The answer to a call that fails the check. It has no load report, which only accepted callers may see. A
    /// balancer keeps the weight of the last report (gRFC A58).
    fn refuse(&self, call: &mut R) -> Option<Response<Body>>;
}

/// Passes on calls that pass a check.
#[derive(Clone)]
pub struct Checked<C, S> {
    pub(super) check: C,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) inner: S,
}

/// An answer from a check. Boxed, so that other calls need no space for it.
pub(super) type Made = BoxFuture<'static, Result<Response<AnswerBody>, Infallible>>;

/// An optional check.
impl<R, C: Check<R>> Check<R> for Option<C> {
    fn refuse(&self, call: &mut R) -> Option<Response<Body>> {
        self.as_ref()?.refuse(call)
    }
}

impl<R, C, S> Service<R> for Checked<C, S>
where
    C: Check<R>,
    S: Service<R, Response = Response<AnswerBody>, Error = Infallible>,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Either<Made, S::Future>;

    fn call(&self, mut call: R) -> Self::Future {
        match self.check.refuse(&mut call) {
            Some(refusal) => Either::Left(Box::pin(ready(Ok(AnswerBody::plain(refusal, Arc::clone(&self.memory)))))),
            None => Either::Right(self.inner.call(call)),
        }
    }
}
