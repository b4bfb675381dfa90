//! The gRPC protocol around a job: load reports, compression, size limits, unknown methods, reflection and gRPC-web.

use std::io::Read;

use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_STANDARD_NO_PAD};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tokio_stream::StreamExt;
use tonic::{
    Code, Status,
    codec::CompressionEncoding,
    metadata::{MetadataMap, MetadataValue},
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};
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
    refusal::{Refusal, reason},
    service::{Address, Caller, job, submission},
};

const LOAD: &str = "endpoint-load-metrics-bin";
/// Reported utilization of an idle server. Clients treat a utilization of zero as a missing report.
const IDLE: f64 = 0.1;
const LOAD_REPORTS_ON: &str = "server.load_reports = true";
const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    server.max_payload = "1MiB"
    drain = { notice = "0s", finish = "1s", kill = "1s" }
    [pool.one]
    workers = 2
    queue = { jobs = 4 }
"#;

fn load(metadata: &MetadataMap) -> OrcaLoadReport {
    let value = metadata.get_bin(LOAD).unwrap_or_else(|| panic!("no load in {metadata:?}"));
    OrcaLoadReport::decode(value.to_bytes().unwrap()).unwrap()
}

fn submit(kind: &str, payload: impl Into<Bytes>) -> SubmitRequest {
    SubmitRequest { job: Some(job(kind, payload)) }
}

/// The metadata of a response. For a unary call, tonic merges the trailers into it.
async fn metadata(caller: &Caller, kind: &str) -> MetadataMap {
    match caller.0.clone().submit(submit(kind, "x")).await {
        Ok(response) => response.metadata().clone(),
        Err(status) => status.metadata().clone(),
    }
}

