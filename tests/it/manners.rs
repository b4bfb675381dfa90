//! What callers of any language may expect of a gRPC server beside its results: the load in trailers and out of band,
//! compression, limits, useful answers to slips, and pages of browsers.

use std::io::Read;

use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_STANDARD_NO_PAD};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpStream;
use tokio_stream::StreamExt;
use tonic::{Code, Status, codec::CompressionEncoding, metadata::MetadataMap};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};
use tonic_types::StatusExt;
use waterwheel::proto::{
    DrainRequest, StreamRequest, SubmitRequest, SubmitResponse,
    admin_service_client::AdminServiceClient,
    xds::{
        data::orca::v3::OrcaLoadReport,
        service::orca::v3::{OrcaLoadReportRequest, open_rca_service_client::OpenRcaServiceClient},
    },
};

use crate::{
    process::Process,
    service::{Address, Caller, job},
};

const LOAD: &str = "endpoint-load-metrics-bin";
/// What no client takes for a load: it makes the backend one that has told none.
const IDLE: f64 = 0.01;
const TELLING: &str = "server.load_reports = true";
const CONFIG: &str = r#"
    server.max_payload = "1MiB"
    drain = { notice = "0s", finish = "1s", kill = "1s" }
    [pool.one]
    workers = 2
    queue = { jobs = 4 }
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    [kind.echo]
    pool = "one"
    builtin = "echo"
"#;

fn load(metadata: &MetadataMap) -> OrcaLoadReport {
    let value = metadata.get_bin(LOAD).unwrap_or_else(|| panic!("no load in {metadata:?}"));
    OrcaLoadReport::decode(value.to_bytes().unwrap()).unwrap()
}

fn submit(kind: &str, payload: impl Into<Bytes>) -> SubmitRequest {
    SubmitRequest { job: Some(job(kind, payload)) }
}

/// Metadata of an answer: tonic adds the trailers of a unary one to its headers.
async fn metadata(caller: &Caller, kind: &str) -> MetadataMap {
    match caller.0.clone().submit(submit(kind, "x")).await {
        Ok(response) => response.metadata().clone(),
        Err(status) => status.metadata().clone(),
    }
}

#[tokio::test]
async fn no_answer_tells_the_load_unless_it_is_to() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    for kind in ["echo", "none"] {
        let metadata = metadata(&caller, kind).await;
        assert!(metadata.contains_key("x-request-id") && !metadata.contains_key(LOAD), "{kind}: {metadata:?}");
    }
    let mut stream = caller.0.clone().stream(StreamRequest { job: Some(job("echo", "x")) }).await.unwrap().into_inner();
    while stream.next().await.transpose().unwrap().is_some() {}
    let trailers = stream.trailers().await.unwrap().unwrap_or_default();
    assert!(!trailers.contains_key(LOAD), "{trailers:?}");
}

#[tokio::test]
async fn every_answer_tells_the_load_where_it_is_to() {
    let process = Process::serve(&format!("{TELLING}\n{CONFIG}")).await;
    let caller = Caller::of(process.public).await;
    assert_eq!(load(&metadata(&caller, "echo").await).application_utilization, IDLE);
    caller.occupy(1).await;
    caller.until_load(|load| load.application_utilization == 0.5).await;
    caller.occupy(2).await;
    for ahead in 0..4 {
        caller.queue(job("sleep", "60000"), ahead).await;
    }
    // A refusal tells it too, and jobs that wait are in it.
    let full = caller.until_load(|load| load.named_metrics["queue_depth"] == 4.0 && load.eps > 0.0).await;
    assert_eq!(full.application_utilization, 1.0);
    assert!(full.eps <= full.rps_fractional, "{full:?}");
}

impl Caller {
    /// Calls until the load that comes with the answers is as wanted: it is taken anew every tenth of a second.
    async fn until_load(&self, wanted: impl Fn(&OrcaLoadReport) -> bool) -> OrcaLoadReport {
        let begin = tokio::time::Instant::now();
        loop {
            let load = load(&metadata(self, "echo").await);
            if wanted(&load) {
                return load;
            }
            assert!(begin.elapsed() < crate::process::PATIENCE, "{load:?}");
        }
    }
}

#[tokio::test]
async fn the_end_of_a_stream_tells_the_load_of_its_time() {
    let process = Process::serve(&format!("{TELLING}\n{CONFIG}")).await;
    let caller = Caller::of(process.public).await;
    let request = StreamRequest { job: Some(job("sleep", "300")) };
    let mut stream = caller.0.clone().stream(request).await.unwrap().into_inner();
    while stream.next().await.transpose().unwrap().is_some() {}
    let told = load(&stream.trailers().await.unwrap().unwrap());
    assert!(told.rps_fractional > 0.0, "its own job had ended: {told:?}");
}

