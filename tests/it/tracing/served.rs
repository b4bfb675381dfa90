//! One trace through a running server: the caller, its call, the queue and the attempt, and a further call that the
//! handler makes from a task.

use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::SpanData;
use tokio::time::Instant;
use waterwheel::{
    Job, Output,
    app::OwnKind,
    handler::{Context, Kind},
    model::HandlerError,
    proto::{SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient},
    rpc::propagate::Propagate,
};

use super::exported;
use crate::{
    process::PATIENCE,
    refusal::{Way, request},
    service::{Address, Caller, Service, job, queued},
    support::{Gate, blocking_kind, echo, gated, kind},
};

/// Each pool has one worker. The first job occupies it, so the next one is queued.
const CONFIG: &str = r#"
    server.threads = 2
    [pool.first]
    workers = 1
    queue = { jobs = 1 }
    [pool.second]
    workers = 1
"#;
const CALLER_SPAN: &str = "b7ad6b7169203331";
const SERVICE: &str = "waterwheel.v1.WorkerPoolService";

/// The `traceparent` that a handler sends to the next service.
fn handed_on(cx: &Context) -> String {
    cx.outgoing_trace().map(|trace| trace.traceparent).unwrap_or_default()
}

/// Calls the service at the address in the payload, from a shielded task.
async fn relay(job: Job, cx: Context) -> Result<Output, HandlerError> {
    let address = std::str::from_utf8(&job.payload).expect("an address").parse().expect("an address");
    let propagate = Propagate::new(&cx);
    let (shielded, parent) = (cx.clone(), handed_on(&cx));
    let next = async move {
        assert_eq!(handed_on(&shielded), parent, "a shielded task belongs to the span of the attempt");
        let channel = Address(address).channel().await;
        let mut client = WorkerPoolServiceClient::with_interceptor(channel, propagate);
        client.submit(SubmitRequest { job: Some(crate::service::job("echo", "")) }).await.expect("completed");
    };
    cx.shield(next).await?;
    Ok(Output::default())
}

/// Waits for this number of exported spans of a trace. A span is exported when it ends, which may be after the answer.
async fn spans_of(trace_id: &str, count: usize) -> Vec<SpanData> {
    let begin = Instant::now();
    loop {
        let mut spans = exported().get_finished_spans().expect("in memory");
        spans.retain(|span| span.span_context.trace_id().to_string() == trace_id);
        if spans.len() >= count {
            return spans;
        }
        assert!(begin.elapsed() < PATIENCE, "spans are missing: {spans:#?}");
        tokio::task::yield_now().await;
    }
}

/// The only span with this name and parent.
fn below<'a>(spans: &'a [SpanData], parent: &str, name: &str) -> &'a SpanData {
    let found: Vec<_> =
        spans.iter().filter(|span| span.name == name && span.parent_span_id.to_string() == parent).collect();
    let [span] = found[..] else { panic!("{} times {name} below {parent}: {spans:#?}", found.len()) };
    span
}

#[tokio::test]
async fn calls_queue_waits_and_attempts_share_a_trace() {
    // The subscriber must exist before the first span starts.
    exported();
    let gate = Gate::new();
    let own = |pool: &str, kind: Kind| OwnKind::new(pool, kind);
    let own = vec![own("first", gated("holds", &gate)), own("first", kind("relay", relay)), own("second", echo())];
    let service = Service::start_sampling(CONFIG, own, Some(0.0));
    let observer = Caller::of(service.public).await;
    for way in Way::ALL {
        let occupied = observer.leave(job("holds", ""));
        observer.until_all(|pools| pools[0].in_flight == 1).await;
        let trace_id = uuid::Uuid::now_v7().simple().to_string();
        let (traceparent, request_id) = (format!("00-{trace_id}-{CALLER_SPAN}-01"), format!("traced-{way:?}"));
        let headers = [("traceparent", traceparent.as_str()), ("x-request-id", &request_id)];
        let traced = way.end(&observer.0, Some(job("relay", service.public.0.to_string())), &headers);
        let queues = async {
            observer.until_all(|pools| queued(&pools[0]) == 1).await;
            gate.let_pass(1);
        };
        tokio::join!(traced, queues).0.expect("completed");
        occupied.await.expect("no panic").expect("completed");
        check(&spans_of(&trace_id, 5).await, &format!("{way:?}"), &request_id);
    }
}

/// A call of a blocking kind, first without a trace and then with one.
#[tokio::test]
async fn a_blocking_handler_hands_on_the_trace_of_its_call_if_there_is_one() {
    exported();
    let blocks = blocking_kind("blocks", |_, cx| Ok(Output::new(handed_on(&cx))));
    let service = Service::start_sampling(CONFIG, vec![OwnKind::new("first", blocks)], Some(0.0));
    let trace_id = uuid::Uuid::now_v7().simple().to_string();
    let traceparent = format!("00-{trace_id}-{CALLER_SPAN}-01");
    let mut client = service.public.client().await;
    let mut handed_on = async |headers: &[(&'static str, &str)]| {
        let answer = client.submit(request(SubmitRequest { job: Some(job("blocks", "")) }, headers)).await;
        String::from_utf8(answer.expect("completed").into_inner().result.expect("a result").output).expect("text")
    };
    assert_eq!(handed_on(&[]).await, "");
    let parent = handed_on(&[("traceparent", &traceparent)]).await;
    let spans = spans_of(&trace_id, 2).await;
    let call = below(&spans, CALLER_SPAN, &format!("{SERVICE}/Submit"));
    let attempt = below(&spans, &call.span_context.span_id().to_string(), "process blocks");
    assert_eq!(parent, format!("00-{trace_id}-{}-01", attempt.span_context.span_id()));
}

fn check(spans: &[SpanData], method: &str, request_id: &str) {
    assert_eq!(spans.len(), 5, "{spans:#?}");
    let id = |span: &SpanData| span.span_context.span_id().to_string();
    let call = below(spans, CALLER_SPAN, &format!("{SERVICE}/{method}"));
    let queue = below(spans, &id(call), "queue");
    let attempt = below(spans, &id(call), "process relay");
    let next_call = below(spans, &id(attempt), &format!("{SERVICE}/Submit"));
    let next_attempt = below(spans, &id(next_call), "process echo");
    for (span, kind, remote) in [
        (call, SpanKind::Server, true),
        (queue, SpanKind::Internal, false),
        (attempt, SpanKind::Consumer, false),
        (next_call, SpanKind::Server, true),
        (next_attempt, SpanKind::Consumer, false),
    ] {
        assert_eq!((&span.span_kind, span.parent_span_is_remote), (&kind, remote), "{}", span.name);
        let attribute = span.attributes.iter().find(|pair| pair.key.as_str() == "request_id");
        assert_eq!(attribute.expect("identity").value.as_str(), request_id, "{}", span.name);
    }
    let times = [call.start_time, queue.start_time, queue.end_time, attempt.start_time];
    assert!(times.is_sorted(), "{method}: {times:?}");
    assert!(attempt.start_time <= next_call.start_time && next_attempt.end_time <= attempt.end_time, "{method}");
}