#[tokio::test]
async fn responses_carry_no_load_report_by_default() {
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
async fn every_response_carries_a_load_report_when_enabled() {
    let process = Process::serve(&format!("{LOAD_REPORTS_ON}\n{CONFIG}")).await;
    let caller = Caller::of(process.public).await;
    assert_eq!(load(&metadata(&caller, "echo").await).application_utilization, IDLE);
    caller.occupy(1).await;
    caller.until_load(|load| load.application_utilization == 0.5).await;
    caller.occupy(2).await;
    for ahead in 0..4 {
        caller.queue(job("sleep", "60000"), ahead).await;
    }
    // A refusal carries the report too, and the report counts queued jobs.
    let full = caller.until_load(|load| load.named_metrics["queue_depth"] == 4.0 && load.eps > 0.0).await;
    assert_eq!(full.application_utilization, 1.0);
    assert!(full.eps <= full.rps_fractional, "{full:?}");
}

impl Caller {
    /// Calls until a response carries the wanted load. The server samples its load every 100 ms.
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
async fn the_trailers_of_a_stream_carry_the_load_at_its_end() {
    let process = Process::serve(&format!("{LOAD_REPORTS_ON}\n{CONFIG}")).await;
    let caller = Caller::of(process.public).await;
    let request = StreamRequest { job: Some(job("sleep", "300")) };
    let mut stream = caller.0.clone().stream(request).await.unwrap().into_inner();
    while stream.next().await.transpose().unwrap().is_some() {}
    let report = load(&stream.trailers().await.unwrap().unwrap());
    assert!(report.rps_fractional > 0.0, "the job of the stream is counted: {report:?}");
}

#[tokio::test]
async fn the_load_is_streamed_out_of_band() {
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
async fn compressed_requests_are_accepted() {
    let process = Process::serve(CONFIG).await;
    let encoding = CompressionEncoding::Gzip;
    let mut client = process.public.client().await.send_compressed(encoding).accept_compressed(encoding);
    let result = client.submit(submit("echo", vec![7; 100_000])).await.unwrap().into_inner().result.unwrap();
    assert_eq!(result.output, vec![7; 100_000]);
}

/// Calls a path with an arbitrary message, and returns the error.
async fn call(address: Address, path: &'static str) -> Status {
    let mut client = tonic::client::Grpc::new(address.channel().await);
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<DrainRequest, SubmitResponse>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    client.unary(tonic::Request::new(DrainRequest::default()), path, codec).await.unwrap_err()
}

#[tokio::test]
async fn the_error_for_an_unknown_service_or_method_lists_the_known_names() {
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
            "waterwheel.v1.WorkerPoolService/Submit is for callers; the operators' listener has Stats, WatchStats of that service",
        ),
        (
            process.ops,
            "/waterwheel.v1.WorkerService/Attach",
            "UNKNOWN_SERVICE",
            "no such service on the operators' listener; there are waterwheel.v1.AdminService, waterwheel.v1.WorkerPoolService, waterwheel.v1.JobService, externalscaler.ExternalScaler, grpc.health.v1.Health, grpc.reflection.v1.ServerReflection, \
             grpc.reflection.v1alpha.ServerReflection",
        ),
        (
            process.public,
            "/grpc.health.v1.Health/Chek",
            "UNKNOWN_METHOD",
            "no such method; grpc.health.v1.Health has Check, Watch",
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
async fn reflection_lists_exactly_the_services_of_its_listener() {
    let process = Process::serve(CONFIG).await;
    let both =
        ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];
    let public = [
        "waterwheel.v1.WorkerPoolService",
        "waterwheel.v1.WorkerService",
        "waterwheel.v1.JobService",
        "xds.service.orca.v3.OpenRcaService",
    ];
    let operators = [
        "waterwheel.v1.AdminService",
        "waterwheel.v1.WorkerPoolService",
        "waterwheel.v1.JobService",
        "externalscaler.ExternalScaler",
    ];
    assert_eq!(listed(process.public).await, [&public[..], &both[..]].concat());
    assert_eq!(listed(process.ops).await, [&operators[..], &both[..]].concat());
    for address in [process.public, process.ops] {
        for path in ["/waterwheel.v1.AdminService/None", "/waterwheel.v1.WorkerPoolService/None"] {
            // A listed service knows its name; any other service is unknown.
            let status = call(address, path).await;
            let service = path[1..].split('/').next().unwrap();
            let known = listed(address).await.iter().any(|name| name == service);
            assert_eq!(reason(&status), if known { "UNKNOWN_METHOD" } else { "UNKNOWN_SERVICE" });
        }
    }
    drop(AdminServiceClient::new(process.ops.channel().await).drain(DrainRequest::default()).await.unwrap());
}

/// Sends a request as a web page does, with this value of the `authorization` header.
pub(crate) async fn from_page(
    address: Address,
    method: Method,
    origin: &str,
    token: Option<&str>,
    body: Vec<u8>,
) -> http::Response<hyper::body::Incoming> {
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
    address.http1(request.body(Full::new(Bytes::from(body))).unwrap()).await
}

/// The text of a `SubmitRequest` of a web page.
pub(crate) fn page_text(kind: &str, payload: &'static str) -> Vec<u8> {
    BASE64_STANDARD.encode(submission(kind, payload)).into_bytes()
}

#[tokio::test]
async fn web_pages_of_configured_origins_may_call() {
    let (ours, theirs) = ("https://app.example", "https://evil.example");
    let process = Process::serve(&format!("{LOAD_REPORTS_ON}\nserver.grpc_web_origins = [\"{ours}\"]\n{CONFIG}")).await;
    for (origin, allowed) in [(ours, Some(ours)), (theirs, None)] {
        let asked = from_page(process.public, Method::OPTIONS, origin, None, Vec::new()).await;
        let answer = asked.headers().get("access-control-allow-origin").map(|value| value.to_str().unwrap());
        assert_eq!((asked.status(), answer), (StatusCode::OK, allowed));
    }
    // A page whose own host name resolves to this address sends no preflight request. Its origin gives it away.
    let answer = from_page(process.public, Method::POST, theirs, None, page_text("echo", "from elsewhere")).await;
    assert_eq!(answer.headers()["grpc-status"], "7", "{answer:?}");
    let answer = from_page(process.public, Method::POST, ours, None, page_text("echo", "from a page")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["access-control-allow-origin"], ours);
    assert_eq!(answer.headers()["content-type"], "application/grpc-web-text+proto");
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    // Each frame is encoded on its own, so padding may stand in the middle of the text.
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
    let report = trailers.lines().find_map(|line| line.strip_prefix(&format!("{LOAD}:"))).unwrap();
    OrcaLoadReport::decode(&BASE64_STANDARD_NO_PAD.decode(report.trim()).unwrap()[..]).unwrap();
    // Callers without an origin are not affected.
    Caller::of(process.public).await.leave(job("echo", "x")).await.unwrap().unwrap();
}

/// HTTP/1.1 cannot carry the trailers that hold the status of a plain gRPC call.
#[tokio::test]
async fn a_plain_grpc_call_over_http_1_is_refused_without_running_a_job() {
    let process = Process::serve(&format!("server.grpc_web_origins = [\"https://app.example\"]\n{CONFIG}")).await;
    let request = Request::post("/waterwheel.v1.WorkerPoolService/Submit").header("host", "public");
    let request = request.header("content-type", "application/grpc");
    let body = Full::new(Bytes::from(page_text("echo", "x")));
    let answer = process.public.http1(request.body(body).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(Caller::of(process.public).await.pool().await.jobs.unwrap().accepted, 0);
}

#[tokio::test]
async fn a_request_with_the_wrong_method_or_media_type_has_no_effect() {
    let process = Process::serve(CONFIG).await;
    for (method, media_type, status) in [("POST", "text/plain", 415), ("GET", "application/grpc", 405)] {
        let request =
            Request::builder().method(method).uri("/waterwheel.v1.AdminService/Drain").header("host", "localhost");
        let request = request.header("content-type", media_type).header("origin", "https://evil.example");
        let answer = process.ops.http1(request.body(Full::new(Bytes::from_static(&[0; 5]))).unwrap()).await;
        assert_eq!(answer.status(), status, "{method} of {media_type}");
    }
    // No drain began.
    Caller::of(process.public).await.leave(job("echo", "x")).await.unwrap().unwrap();
    assert!(Caller::of(process.public).await.pool().await.phase() == waterwheel::proto::Phase::Serving);
}

/// Submits a job with this many bytes of metadata.
async fn submit_with_headers(caller: &Caller, bytes: usize) -> Result<(), Status> {
    let mut request = tonic::Request::new(SubmitRequest { job: Some(job("echo", "")) });
    let value = MetadataValue::try_from("x".repeat(bytes)).unwrap();
    request.metadata_mut().insert("baggage", value);
    caller.0.clone().submit(request).await.map(drop)
}

#[tokio::test]
async fn headers_over_their_limit_are_refused_with_a_reason() {
    let process = Process::serve(&format!("server.http2.max_header_list = \"8KiB\"\n{CONFIG}")).await;
    let caller = Caller::of(process.public).await;
    submit_with_headers(&caller, 7_000).await.expect("the headers are within the limit");
    for bytes in [8 << 10, 15 << 10] {
        let refusal = Refusal::of_call(submit_with_headers(&caller, bytes).await.expect_err("too large"), false);
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "HEADERS_TOO_LARGE"));
        assert_eq!(refusal.facts()["execution"], "NOT_STARTED");
    }
    // HTTP itself refuses these headers, and clients report that without a reason.
    submit_with_headers(&caller, 40 << 10).await.expect_err("much too large");
    submit_with_headers(&caller, 1).await.expect("the connection still works");
}

#[tokio::test]
async fn a_command_explains_the_refusal_of_headers_by_http() {
    let process = Process::serve(&format!("server.http2.max_header_list = \"8KiB\"\n{CONFIG}")).await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "x".repeat(40 << 10)).unwrap();
    let ran = process.run(&format!("submit echo x --token-file {}", token.path().display())).await;
    let report = ran.err;
    assert_eq!(ran.code, Some(2), "{report}");
    assert!(
        report.contains("the headers of the call are larger than the server accepts")
            && report.contains("a shorter token"),
        "{report}"
    );
}
