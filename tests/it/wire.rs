//! Answers to calls that violate the gRPC protocol.

use http::HeaderMap;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::{
    connections::{Client, end_of},
    service::{Address, Service, frame, framed, submission},
};

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

/// Headers and trailers of the answer. Without a body, the request is never finished.
async fn call(address: Address, path: &str, headers: &[(&str, &str)], body: Option<Vec<u8>>) -> HeaderMap {
    let mut client = Client::connect(address.0).await;
    let (answer, mut sending) = client.call_with(path, headers).await;
    if let Some(body) = body {
        sending.send_data(body.into(), true).unwrap();
    }
    end_of(answer).await
}

fn reason(answer: &HeaderMap) -> (Code, String) {
    let status = Status::from_header_map(answer).expect("a status");
    let details = status.get_error_details();
    (status.code(), details.error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}")).reason.clone())
}

#[tokio::test]
async fn an_unreadable_message_gets_the_status_that_grpc_defines() {
    let service = Service::start(CONFIG, Vec::new());
    let twice = [submission("echo", "x"), submission("echo", "x")].concat();
    let none = frame(0, &[]);
    let (broken, cardinality) = ((Code::Internal, "MESSAGE_BROKEN"), (Code::Unimplemented, "NOT_ONE_MESSAGE"));
    let unknown = (Code::Unimplemented, "COMPRESSION_UNKNOWN");
    let cases = [
        (SUBMIT, "gzip", frame(1, b"not gzip"), broken),
        (MANY, "gzip", frame(1, b"not gzip"), broken),
        (REFLECTION, "identity", frame(0, b"\xff"), broken),
        (SUBMIT, "identity", frame(7, b""), broken),
        (SUBMIT, "identity", frame(0, b"\xff\xff"), broken),
        (SUBMIT, "identity", submission("echo", "x")[..9].to_vec(), broken),
        (SUBMIT, "br", frame(1, b"x"), unknown),
        (MANY, "br", frame(1, b"x"), unknown),
        (CHECK, "br", frame(1, b"x"), unknown),
        (SUBMIT, "identity", twice, cardinality),
        (CHECK, "identity", [none.clone(), none].concat(), cardinality),
        (SUBMIT, "identity", Vec::new(), cardinality),
    ];
    for (path, encoding, body, expected) in cases {
        let answer = call(service.public, path, &[("grpc-encoding", encoding)], Some(body.clone())).await;
        let (code, reason) = reason(&answer);
        assert_eq!((code, reason.as_str()), expected, "{path} {encoding} {body:?}: {answer:?}");
        assert_eq!(answer.contains_key("grpc-accept-encoding"), expected == unknown, "{answer:?}");
    }
}

#[tokio::test]
async fn a_call_whose_deadline_has_passed_fails_as_deadline_exceeded() {
    let service = Service::start(CONFIG, Vec::new());
    for timeout in ["0n", "1n", "1u"] {
        let answer = call(service.public, SUBMIT, &[("grpc-timeout", timeout)], Some(submission("echo", "x"))).await;
        let (code, reason) = reason(&answer);
        assert_eq!(code, Code::DeadlineExceeded, "{timeout}: {answer:?}");
        assert!(["EXPIRED_IN_QUEUE", "CALL_TIMEOUT"].contains(&reason.as_str()), "{timeout}: {answer:?}");
    }
    let answer = call(service.public, SUBMIT, &[("grpc-timeout", "100m")], None).await;
    assert_eq!(reason(&answer), (Code::DeadlineExceeded, "CALL_TIMEOUT".to_owned()), "the message is never sent");
}

#[tokio::test]
async fn error_messages_are_percent_encoded_only_where_grpc_requires_it() {
    let service = Service::start(CONFIG, Vec::new());
    let answer = call(service.public, SUBMIT, &[], Some(submission("sha265", "x"))).await;
    assert_eq!(answer["grpc-message"], r#"unknown kind; did you mean "sha256"?"#);
    let answer = call(service.public, CHECK, &[], Some(frame(0, b"\x0a\x01x"))).await;
    assert_eq!(answer["grpc-message"], "health knows no service of this name");
    let many = framed(&waterwheel::proto::SubmitManyRequest::default());
    let broken = [many, frame(0, b"\xff")].concat();
    let answer = call(service.public, MANY, &[], Some(broken)).await;
    assert_eq!(answer["grpc-message"], "the message of the call cannot be read", "in trailers");
}
