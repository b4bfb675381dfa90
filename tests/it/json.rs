//! Calls by HTTP and JSON (the Connect protocol), with the same jobs, deadlines, refusals and bounds as by gRPC.

pub(crate) mod caller;
mod documented;
mod hostile;

use std::io::{Read as _, Write as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use crate::{
    process::Process,
    service::{Address, Caller, job},
};

const CONFIG: &str = r#"
    server = { json = true, max_payload = "64KiB" }
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    kind.gzip = { pool = "one", builtin = "gzip" }
    drain = { notice = "0s", finish = "1s", kill = "1s" }
    [pool.one]
    workers = 1
    queue = { jobs = 1 }
"#;
const SUBMIT: &str = "/waterwheel.v1.WorkerPoolService/Submit";
const STREAM: &str = "/waterwheel.v1.WorkerPoolService/Stream";
const STATS: &str = "/waterwheel.v1.WorkerPoolService/Stats";
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

#[derive(Clone, Copy, Debug)]
pub(crate) enum Version {
    Http1,
    Http2,
}

pub(crate) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The reason in the details of an error.
    pub(crate) fn reason(&self) -> String {
        let error = self.json();
        error["details"][0]["debug"]["reason"].as_str().unwrap_or_else(|| panic!("{error}")).to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

pub(crate) async fn ask(
    address: Address,
    version: Version,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(format!("http://{}{path}", address.0));
    let host = Some(("host", "localhost")).filter(|_| !headers.iter().any(|(name, _)| *name == "host"));
    for (name, value) in headers.iter().copied().chain(host) {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    let response = match version {
        Version::Http1 => address.http1(request).await,
        Version::Http2 => address.http2(request).await,
    };
    let (head, body) = response.into_parts();
    Answer { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
}

async fn post(address: Address, path: &str, body: &Value) -> Answer {
    ask(address, Version::Http1, Method::POST, path, &[JSON], body.to_string()).await
}

fn echo(payload: &[u8]) -> Value {
    json!({ "job": { "kind": "echo", "payload": BASE64_STANDARD.encode(payload) } })
}

/// The envelopes of a stream: flags and text.
fn envelopes(mut body: &[u8]) -> Vec<(u8, Value)> {
    let mut found = Vec::new();
    while let Some(([flags, a, b, c, d], rest)) = body.split_first_chunk() {
        let (text, rest) = rest.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        found.push((*flags, serde_json::from_slice(text).unwrap()));
        body = rest;
    }
    found
}

fn envelope(text: &Value) -> Vec<u8> {
    let text = text.to_string();
    [&[0][..], &u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

fn zip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// The timeout of gRPC beside it ends neither the call nor its connection.
#[tokio::test]
async fn the_deadline_is_that_of_this_protocol() {
    let process = Process::serve(CONFIG).await;
    let headers = [JSON, ("grpc-timeout", "100m"), ("connect-timeout-ms", "20000")];
    let sleep = json!({ "job": { "kind": "sleep", "payload": BASE64_STANDARD.encode("500") } }).to_string();
    let answer = ask(process.public, Version::Http1, Method::POST, SUBMIT, &headers, sleep).await;
    assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
}

#[tokio::test]
async fn a_job_runs_over_any_version_of_http_and_its_answer_is_json() {
    let process = Process::serve(CONFIG).await;
    for version in [Version::Http1, Version::Http2] {
        let headers = [JSON, ("x-request-id", "order-7"), ("connect-timeout-ms", "20000")];
        let answer = ask(process.public, version, Method::POST, SUBMIT, &headers, echo(b"hello").to_string()).await;
        assert_eq!((answer.status, answer.header("x-request-id")), (StatusCode::OK, Some("order-7")), "{version:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.json()["result"]["output"], BASE64_STANDARD.encode("hello"));
        assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("grpc-")), "{:?}", answer.headers);
    }
}

#[tokio::test]
async fn an_error_has_its_status_of_http_its_reason_and_where_nothing_has_run_a_time_to_try_again() {
    let process = Process::serve(CONFIG).await;
    let unknown = post(process.public, SUBMIT, &json!({ "job": { "kind": "none" } })).await;
    assert_eq!((unknown.status, unknown.reason()), (StatusCode::BAD_REQUEST, "UNKNOWN_KIND".to_owned()));
    assert_eq!((unknown.json()["code"].as_str(), unknown.header("retry-after")), (Some("invalid_argument"), None));

    let payload = BASE64_STANDARD.encode(r#"{"ms":60000}"#);
    let slow = json!({ "job": { "kind": "sleep", "payload": payload, "whenFull": "WHEN_FULL_REJECT" } }).to_string();
    let timeout = [JSON, ("connect-timeout-ms", "300")];
    let late = ask(process.public, Version::Http1, Method::POST, SUBMIT, &timeout, slow.clone()).await;
    assert_eq!((late.status, late.reason()), (StatusCode::GATEWAY_TIMEOUT, "RUN_TIMEOUT".to_owned()));
    assert_eq!(late.header("retry-after"), None, "it has run");

    let caller = Caller::of(process.public).await;
    caller.occupy(1).await;
    caller.queue(job("sleep", r#"{"ms":60000}"#), 0).await;
    let full = ask(process.public, Version::Http1, Method::POST, SUBMIT, &[JSON], slow).await;
    assert_eq!((full.status, full.reason()), (StatusCode::TOO_MANY_REQUESTS, "QUEUE_FULL".to_owned()));
    let seconds: u64 = full.header("retry-after").expect("a time").parse().expect("seconds");
    assert!(seconds >= 1);
}

#[tokio::test]
async fn a_stream_is_envelopes_or_lines_and_ends_with_how_it_ended() {
    let process = Process::serve(CONFIG).await;
    let asked = json!({ "job": { "kind": "gzip", "payload": BASE64_STANDARD.encode("hello ".repeat(2_000)) } });
    let headers = [("content-type", "application/connect+json")];
    let answer = ask(process.public, Version::Http1, Method::POST, STREAM, &headers, envelope(&asked)).await;
    assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, Some("application/connect+json")));
    let found = envelopes(&answer.body);
    let (end, messages) = found.split_last().expect("an end");
    assert_eq!((end.0, end.1.get("error")), (2, None));
    assert!(messages.iter().all(|(flags, _)| *flags == 0) && messages.len() > 1, "{messages:?}");
    assert!(messages.last().is_some_and(|(_, last)| last.get("finished").is_some()), "{messages:?}");

    let lines = [JSON, ("accept", "application/x-ndjson")];
    let answer = ask(process.public, Version::Http2, Method::POST, STREAM, &lines, asked.to_string()).await;
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let texts: Vec<Value> = answer
        .body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(texts.len(), messages.len());

    let unknown = json!({ "job": { "kind": "none" } });
    let answer = ask(process.public, Version::Http1, Method::POST, STREAM, &headers, envelope(&unknown)).await;
    let found = envelopes(&answer.body);
    assert_eq!((found[0].0, &found[0].1["error"]["code"]), (2, &json!("invalid_argument")));
    let answer = ask(process.public, Version::Http1, Method::POST, STREAM, &lines, unknown.to_string()).await;
    assert_eq!(answer.json()["error"]["code"], "invalid_argument");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_its_place_before_anything_runs() {
    let process = Process::serve(CONFIG).await;
    for (text, told) in [
        ("{\"job\": {\"kind\": \"echo\",\n\"kind\": \"x\"}}", "twice at line 2"),
        (r#"{"job": {"kid": "echo"}}"#, "kid"),
        ("{", "EOF"),
    ] {
        let refused = ask(process.public, Version::Http1, Method::POST, SUBMIT, &[JSON], text).await;
        assert_eq!((refused.status, refused.reason()), (StatusCode::BAD_REQUEST, "INVALID_FORM".to_owned()));
        let message = refused.json()["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(told), "{message}");
    }
    let large = post(process.public, SUBMIT, &echo(&[7; 300 << 10])).await;
    assert_eq!((large.status, large.reason()), (StatusCode::TOO_MANY_REQUESTS, "PAYLOAD_TOO_LARGE".to_owned()));
    assert_eq!((large.header("retry-after"), large.header("connection")), (None, Some("close")));
    for (headers, status) in [
        ([JSON, ("connect-timeout-ms", "12345678901")], 400),
        ([JSON, ("content-encoding", "br")], 501),
        ([JSON, ("connect-protocol-version", "2")], 400),
        ([("content-type", "application/connect+json"), ("accept", "*/*")], 415),
    ] {
        let refused = ask(process.public, Version::Http1, Method::POST, SUBMIT, &headers, "{}").await;
        assert_eq!(refused.status, status, "{headers:?}");
    }
    assert_eq!(Caller::of(process.public).await.pool().await.jobs.unwrap().accepted, 0);
}

#[tokio::test]
async fn messages_may_be_compressed_both_ways_and_are_bounded_as_they_grow() {
    let process = Process::serve(CONFIG).await;
    let headers = [JSON, ("content-encoding", "gzip"), ("accept-encoding", "br, gzip;q=0.5")];
    let text = echo(&[b'a'; 30_000]).to_string();
    let answer = ask(process.public, Version::Http1, Method::POST, SUBMIT, &headers, zip(&text)).await;
    assert_eq!((answer.status, answer.header("content-encoding")), (StatusCode::OK, Some("gzip")));
    let mut inflated = String::new();
    GzDecoder::new(&answer.body[..]).read_to_string(&mut inflated).unwrap();
    assert!(inflated.contains(&BASE64_STANDARD.encode([b'a'; 30_000])) && answer.body.len() < 1_000);

    let bomb = zip(&echo(&vec![0; 8 << 20]).to_string());
    let refused = ask(process.public, Version::Http1, Method::POST, SUBMIT, &headers, bomb).await;
    assert_eq!(refused.reason(), "PAYLOAD_TOO_LARGE");
}

#[tokio::test]
async fn only_what_reads_is_a_get() {
    let process = Process::serve(CONFIG).await;
    let get = |address, path: String| async move { ask(address, Version::Http1, Method::GET, &path, &[], "").await };
    for query in [
        "connect=v1&encoding=json&message=%7B%7D",
        "message=+%7b+%7d&encoding=json",
        "encoding=json&base64=1&message=e30",
    ] {
        for address in [process.public, process.ops] {
            let stats = get(address, format!("{STATS}?{query}")).await;
            let first = stats.json()["stats"]["pools"][0]["name"].as_str().map(str::to_owned);
            assert_eq!((stats.status, first.as_deref()), (StatusCode::OK, Some("one")), "{query}");
        }
    }
    for query in [
        "encoding=json",
        "encoding=json&message=%7",
        "encoding=json&message=%FF",
        "encoding=json&message=e30&base64=0",
        "encoding=json&message=%25&base64=1",
        "encoding=json&message=%7B%7D&connect=v2",
        "encoding=json&message=%7B%7D&compression=gzip",
    ] {
        let refused = get(process.public, format!("{STATS}?{query}")).await;
        assert_eq!((refused.status, refused.reason().as_str()), (StatusCode::BAD_REQUEST, "INVALID_FORM"), "{query}");
    }
    let submit = get(process.public, format!("{SUBMIT}?encoding=json&message=%7B%7D")).await;
    assert_eq!((submit.status, submit.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, Some("POST")));
}

#[tokio::test]
async fn a_call_may_take_as_long_as_it_says() {
    let process = Process::serve(&CONFIG.replace("[pool.one]", "deadline = { default = \"300ms\" }\n[pool.one]")).await;
    let slow = json!({ "job": { "kind": "sleep", "payload": BASE64_STANDARD.encode(r#"{"ms":900}"#) } });
    let headers = [JSON, ("connect-timeout-ms", "20000")];
    for version in [Version::Http1, Version::Http2] {
        let answer = ask(process.public, version, Method::POST, SUBMIT, &headers, slow.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{version:?}: {:?}", answer.body);
    }
}

/// What steers the server is not on the callers' listener, and workers attach by gRPC.
#[tokio::test]
async fn closed_and_unknown_methods_say_so() {
    let process = Process::serve(CONFIG).await;
    for (address, path, told) in [
        (process.public, "/waterwheel.v1.WorkerService/Attach", "only gRPC"),
        (process.public, "/waterwheel.v1.AdminService/Drain", "no such service here"),
        (process.public, "/waterwheel.v1.WorkerPoolService/Sumbit", "Submit"),
        (process.ops, SUBMIT, "is for callers"),
        (process.ops, "/waterwheel.v1.JobService/WaitJob", "is for callers"),
    ] {
        let refused = post(address, path, &json!({})).await;
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert_eq!((refused.status, message.contains(told)), (StatusCode::NOT_FOUND, true), "{message}");
        assert_eq!(refused.json()["code"], "unimplemented");
        assert!(refused.header("x-request-id").is_some());
    }
    let jobs = post(process.ops, "/waterwheel.v1.AdminService/ListJobs", &json!({ "pool": "one" })).await;
    assert_eq!(jobs.status, StatusCode::OK, "{:?}", jobs.body);
}

#[tokio::test]
async fn each_listener_describes_the_calls_that_it_serves() {
    let process = Process::serve(CONFIG).await;
    for (address, has, lacks) in [
        (process.public, "/waterwheel.v1.JobService/WaitJob", "/waterwheel.v1.AdminService/Drain"),
        (process.ops, "/waterwheel.v1.AdminService/Drain", "/waterwheel.v1.JobService/WaitJob"),
    ] {
        let answer = ask(address, Version::Http1, Method::GET, "/openapi.json", &[], "").await;
        assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, Some("application/json")));
        let document = answer.json();
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.contains_key(has) && !paths.contains_key(lacks), "{:?}", paths.keys());
        for (path, operations) in paths {
            assert!(!path.contains("waterwheel") || operations["post"]["description"] != "", "{path}");
            let query = format!("{path}?encoding=json&message=%7B%7D");
            let answer = ask(address, Version::Http1, Method::GET, &query, &[], "").await;
            let is_json = answer.header("content-type") == Some("application/json");
            assert!(!is_json || answer.json()["code"] != "unimplemented", "{path}: {:?}", answer.body);
            let is_get = answer.status != StatusCode::METHOD_NOT_ALLOWED;
            let streams = answer.status == StatusCode::UNSUPPORTED_MEDIA_TYPE;
            assert_eq!(operations.get("get").is_some(), is_get && !streams, "{path}");
        }
    }
    let job = |document: &Value| document["components"]["schemas"]["waterwheel.v1.Job"]["properties"].clone();
    let printed = process.run("proto --openapi").await.json();
    let served = ask(process.public, Version::Http1, Method::GET, "/openapi.json", &[], "").await.json();
    assert_eq!(job(&printed), job(&served));
    assert_eq!(job(&printed)["payload"]["contentEncoding"], "base64");
    assert!(printed["paths"]["/waterwheel.v1.AdminService/Drain"].is_object(), "it is the whole contract");
}

#[tokio::test]
async fn pages_of_configured_origins_may_call_and_read_the_answer() {
    let ours = "https://app.example";
    let config = CONFIG.replace("json = true,", &format!("json = true, grpc_web_origins = [\"{ours}\"],"));
    let process = Process::serve(&config).await;
    let asked = [
        ("origin", ours),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "connect-timeout-ms,content-type"),
    ];
    let permission = ask(process.public, Version::Http1, Method::OPTIONS, SUBMIT, &asked, "").await;
    let allowed = permission.header("access-control-allow-headers").expect("a permission").to_owned();
    assert!(allowed.contains("connect-timeout-ms"), "{allowed}");
    for (origin, status) in [(ours, StatusCode::OK), ("https://evil.example", StatusCode::FORBIDDEN)] {
        let headers = [JSON, ("origin", origin)];
        let answer = ask(process.public, Version::Http1, Method::POST, SUBMIT, &headers, echo(b"x").to_string()).await;
        let permitted = answer.header("access-control-allow-origin");
        assert_eq!((answer.status, permitted), (status, (origin == ours).then_some(ours)));
    }
}

#[tokio::test]
async fn without_the_setting_callers_speak_only_grpc_and_operators_still_read_json() {
    let process = Process::serve(&CONFIG.replace("json = true, ", "")).await;
    let refused = ask(process.public, Version::Http2, Method::POST, SUBMIT, &[JSON], "{}").await;
    assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(post(process.ops, STATS, &json!({})).await.status, StatusCode::OK);
}
