//! Translates gRPC-Web, which web pages speak, to gRPC.

use std::{convert::Infallible, fmt, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt, future::Either};
use http::{Request, Response};
use hyper::service::Service;
use tonic::body::Body;

use super::{Failure, check::Made};
use crate::{
    memory::ConnectionMemory,
    rpc::{Browsers, answer_body::AnswerBody},
};

/// Translates calls of gRPC-Web, if web pages may call.
#[derive(Clone)]
pub struct GrpcWeb<S> {
    pub(super) browsers: Option<Browsers>,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) inner: S,
}

impl<B, S> Service<Request<B>> for GrpcWeb<S>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Failure> + Send + fmt::Display,
    S: Service<Request<B>, Response = Response<AnswerBody>, Error = Infallible>
        + Service<Request<Body>, Response = Response<AnswerBody>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    <S as Service<Request<Body>>>::Future: Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Either<Made, <S as Service<Request<B>>>::Future>;

    fn call(&self, request: Request<B>) -> Self::Future {
        match self.browsers.as_ref().filter(|browsers| browsers.apply_to(&request)) {
            Some(browsers) => {
                let memory = Arc::clone(&self.memory);
                let answer = browsers.answer(self.inner.clone(), request);
                Either::Left(Box::pin(answer.map(|answer| answer.map(|answer| AnswerBody::plain(answer, memory)))))
            }
            None => Either::Right(self.inner.call(request)),
        }
    }
}
