//! Passes the deadline, trace and request id of a job on to gRPC servers that its handler calls.

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::{Request, Status, service::Interceptor};

use super::{
    context::REQUEST_ID,
    timeout,
    trace::{BAGGAGE, TRACEPARENT, TRACESTATE},
};
use crate::handler::Context;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static(timeout::GRPC_TIMEOUT);
const X_REQUEST_ID: HeaderName = HeaderName::from_static(REQUEST_ID);

/// An interceptor for the clients of handlers. It adds the request id, the trace context, and a timeout: the smaller of
/// the call's own timeout and the job's remaining budget.
///
/// Without any remaining budget, a call ends with DEADLINE_EXCEEDED before anything is sent. The current span becomes
/// the parent of the callee's span.
///
/// ```
/// use tonic::transport::Channel;
/// use waterwheel::{
///     handler::Context,
///     proto::{Job, SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient},
///     rpc::propagate::Propagate,
/// };
///
/// async fn next_stage(channel: Channel, cx: &Context, job: Job) -> Result<(), tonic::Status> {
///     let mut client = WorkerPoolServiceClient::with_interceptor(channel, Propagate::new(cx));
///     client.submit(SubmitRequest { job: Some(job) }).await?;
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Propagate(Context);

impl Propagate {
    /// An interceptor for the job of `cx`.
    pub fn new(cx: &Context) -> Self {
        Self(cx.clone())
    }
}

impl Interceptor for Propagate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        fill(&self.0, request.metadata_mut().as_mut())?;
        Ok(request)
    }
}

fn fill(cx: &Context, headers: &mut HeaderMap) -> Result<(), Status> {
    let own = timeout::read(headers).unwrap_or_default();
    let left = own.map_or(cx.budget(), |own| own.min(cx.budget()));
    if left.is_zero() {
        return Err(Status::deadline_exceeded("the job has no time left for this call; it was not sent"));
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
    use std::time::Duration;

    use tokio::time::Instant;
    use tonic::{Code, metadata::MetadataValue};

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
    fn call(cx: &Context, headers: &[(&'static str, &'static str)]) -> Result<HeaderMap, Code> {
        let mut request = Request::new(());
        for (name, value) in headers {
            request.metadata_mut().insert(*name, MetadataValue::from_static(value));
        }
        let sent = Propagate::new(cx).call(request).map_err(|status| status.code())?;
        Ok(sent.metadata().as_ref().clone())
    }

    #[tokio::test(start_paused = true)]
    async fn the_smaller_timeout_wins() {
        let cx = context(Duration::from_secs(10), None);
        for (own, sent) in
            [(None, "9900000u"), (Some("2S"), "2000000u"), (Some("1H"), "9900000u"), (Some("soon"), "9900000u")]
        {
            let headers: Vec<_> = own.map(|own| ("grpc-timeout", own)).into_iter().collect();
            let got = call(&cx, &headers).expect("sent");
            assert_eq!(got.get("grpc-timeout").expect("set"), sent, "{own:?}");
        }
        tokio::time::advance(Duration::from_millis(9_899)).await;
        assert_eq!(call(&cx, &[]).expect("sent").get("grpc-timeout").expect("set"), "1000000n");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_without_a_budget() {
        let cx = context(Duration::from_secs(10), None);
        assert_eq!(call(&cx, &[("grpc-timeout", "0S")]), Err(Code::DeadlineExceeded));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(call(&cx, &[]), Err(Code::DeadlineExceeded));
    }

    #[tokio::test(start_paused = true)]
    async fn identity_goes_along() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let trace = TraceContext { traceparent: parent.into(), tracestate: String::new(), baggage: "k=v".into() };
        let cx = context(Duration::from_secs(10), Some(trace));
        let got = call(&cx, &[("x-request-id", "mine"), ("tracestate", "old=1"), ("accept", "x")]).expect("sent");
        assert_eq!(got.get("x-request-id").expect("set"), "r-1");
        assert_eq!(got.get("traceparent").expect("set"), parent);
        assert_eq!(got.get("tracestate"), None, "one that belongs to another parent");
        assert_eq!(got.get("baggage").expect("set"), "k=v");
        assert_eq!(got.get("accept").expect("kept"), "x");
    }
}
