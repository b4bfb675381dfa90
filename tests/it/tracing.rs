//! One trace from the caller's span to the attempt, and out of the process.

mod plain;
mod served;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::{Request, Response, body::Frame, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::InMemorySpanExporter;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    task::spawn_blocking,
    time::Instant,
};
use tonic::Code;
use waterwheel::{
    Job, Output, Pool,
    handler::{BlockingHandler, Context, Handler, Kind},
    model::{HandlerError, RequestId, TraceContext},
    rpc::trace::{self, Sampler},
    task::Tasks,
    telemetry::{self, Config, Telemetry},
};

/// What a traced caller sends.
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Says what it would hand on, once it is let go.
struct Relay(Arc<Semaphore>);

impl Handler for Relay {
    async fn handle(&mut self, _job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let _open = self.0.acquire().await.expect("never closed");
        tracing::info!("relayed");
        let shielded = cx.clone();
        let parent = cx.shield(async move { handed_on(&shielded) }).await?;
        assert_eq!(parent, handed_on(&cx), "a task of its own stays in the attempt");
        Ok(Output::new(parent))
    }
}

struct BlockingRelay;

impl BlockingHandler for BlockingRelay {
    fn handle(&mut self, _job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        Ok(Output::new(handed_on(&cx)))
    }
}

fn handed_on(cx: &Context) -> String {
    cx.outgoing_trace().map(|trace| trace.traceparent).unwrap_or_default()
}

/// The spans that this process exports. Spans end on whatever thread drops them last, so the subscriber must be that of
/// the process.
fn exported() -> &'static InMemorySpanExporter {
    static EXPORTED: OnceLock<(Telemetry, InMemorySpanExporter)> = OnceLock::new();
    let (_telemetry, exporter) = EXPORTED.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let config = Config { log: "off".into(), ..Config::default() };
        let (telemetry, subscriber) =
            telemetry::with_exporter(&config, exporter.clone(), std::io::sink).expect("sound");
        tracing::dispatcher::set_global_default(subscriber).expect("no other file of this binary sets one");
        (telemetry, exporter)
    });
    exporter
}

/// Two calls on a pool of one worker: the first is not traced; the second comes from `caller`, and waits in the queue.
/// What each hands on.
async fn two_calls(kind: &str, caller: &TraceContext, request_id: &RequestId) -> [String; 2] {
    let (gate, sampler) = (Arc::new(Semaphore::new(0)), Sampler::new(Some(0.0)));
    let held = Arc::clone(&gate);
    let pool = Pool::builder("media")
        .workers(NonZeroUsize::MIN)
        .kind(Kind::new("relay", move || Relay(Arc::clone(&held))))
        .kind(Kind::blocking("blocking", || BlockingRelay))
        .build();
    let submit = |kind, request_id: &RequestId, trace: Option<TraceContext>| {
        let call = trace::call("Submit", request_id.clone(), trace, &sampler);
        let mut job = Job::new(kind, "");
        job.call = Some(Arc::new(call));
        pool.submit(job)
    };
    let (first, second, ()) = tokio::join!(
        biased;
        submit("relay", &RequestId::generate(), None),
        submit(kind, request_id, Some(caller.clone())),
        async {
            assert_eq!((pool.stats().in_flight, pool.stats().queued), (1, 1));
            gate.add_permits(2);
        },
    );
    [first, second]
        .map(|ended| String::from_utf8(ended.expect("completed").output.bytes.into()).expect("the value of a header"))
}

#[test]
fn a_chosen_call_is_exported_below_its_caller_and_another_is_not() {
    let exporter = InMemorySpanExporter::default();
    let config = Config::default();
    let (_telemetry, subscriber) = telemetry::with_exporter(&config, exporter.clone(), std::io::sink).expect("sound");
    let request_id = RequestId::generate();
    tracing::dispatcher::with_default(&subscriber, || {
        for (flags, code) in [("01", Code::Internal), ("01", Code::NotFound), ("00", Code::Ok)] {
            let trace = TraceContext {
                traceparent: format!("{}{flags}", &CALLER[..53]),
                tracestate: "a=1".into(),
                baggage: String::new(),
            };
            let call = trace::call("Submit", request_id.clone(), Some(trace), &Sampler::new(Some(0.0)));
            assert_eq!(call.child_spans, flags == "01");
            call.span.in_scope(|| tracing::info!("in the call"));
            trace::record_status(&call, code);
        }
    });
    let spans = exporter.get_finished_spans().expect("in memory");
    assert_eq!(spans.len(), 2, "{spans:#?}");
    for (span, (code, status)) in spans.iter().zip([("13", Status::error("")), ("5", Status::Unset)]) {
        assert_eq!(span.name, "waterwheel.v1.WorkerPoolService/Submit");
        assert_eq!(span.span_kind, SpanKind::Server);
        assert_eq!(span.span_context.trace_id().to_string(), CALLER[3..35]);
        assert_eq!(span.parent_span_id.to_string(), CALLER[36..52]);
        assert!(span.parent_span_is_remote);
        assert_eq!(span.span_context.trace_state().header(), "a=1");
        assert_eq!(span.status, status);
        let pairs: BTreeMap<_, _> =
            span.attributes.iter().map(|pair| (pair.key.as_str(), pair.value.to_string())).collect();
        let expected = [
            ("request_id", request_id.as_str()),
            ("rpc.method", "Submit"),
            ("rpc.service", "waterwheel.v1.WorkerPoolService"),
            ("rpc.status_code", code),
            ("rpc.system", "grpc"),
        ];
        assert_eq!(pairs, expected.map(|(name, value)| (name, value.to_owned())).into());
        assert_eq!(span.events.len(), 1, "the line of log");
    }
}