#[tokio::test]
async fn the_load_is_told_out_of_band() {
    let process = Process::serve(CONFIG).await;
    let mut client = OpenRcaServiceClient::new(process.public.channel().await);
    let interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
    let request = OrcaLoadReportRequest { report_interval: interval, request_cost_names: Vec::new() };
    let mut reports = client.stream_core_metrics(request).await.unwrap().into_inner();
    assert_eq!(reports.next().await.unwrap().unwrap().application_utilization, IDLE);
    Caller::of(process.public).await.occupy(2).await;
    let busy = async { while reports.next().await.unwrap().unwrap().application_utilization < 1.0 {} };
    tokio::time::timeout(crate::process::PATIENCE, busy).await.unwrap();
}

#[tokio::test]
async fn compressed_jobs_are_taken() {
    let process = Process::serve(CONFIG).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        let mut client = process.public.client().await.send_compressed(encoding).accept_compressed(encoding);
        let result = client.submit(submit("echo", vec![7; 100_000])).await.unwrap().into_inner().result.unwrap();
        assert_eq!(result.output, vec![7; 100_000], "{encoding:?}");
    }
}

#[tokio::test]
async fn what_is_over_a_limit_is_refused_by_name_compressed_or_not() {
    let process = Process::serve(&format!("{TELLING}\n{CONFIG}")).await;
    let client = process.public.client().await;
    for (size, encoding) in [
        ((1 << 20) + 1, None),
        (8 << 20, None),
        (8 << 20, Some(CompressionEncoding::Gzip)),
        (8 << 20, Some(CompressionEncoding::Zstd)),
    ] {
        let mut client = encoding.map_or(client.clone(), |encoding| client.clone().send_compressed(encoding));
        let status = client.submit(submit("echo", vec![7; size])).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"));
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
        load(status.metadata());
    }
}

#[tokio::test]
async fn an_output_over_its_limit_is_refused_by_name() {
    let process = Process::serve(&format!("server.max_output = \"1KiB\"\n{CONFIG}")).await;
    let status = process.public.client().await.submit(submit("echo", vec![7; 1025])).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "OUTPUT_TOO_LARGE"));
}

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().unwrap_or_else(|| panic!("{status:?}")).reason.clone()
}

/// Calls any path with a message of any type.
async fn call(address: Address, path: &'static str) -> Status {
    let mut client = tonic::client::Grpc::new(address.channel().await);
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<DrainRequest, SubmitResponse>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    client.unary(tonic::Request::new(DrainRequest::default()), path, codec).await.unwrap_err()
}

#[tokio::test]
async fn a_slip_in_a_name_is_answered_with_the_names_that_exist() {
    let process = Process::serve(CONFIG).await;
    for (address, path, expected, message) in [
        (
            process.public,
            "/waterwheel.v1.WorkerPoolService/Submitt",
            "UNKNOWN_METHOD",
            "no such method; waterwheel.v1.WorkerPoolService has Submit, Stream, SubmitMany, Stats, WatchStats",
        ),
        (
            process.public,
            "/waterwheel.v1.WorkerPool/Submit",
            "UNKNOWN_SERVICE",
            "no such service here; there are waterwheel.v1.WorkerPoolService, waterwheel.v1.WorkerService, waterwheel.v1.JobService, xds.service.orca.v3.OpenRcaService, grpc.health.v1.Health, \
             grpc.reflection.v1.ServerReflection, grpc.reflection.v1alpha.ServerReflection",
        ),
        (
            process.ops,
            "/waterwheel.v1.WorkerPoolService/Submit",
            "UNKNOWN_SERVICE",
            "no such service on the operators' listener; there are waterwheel.v1.AdminService, grpc.health.v1.Health, grpc.reflection.v1.ServerReflection, \
             grpc.reflection.v1alpha.ServerReflection",
        ),
        (
            process.public,
            "/grpc.health.v1.Health/Chek",
            "UNKNOWN_METHOD",
            "no such method; grpc.health.v1.Health has Check, List, Watch",
        ),
    ] {
        let status = call(address, path).await;
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unimplemented, expected), "{path}");
        assert_eq!(status.message(), message);
        assert!(status.metadata().contains_key("x-request-id"));
    }
}

