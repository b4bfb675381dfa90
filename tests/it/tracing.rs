//! One trace from the span of the caller to the attempt, and its export; log lines of jobs without an exporter.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::{Request, Response, body::Frame, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
use tokio::{net::TcpListener, sync::mpsc, task::spawn_blocking, time::Instant};
use tonic::Code;
use waterwheel::{
    Job, Output,
    app::OwnKind,
    auth::Rpc,
    handler::{Context, Kind},
    model::{HandlerError, RequestId, TraceContext},
    proto::{SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient},
    rpc::{
        propagate::Propagate,
        trace::{self, Sampler},
    },
    task::Tasks,
    telemetry::{self, Config, Telemetry},
};

use crate::{
    process::PATIENCE,
    refusal::{Way, request},
    service::{Address, Caller, Service, job, queued},
    support::{Gate, blocking_kind, echo, gated, kind},
};

/// The `traceparent` of a traced caller.
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The spans that this process exports.
///
/// A span may end on any thread, so the subscriber is the global one.
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

#[test]
fn only_sampled_calls_are_exported_as_children_of_their_callers() {
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
            let call = trace::call(Rpc::Submit, request_id.clone(), Some(trace), &Sampler::new(Some(0.0), 100));
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
        assert_eq!(span.events.len(), 1, "the log line");
    }
}

/// A gRPC server that accepts any message and answers OK with an empty one.
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
        // The result is an error when the client closes its connection.
        let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), answer).await;
    });
    (address, receiver)
}

/// Telemetry that exports to `address`, after one call.
fn one_call(address: SocketAddr) -> (Telemetry, RequestId) {
    let config = Config { otlp: Some(format!("http://{address}")), sample_ratio: 1.0, ..Config::default() };
    let (telemetry, subscriber) = telemetry::build(&config, std::io::sink).expect("sound");
    let request_id = RequestId::generate();
    tracing::dispatcher::with_default(&subscriber, || {
        let call = trace::call(Rpc::Submit, request_id.clone(), None, &Sampler::new(telemetry.sample_ratio(), 100));
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
    for part in [
        "waterwheel.v1.WorkerPoolService/Submit",
        "service.name",
        "service.version",
        "service.instance.id",
        request_id.as_str(),
    ] {
        assert!(body.contains(part), "{part} is missing: {body}");
    }
    tasks.wait().await;
    assert!(exported.recv().await.is_none(), "the exporter does not trace itself");
}

#[tokio::test]
async fn an_absent_or_silent_collector_does_not_delay_the_exit() {
    let absent = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("bound");
    // The kernel accepts connections for this listener, which never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent = listener.local_addr().expect("bound");
    for address in [absent, silent] {
        let (telemetry, _) = one_call(address);
        let begin = Instant::now();
        spawn_blocking(move || telemetry.shutdown(Duration::from_millis(200))).await.expect("ended");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn telemetry_can_be_dropped_in_asynchronous_code() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (telemetry, _) = one_call(listener.local_addr().expect("bound"));
    assert!(telemetry.sample_ratio().is_some());
    drop(telemetry);
}

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

const PLAIN: &str = "server.threads = 2\n[pool.one]\nworkers = 1\n";
/// Name of the test that serves under the subscriber.
const SERVES: &str = "tracing::serves_under_a_plain_subscriber";

fn says() -> Kind {
    kind("says", |_, cx| async move {
        tracing::info!("says in the handler");
        tokio::task::yield_now().await;
        tracing::info!("says after a wait");
        tokio::spawn(cx.scope(async { tracing::info!("says in a task") })).await.expect("it ends");
        cx.shield(async { tracing::info!("says in a shield") }).await?;
        Ok(Output::default())
    })
}

fn says_blocking() -> Kind {
    blocking_kind("blocks", |_, _| {
        tracing::info!("says on a thread");
        Ok(Output::default())
    })
}

/// The subscriber is global, so this test runs in a process of its own.
#[test]
#[ignore = "the test below runs it in a new process"]
fn serves_under_a_plain_subscriber() {
    tracing_subscriber::fmt().with_ansi(false).init();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let own = [says(), says_blocking()].map(|kind| OwnKind::new("one", kind));
        let service = Service::start(PLAIN, own.into());
        let caller = Caller::of(service.public).await;
        for (way, kind) in Way::ALL.map(|way| (way, "says")).into_iter().chain([(Way::Submit, "blocks")]) {
            let id = format!("{way:?}-{kind}");
            way.end(&caller.0, Some(job(kind, "")), &[("x-request-id", &id)]).await.expect("completed");
        }
    });
}

#[test]
fn every_line_of_a_job_has_its_request_id_under_any_subscriber() {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", SERVES, "--ignored", "--nocapture"]).stderr(Stdio::inherit());
    let output = command.output().expect("it runs");
    let output = String::from_utf8_lossy(&output.stdout);
    let count = |id: &str| {
        let id = format!("request_id=\"{id}\"");
        output.lines().filter(|line| line.contains("says ") && line.contains(&id)).count()
    };
    let counts = ["Submit-says", "Submit-blocks", "Stream-says", "SubmitMany-says"].map(count);
    assert_eq!(counts, [4, 1, 4, 4], "{output}");
    let unnamed: Vec<_> =
        output.lines().filter(|line| line.contains("says ") && !line.contains("request_id=")).collect();
    assert_eq!(unnamed, [""; 0], "{output}");
}