#[tokio::test]
async fn call_queue_and_attempt_are_one_trace() {
    for kind in ["relay", "blocking"] {
        let trace_id = uuid::Uuid::now_v7().simple().to_string();
        let traceparent = format!("00-{trace_id}-b7ad6b7169203331-01");
        let caller = TraceContext { traceparent, ..TraceContext::default() };
        let request_id = RequestId::generate();
        let exporter = exported();
        let handed_on = two_calls(kind, &caller, &request_id).await;
        let mut spans = exporter.get_finished_spans().expect("in memory");
        spans.retain(|span| span.span_context.trace_id().to_string() == trace_id);
        let find = |name: &str| {
            spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in {spans:#?}"))
        };
        let call = find("waterwheel.v1.WorkerPoolService/Submit");
        let (queue, attempt) = (find("queue"), find(&format!("process {kind}")));
        assert_eq!(spans.len(), 3, "{spans:#?}");
        assert_eq!(call.parent_span_id.to_string(), "b7ad6b7169203331");
        assert_eq!(queue.parent_span_id, call.span_context.span_id());
        assert_eq!(attempt.parent_span_id, call.span_context.span_id());
        assert!(queue.end_time <= attempt.start_time && attempt.start_time <= attempt.end_time);
        for span in &spans {
            let id = span.attributes.iter().find(|pair| pair.key.as_str() == "request_id").expect("identity");
            assert_eq!(id.value.as_str(), request_id.as_str(), "{}", span.name);
        }
        let parent = format!("00-{trace_id}-{}-01", attempt.span_context.span_id());
        assert_eq!(handed_on, [String::new(), parent], "{kind}");
    }
}

/// Takes what any gRPC client sends and answers OK with an empty message.
async fn collector(tasks: &Tasks) -> (SocketAddr, mpsc::Receiver<(String, Bytes)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (sender, receiver) = mpsc::channel(16);
    tasks.spawn(async move {
        let (socket, _) = listener.accept().await.expect("a connection");
        let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
            let sender = sender.clone();
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.expect("whole").to_bytes();
                sender.send((path, body)).await.expect("the test listens");
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                let frames = [Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(trailers)];
                let frames = tokio_stream::iter(frames.map(Ok::<_, Infallible>));
                let response = Response::builder().header("content-type", "application/grpc");
                Ok::<_, Infallible>(response.body(StreamBody::new(frames)).expect("sound"))
            }
        });
        // It ends with the client's connection.
        let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), answer).await;
    });
    (address, receiver)
}

/// A process that exports to `address`, in which one call was made.
fn one_call(address: SocketAddr) -> (Telemetry, RequestId) {
    let config = Config { otlp: Some(format!("http://{address}")), sample_ratio: 1.0, ..Config::default() };
    let (telemetry, subscriber) = telemetry::build(&config, std::io::sink).expect("sound");
    let request_id = RequestId::generate();
    tracing::dispatcher::with_default(&subscriber, || {
        let call = trace::call("Submit", request_id.clone(), None, &Sampler::new(telemetry.sample_ratio()));
        assert!(call.child_spans);
    });
    (telemetry, request_id)
}

#[tokio::test]
async fn the_last_spans_reach_the_collector_on_exit() {
    let tasks = Tasks::new();
    let (address, mut exported) = collector(&tasks).await;
    let (telemetry, request_id) = one_call(address);
    spawn_blocking(move || telemetry.shutdown(Duration::from_secs(5))).await.expect("flushed");
    let (path, body) = exported.recv().await.expect("an export");
    assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    let body = String::from_utf8_lossy(&body);
    for part in ["waterwheel.v1.WorkerPoolService/Submit", "service.name", "service.version", request_id.as_str()] {
        assert!(body.contains(part), "{part} is missing: {body}");
    }
    tasks.wait().await;
    assert!(exported.recv().await.is_none(), "nothing of the exporter itself");
}

#[tokio::test]
async fn a_collector_that_is_absent_or_mute_does_not_hold_up_the_exit() {
    let absent = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("bound");
    // It takes connections, for the kernel does, and never says a word.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mute = listener.local_addr().expect("bound");
    for address in [absent, mute] {
        let (telemetry, _) = one_call(address);
        let begin = Instant::now();
        spawn_blocking(move || telemetry.shutdown(Duration::from_millis(200))).await.expect("ended");
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn dropped_in_asynchronous_code() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (telemetry, _) = one_call(listener.local_addr().expect("bound"));
    assert!(telemetry.sample_ratio().is_some());
    drop(telemetry);
}
