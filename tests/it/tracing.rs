//! One trace from the span of the caller to the attempt, and its export.

mod plain;
mod served;

use std::{collections::BTreeMap, convert::Infallible, net::SocketAddr, sync::OnceLock, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::{Request, Response, body::Frame, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::InMemorySpanExporter;
use tokio::{net::TcpListener, sync::mpsc, task::spawn_blocking, time::Instant};
use tonic::Code;
use waterwheel::{
    model::{RequestId, TraceContext},
    rpc::trace::{self, Sampler},
    task::Tasks,
    telemetry::{self, Config, Telemetry},
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
            let call = trace::call("Submit", request_id.clone(), Some(trace), &Sampler::new(Some(0.0), 100));
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
        let call = trace::call("Submit", request_id.clone(), None, &Sampler::new(telemetry.sample_ratio(), 100));
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
