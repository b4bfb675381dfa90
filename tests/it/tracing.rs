//! One trace from the caller's span to the attempt, and out of the process.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::{Request, Response, body::Frame, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpListener, sync::mpsc, task::spawn_blocking, time::Instant};
use waterwheel::{
    model::RequestId,
    rpc::trace::{Sampler, server_span},
    task::Tasks,
    telemetry::{self, Config, Telemetry},
};

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
        let call = server_span("Submit", &request_id, None, &Sampler::new(telemetry.sample_ratio()));
        assert!(call.sampled);
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
