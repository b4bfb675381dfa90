//! Passes deadline, trace and request id of a job on to gRPC servers that its handler calls.

use std::{
    future::{Ready, ready},
    task,
};

use futures_util::future::Either;
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;
use tower::{Layer, Service};

use super::{
    timeout,
    trace::{BAGGAGE, TRACEPARENT, TRACESTATE},
};
use crate::handler::Context;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static(timeout::GRPC_TIMEOUT);
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A client layer for handlers. Each call gets the smaller of its own timeout and the job's remaining budget, the
/// request id, and the trace context.
///
/// Without any budget left, a call ends with DEADLINE_EXCEEDED before anything is sent. The current span becomes the
/// parent of the callee's.
///
/// ```
/// use tonic::transport::Channel;
/// use tower::ServiceBuilder;
/// use waterwheel::{
///     handler::Context,
///     proto::{Job, SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient},
///     rpc::propagate::PropagateLayer,
/// };
///
/// async fn next_stage(channel: Channel, cx: &Context, job: Job) -> Result<(), tonic::Status> {
///     let channel = ServiceBuilder::new().layer(PropagateLayer::new(cx)).service(channel);
///     let mut client = WorkerPoolServiceClient::new(channel);
///     client.submit(SubmitRequest { job: Some(job) }).await?;
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct PropagateLayer {
    cx: Context,
}

/// The service that [`PropagateLayer`] makes.
#[derive(Debug, Clone)]
pub struct Propagate<S> {
    inner: S,
    cx: Context,
}

impl PropagateLayer {
    /// A layer for the job of `cx`.
    #[must_use]
    pub fn new(cx: &Context) -> Self {
        Self { cx: cx.clone() }
    }
}

impl<S> Layer<S> for PropagateLayer {
    type Service = Propagate<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Propagate { inner, cx: self.cx.clone() }
    }
}

impl<S, B, R> Service<http::Request<B>> for Propagate<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    R: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> task::Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        match fill(&self.cx, request.headers_mut()) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(refusal) => Either::Left(ready(Ok(refusal.into_http()))),
        }
    }
}

fn fill(cx: &Context, headers: &mut HeaderMap) -> Result<(), Status> {
    let own = headers.get(GRPC_TIMEOUT).and_then(|value| timeout::parse(value.to_str().ok()?).ok());
    let budget = cx.budget();
    let left = own.map_or(budget, |own| own.min(budget));
    if left.is_zero() {
        return Err(Status::deadline_exceeded("no budget is left for this call; it was not sent"));
    }
    set(headers, GRPC_TIMEOUT, &timeout::format(left));
    set(headers, X_REQUEST_ID, cx.request_id().as_str());
    if let Some(trace) = cx.outgoing_trace() {
        set(headers, TRACEPARENT, &trace.traceparent);
        set(headers, TRACESTATE, &trace.tracestate);
        if !trace.baggage.is_empty() {
            set(headers, BAGGAGE, &trace.baggage);
        }
    }
    Ok(())
}

/// Sets a header; removes it if the value is empty or invalid.
fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) if !value.is_empty() => headers.insert(name, value),
        _ => headers.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use tokio::time::Instant;
    use tonic::{Code, body::Body};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::{
        handler::ContextParts,
        model::{Call, Deadline, TraceContext},
    };

    fn context(budget: Duration, trace: Option<TraceContext>) -> Context {
        let deadline = Deadline::new(Instant::now(), budget, Duration::ZERO);
        let call = Call { trace, child_spans: false, ..Call::sample() };
        Context::new(ContextParts { deadline, ..ContextParts::of(call) })
    }

    /// What the callee gets, or the status that the caller gets without it.
    async fn call(cx: &Context, headers: &[(&'static str, &'static str)]) -> Result<HeaderMap, Code> {
        let callee = service_fn(async |request: http::Request<()>| {
            let mut response = http::Response::new(Body::default());
            *response.headers_mut() = request.headers().clone();
            Ok::<_, Infallible>(response)
        });
        let mut request = http::Request::new(());
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        let response = PropagateLayer::new(cx).layer(callee).oneshot(request).await.expect("infallible");
        match Status::from_header_map(response.headers()) {
            Some(status) => Err(status.code()),
            None => Ok(response.headers().clone()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_smaller_timeout_wins() {
        let cx = context(Duration::from_secs(10), None);
        for (own, sent) in
            [(None, "9900000u"), (Some("2S"), "2000000u"), (Some("1H"), "9900000u"), (Some("soon"), "9900000u")]
        {
            let headers: Vec<_> = own.map(|own| ("grpc-timeout", own)).into_iter().collect();
            let got = call(&cx, &headers).await.expect("sent");
            assert_eq!(got.get("grpc-timeout").expect("set"), sent, "{own:?}");
        }
        tokio::time::advance(Duration::from_millis(9_899)).await;
        assert_eq!(call(&cx, &[]).await.expect("sent").get("grpc-timeout").expect("set"), "1000000n");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_without_a_budget() {
        let cx = context(Duration::from_secs(10), None);
        assert_eq!(call(&cx, &[("grpc-timeout", "0S")]).await, Err(Code::DeadlineExceeded));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(call(&cx, &[]).await, Err(Code::DeadlineExceeded));
    }

    #[tokio::test(start_paused = true)]
    async fn identity_goes_along() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let trace = TraceContext { traceparent: parent.into(), tracestate: String::new(), baggage: "k=v".into() };
        let cx = context(Duration::from_secs(10), Some(trace));
        let got = call(&cx, &[("x-request-id", "mine"), ("tracestate", "old=1"), ("accept", "x")]).await.expect("sent");
        assert_eq!(got.get("x-request-id").expect("set"), "r-1");
        assert_eq!(got.get("traceparent").expect("set"), parent);
        assert_eq!(got.get("tracestate"), None, "one that belongs to another parent");
        assert_eq!(got.get("baggage").expect("set"), "k=v");
        assert_eq!(got.get("accept").expect("kept"), "x");
    }
}
