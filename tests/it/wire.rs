//! What a call that is not as gRPC says is answered with, to the byte.

use std::future::poll_fn;

use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::TcpStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use waterwheel::proto::SubmitRequest;

use crate::service::{Address, Service, job};

const CONFIG: &str = r#"
    drain.notice = "0s"
    pool.one.workers = 1
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sha256 = { pool = "one", builtin = "sha256" }
"#;
const SUBMIT: &str = "/waterwheel.v1.WorkerPoolService/Submit";
const MANY: &str = "/waterwheel.v1.WorkerPoolService/SubmitMany";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// A message in its frame, with this flag of compression.
fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn submit(kind: &str) -> Vec<u8> {
    framed(0, &SubmitRequest { job: Some(job(kind, "x")) }.encode_to_vec())
}

/// Headers and trailers of the answer. A body of `None` never comes.
async fn call(address: Address, path: &str, headers: &[(&str, &str)], body: Option<Vec<u8>>) -> HeaderMap {
    let stream = TcpStream::connect(address.0).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut request = Request::post(format!("http://waterwheel{path}"));
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")].iter().chain(headers) {
        request = request.header(*name, *value);
    }
    let (answer, mut sending) = client.ready().await.unwrap().send_request(request.body(()).unwrap(), false).unwrap();
    if let Some(body) = body {
        sending.send_data(body.into(), true).unwrap();
    }
    let answer = answer.await.unwrap();
    let mut told = answer.headers().clone();
    let mut body = answer.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    told.extend(poll_fn(|cx| body.poll_trailers(cx)).await.unwrap().unwrap_or_default());
    driver.abort();
    told
}

fn reason(told: &HeaderMap) -> (Code, String) {
    let status = Status::from_header_map(told).expect("a status");
    let details = status.get_error_details();
    (status.code(), details.error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}")).reason.clone())
}

#[tokio::test]
async fn a_message_that_cannot_be_taken_is_told_as_grpc_says() {
    let service = Service::start(CONFIG, Vec::new());
    let twice = [submit("echo"), submit("echo")].concat();
    let none = framed(0, &[]);
    let (broken, cardinality) = ((Code::Internal, "MESSAGE_BROKEN"), (Code::Unimplemented, "NOT_ONE_MESSAGE"));
    let unknown = (Code::Unimplemented, "COMPRESSION_UNKNOWN");
    let cases = [
        (SUBMIT, "gzip", framed(1, b"not gzip"), broken),
        (MANY, "gzip", framed(1, b"not gzip"), broken),
        (REFLECTION, "identity", framed(0, b"\xff"), broken),
        (SUBMIT, "identity", framed(7, b""), broken),
        (SUBMIT, "identity", framed(0, b"\xff\xff"), broken),
        (SUBMIT, "identity", submit("echo")[..9].to_vec(), broken),
        (SUBMIT, "br", framed(1, b"x"), unknown),
        (MANY, "br", framed(1, b"x"), unknown),
        (CHECK, "br", framed(1, b"x"), unknown),
        (SUBMIT, "identity", twice, cardinality),
        (CHECK, "identity", [none.clone(), none].concat(), cardinality),
        (SUBMIT, "identity", Vec::new(), cardinality),
    ];
    for (path, encoding, body, expected) in cases {
        let told = call(service.public, path, &[("grpc-encoding", encoding)], Some(body.clone())).await;
        let (code, reason) = reason(&told);
        assert_eq!((code, reason.as_str()), expected, "{path} {encoding} {body:?}: {told:?}");
        assert_eq!(told.contains_key("grpc-accept-encoding"), expected == unknown, "{told:?}");
    }
}

#[tokio::test]
async fn a_call_without_time_is_late() {
    let service = Service::start(CONFIG, Vec::new());
    for timeout in ["0n", "1n", "1u"] {
        let told = call(service.public, SUBMIT, &[("grpc-timeout", timeout)], Some(submit("echo"))).await;
        let (code, reason) = reason(&told);
        assert_eq!(code, Code::DeadlineExceeded, "{timeout}: {told:?}");
        assert!(["EXPIRED_IN_QUEUE", "CALL_TIMEOUT"].contains(&reason.as_str()), "{timeout}: {told:?}");
    }
    let told = call(service.public, SUBMIT, &[("grpc-timeout", "100m")], None).await;
    assert_eq!(reason(&told), (Code::DeadlineExceeded, "CALL_TIMEOUT".to_owned()), "its message never came");
}

#[tokio::test]
async fn a_message_of_an_error_is_encoded_as_little_as_grpc_asks_for() {
    let service = Service::start(CONFIG, Vec::new());
    let told = call(service.public, SUBMIT, &[], Some(submit("sha265"))).await;
    assert_eq!(told["grpc-message"], r#"unknown kind; did you mean "sha256"?"#);
    let told = call(service.public, CHECK, &[], Some(framed(0, b"\x0a\x01x"))).await;
    assert_eq!(told["grpc-message"], "health knows no service of this name");
    let many = framed(0, &waterwheel::proto::SubmitManyRequest::default().encode_to_vec());
    let broken = [many, framed(0, b"\xff")].concat();
    let told = call(service.public, MANY, &[], Some(broken)).await;
    assert_eq!(told["grpc-message"], "the message of the call cannot be read", "in trailers");
}
