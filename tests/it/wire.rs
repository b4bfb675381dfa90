//! Answers to calls that violate the gRPC protocol, deadlines and error messages on the wire, and both versions of gRPC
//! reflection.

use std::future::poll_fn;

use http::HeaderMap;
use prost::Message;
use prost_types::FileDescriptorProto;
use tonic::{Code, Status, Streaming};
use tonic_reflection::pb::{
    v1::{
        ServerReflectionRequest, ServerReflectionResponse, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    },
    v1alpha::server_reflection_client::ServerReflectionClient as AlphaClient,
};
use tonic_types::StatusExt;
use waterwheel::proto::{
    AttachRequest,
    attach_request::{self, Hello},
};

use crate::{
    connections::{Client, end_of},
    process::{PATIENCE, Process},
    service::{Address, Service, frame, framed, submission},
};

const CONFIG: &str = r#"
    drain.notice = "0s"
    pool.one.workers = 1
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sha256 = { pool = "one", builtin = "sha256" }
    kind.far = { pool = "far", remote = true }
    pool.far = {}
    store.memory = true
"#;
const SUBMIT: &str = "/waterwheel.v1.WorkerPoolService/Submit";
const MANY: &str = "/waterwheel.v1.WorkerPoolService/SubmitMany";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const ATTACH: &str = "/waterwheel.v1.WorkerService/Attach";
const CREATE_JOBS: &str = "/waterwheel.v1.JobService/CreateJobs";
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

/// The message with the flag by which the server marks what it has cut.
fn cut(framed: &[u8]) -> Vec<u8> {
    [&[0x80], &framed[1..]].concat()
}

fn reason(answer: &HeaderMap) -> (Code, String) {
    let status = Status::from_header_map(answer).expect("a status");
    let details = status.get_error_details();
    (status.code(), details.error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}")).reason.clone())
}