async fn listed(address: Address) -> Vec<String> {
    let mut client = ServerReflectionClient::new(address.channel().await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    match answers.into_inner().next().await.unwrap().unwrap().message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => list.service.into_iter().map(|service| service.name).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn reflection_lists_what_its_listener_serves() {
    let process = Process::serve(CONFIG).await;
    let both =
        ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];
    let public = [
        "waterwheel.v1.WorkerPoolService",
        "waterwheel.v1.WorkerService",
        "waterwheel.v1.JobService",
        "xds.service.orca.v3.OpenRcaService",
    ];
    assert_eq!(listed(process.public).await, [&public[..], &both[..]].concat());
    assert_eq!(listed(process.ops).await, [&["waterwheel.v1.AdminService"], &both[..]].concat());
    for address in [process.public, process.ops] {
        for path in ["/waterwheel.v1.AdminService/None", "/waterwheel.v1.WorkerPoolService/None"] {
            // What is listed is served, and nothing else.
            let status = call(address, path).await;
            let service = path[1..].split('/').next().unwrap();
            let known = listed(address).await.iter().any(|name| name == service);
            assert_eq!(reason(&status), if known { "UNKNOWN_METHOD" } else { "UNKNOWN_SERVICE" });
        }
    }
    drop(AdminServiceClient::new(process.ops.channel().await).drain(DrainRequest::default()).await.unwrap());
}

/// A request as a page of a browser sends it, with the value of `authorization`.
pub(crate) async fn from_page(
    address: Address,
    method: Method,
    origin: &str,
    token: Option<&str>,
    body: Vec<u8>,
) -> http::Response<hyper::body::Incoming> {
    let stream = TokioIo::new(TcpStream::connect(address.0).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(&method)
        .uri("/waterwheel.v1.WorkerPoolService/Submit")
        .header("host", address.0.to_string())
        .header("origin", origin);
    if method == Method::OPTIONS {
        request = request
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type,x-grpc-web");
    } else {
        let text = "application/grpc-web-text";
        request = request.header("content-type", text).header("accept", text).header("x-grpc-web", "1");
    }
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap()
}

pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    frame.extend(bytes);
    BASE64_STANDARD.encode(frame).into_bytes()
}

#[tokio::test]
async fn pages_of_named_origins_may_call() {
    let (ours, theirs) = ("https://app.example", "https://evil.example");
    let process = Process::serve(&format!("{TELLING}\nserver.grpc_web_origins = [\"{ours}\"]\n{CONFIG}")).await;
    for (origin, allowed) in [(ours, Some(ours)), (theirs, None)] {
        let asked = from_page(process.public, Method::OPTIONS, origin, None, Vec::new()).await;
        let answer = asked.headers().get("access-control-allow-origin").map(|value| value.to_str().unwrap());
        assert_eq!((asked.status(), answer), (StatusCode::OK, allowed));
    }
    // A page whose own name leads to this address needs to ask nobody: its call is told by its origin.
    let answer = from_page(process.public, Method::POST, theirs, None, framed(&submit("echo", "from elsewhere"))).await;
    assert_eq!(answer.headers()["grpc-status"], "7", "{answer:?}");
    let answer = from_page(process.public, Method::POST, ours, None, framed(&submit("echo", "from a page"))).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["access-control-allow-origin"], ours);
    assert_eq!(answer.headers()["content-type"], "application/grpc-web-text+proto");
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    // Each frame is encoded by itself, and ends where its padding does.
    let mut frames = Vec::new();
    for part in text.chunks(4) {
        frames.extend(BASE64_STANDARD.decode(part).unwrap());
    }
    let length = u32::from_be_bytes(frames[1..5].try_into().unwrap()) as usize;
    let response = SubmitResponse::decode(&frames[5..5 + length]).unwrap();
    assert_eq!(response.result.unwrap().output, b"from a page");
    let mut trailers = String::new();
    (&frames[5 + length + 5..]).read_to_string(&mut trailers).unwrap();
    assert!(trailers.contains("grpc-status:0"), "{trailers}");
    let told = trailers.lines().find_map(|line| line.strip_prefix(&format!("{LOAD}:"))).unwrap();
    OrcaLoadReport::decode(&BASE64_STANDARD_NO_PAD.decode(told.trim()).unwrap()[..]).unwrap();
    // Callers that are no pages are served as ever.
    Caller::of(process.public).await.leave(job("echo", "x")).await.unwrap().unwrap();
}

#[tokio::test]
async fn pages_may_not_call_unless_they_are_asked_in() {
    let process = Process::serve(CONFIG).await;
    let stream = TokioIo::new(TcpStream::connect(process.public.0).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("/waterwheel.v1.WorkerPoolService/Submit").header("host", "public");
    let answer = sender.send_request(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "a caller of the public listener speaks HTTP/2");
}

/// HTTP/1.1 has no place for the status of a call.
#[tokio::test]
async fn a_call_of_plain_grpc_by_http_1_runs_no_job() {
    let process = Process::serve(&format!("server.grpc_web_origins = [\"https://app.example\"]\n{CONFIG}")).await;
    let stream = TokioIo::new(TcpStream::connect(process.public.0).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("/waterwheel.v1.WorkerPoolService/Submit").header("host", "public");
    let request = request.header("content-type", "application/grpc");
    let body = Full::new(Bytes::from(framed(&submit("echo", "x"))));
    let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(Caller::of(process.public).await.pool().await.jobs.unwrap().accepted, 0);
}

#[tokio::test]
async fn what_is_no_call_by_its_form_does_nothing() {
    let process = Process::serve(CONFIG).await;
    for (method, media_type, status) in [("POST", "text/plain", 415), ("GET", "application/grpc", 405)] {
        let stream = TokioIo::new(TcpStream::connect(process.ops.0).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request =
            Request::builder().method(method).uri("/waterwheel.v1.AdminService/Drain").header("host", "localhost");
        let request = request.header("content-type", media_type).header("origin", "https://evil.example");
        let answer = sender.send_request(request.body(Full::new(Bytes::from_static(&[0; 5]))).unwrap()).await.unwrap();
        assert_eq!(answer.status(), status, "{method} of {media_type}");
    }
    // No drain began.
    Caller::of(process.public).await.leave(job("echo", "x")).await.unwrap().unwrap();
    assert!(Caller::of(process.public).await.pool().await.phase() == waterwheel::proto::Phase::Serving);
}