#[tokio::test]
async fn violations_of_the_protocol_get_the_status_that_grpc_defines() {
    let service = Service::start(CONFIG, Vec::new());
    let twice = [submission("echo", "x"), submission("echo", "x")].concat();
    let none = frame(0, &[]);
    let hello = Hello { kinds: vec!["far".into()], ..Hello::default() };
    let hello = AttachRequest { message: Some(attach_request::Message::Hello(hello)) };
    let (broken, cardinality) = ((Code::Internal, "MESSAGE_BROKEN"), (Code::Unimplemented, "NOT_ONE_MESSAGE"));
    let unknown = (Code::Unimplemented, "COMPRESSION_UNKNOWN");
    let cases = [
        (SUBMIT, "gzip", frame(1, b"not gzip"), broken),
        (MANY, "gzip", frame(1, b"not gzip"), broken),
        (REFLECTION, "identity", frame(0, b"\xff"), broken),
        (SUBMIT, "identity", frame(7, b""), broken),
        (SUBMIT, "identity", cut(&submission("echo", "x")), broken),
        (MANY, "identity", cut(&frame(0, b"")), broken),
        (ATTACH, "identity", cut(&framed(&hello)), broken),
        (CREATE_JOBS, "identity", cut(&frame(0, b"")), broken),
        (REFLECTION, "identity", cut(&frame(0, b"")), broken),
        (CHECK, "identity", cut(&frame(0, b"")), broken),
        (SUBMIT, "identity", frame(0, b"\xff\xff"), broken),
        (SUBMIT, "identity", submission("echo", "x")[..9].to_vec(), broken),
        (SUBMIT, "br", frame(1, b"x"), unknown),
        (MANY, "zstd", frame(1, b"x"), unknown),
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
    assert_eq!(answer["grpc-message"], "no health service has this name");
    let many = framed(&waterwheel::proto::SubmitManyRequest::default());
    let broken = [many, frame(0, b"\xff")].concat();
    let answer = call(service.public, MANY, &[], Some(broken)).await;
    assert_eq!(answer["grpc-message"], "the message of the call cannot be read", "in trailers");
}

const ECHO: &str = "pool.one.workers = 1\nkind.echo = { pool = \"one\", builtin = \"echo\" }\n";

fn reflect(message_request: Option<MessageRequest>) -> ServerReflectionRequest {
    ServerReflectionRequest { host: "here".into(), message_request }
}

/// What identifies a response: the file, the type or the number of services; or the code of its error.
fn summary(answer: &ServerReflectionResponse) -> Result<String, i32> {
    assert_eq!(answer.valid_host, "here");
    match answer.message_response.as_ref().expect("an answer") {
        MessageResponse::FileDescriptorResponse(files) => {
            let file = FileDescriptorProto::decode(&files.file_descriptor_proto[0][..]).unwrap();
            Ok(file.name().to_owned())
        }
        MessageResponse::ErrorResponse(error) => Err(error.error_code),
        MessageResponse::AllExtensionNumbersResponse(numbers) => Ok(numbers.base_type_name.clone()),
        MessageResponse::ListServicesResponse(list) => Ok(list.service.len().to_string()),
    }
}

async fn answers(process: &Process, requests: Vec<ServerReflectionRequest>) -> Streaming<ServerReflectionResponse> {
    let mut client = ServerReflectionClient::new(process.public.channel().await);
    client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner()
}

#[tokio::test]
async fn reflection_answers_known_and_unknown_names_on_one_stream() {
    let process = Process::serve(ECHO).await;
    let symbol = |name: &str| MessageRequest::FileContainingSymbol(name.into());
    let file = |name: &str| MessageRequest::FileByFilename(name.into());
    let numbers = |name: &str| MessageRequest::AllExtensionNumbersOfType(name.into());
    let extension = tonic_reflection::pb::v1::ExtensionRequest {
        containing_type: "waterwheel.v1.Job".into(),
        extension_number: 1000,
    };
    let service = "waterwheel/v1/worker_pool_service.proto";
    let job = "waterwheel/v1/job.proto";
    let details = "error_details.proto";
    let cases = [
        (symbol("waterwheel.v1.Nothing"), Err(5)),
        (symbol("waterwheel.v1.WorkerPoolService"), Ok(service)),
        (symbol("waterwheel.v1.WorkerPoolService.Submit"), Ok(service)),
        (symbol("waterwheel.v1.WorkerPoolService.Nothing"), Err(5)),
        (symbol("waterwheel.v1.Job"), Ok(job)),
        (symbol("waterwheel.v1.Job.kind"), Ok(job)),
        (symbol("waterwheel.v1.Job.nothing"), Err(5)),
        (symbol("waterwheel.v1.Criticality"), Ok(job)),
        (symbol("waterwheel.v1.Criticality.CRITICALITY_CRITICAL"), Ok(job)),
        (symbol(""), Err(5)),
        (symbol("."), Err(5)),
        // Messages in the details of errors.
        (symbol("google.rpc.Status"), Ok("status.proto")),
        (symbol("google.rpc.ErrorInfo"), Ok(details)),
        (symbol("google.rpc.BadRequest.FieldViolation"), Ok(details)),
        (symbol("google.rpc.RetryInfo"), Ok(details)),
        (symbol("grpc.health.v1.Health.Watch"), Ok("health.proto")),
        (file("google/protobuf/duration.proto"), Ok("google/protobuf/duration.proto")),
        (file("nothing.proto"), Err(5)),
        (numbers("waterwheel.v1.Job"), Ok("waterwheel.v1.Job")),
        (numbers("waterwheel.v1.Nothing"), Err(5)),
        (MessageRequest::FileContainingExtension(extension), Err(5)),
        (MessageRequest::ListServices(String::new()), Ok("7")),
    ];
    let requests = cases.iter().map(|(request, _)| reflect(Some(request.clone())));
    let mut answers = answers(&process, requests.chain([reflect(None)]).collect()).await;
    for (request, expected) in &cases {
        let answer = answers.message().await.unwrap().expect("an answer to each request");
        assert_eq!(answer.original_request, Some(reflect(Some(request.clone()))));
        assert_eq!(summary(&answer), expected.map(str::to_owned), "{request:?}");
    }
    assert_eq!(summary(&answers.message().await.unwrap().unwrap()), Err(3), "the answer to an empty request");
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn version_v1alpha_gives_the_same_answers() {
    use tonic_reflection::pb::v1alpha;
    let process = Process::serve(ECHO).await;
    let symbols = ["waterwheel.v1.Nothing", "google.rpc.ErrorInfo"].map(str::to_owned);
    let requests = symbols.map(|symbol| v1alpha::ServerReflectionRequest {
        host: "here".into(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol)),
    });
    let mut client = AlphaClient::new(process.public.channel().await);
    let mut answers = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
    for expected in [Err(5), Ok("error_details.proto".to_owned())] {
        let answer = answers.message().await.unwrap().expect("an answer to each request").encode_to_vec();
        assert_eq!(summary(&ServerReflectionResponse::decode(&answer[..]).unwrap()), expected);
    }
}

/// A caller without a timeout has the default one, also before its message has arrived.
#[tokio::test]
async fn a_call_without_a_timeout_whose_message_never_comes_gets_a_status() {
    let process = Process::serve(&format!("{CONFIG}\n deadline.default = \"300ms\"")).await;
    for path in [SUBMIT, "/waterwheel.v1.WorkerPoolService/Stream"] {
        let answer = call(process.public, path, &[], None).await;
        assert_eq!(reason(&answer), (Code::DeadlineExceeded, "CALL_TIMEOUT".to_owned()), "{path}");
    }
}

/// HAProxy 2.6 forwards a reset in place of an answer that came before it.
#[tokio::test]
async fn the_rest_of_a_refused_call_is_read_and_its_stream_is_not_reset() {
    let process = Process::serve(CONFIG).await;
    let mut client = Client::connect(process.public.0).await;
    let (answer, mut sending) = client.call_with("/waterwheel.v1.WorkerPoolService/Nothing", &[]).await;
    let answer = tokio::spawn(end_of(answer));
    // More than the window of a stream.
    let mut left = 3 << 19;
    while left > 0 {
        sending.reserve_capacity(left);
        let granted = tokio::time::timeout(PATIENCE, poll_fn(|cx| sending.poll_capacity(cx))).await;
        let piece = granted.expect("the window grows").expect("no reset").unwrap().min(left);
        left -= piece;
        sending.send_data(vec![0; piece].into(), left == 0).unwrap();
    }
    assert_eq!(reason(&answer.await.unwrap()).0, Code::Unimplemented);
}
