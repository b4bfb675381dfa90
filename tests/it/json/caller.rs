//! A call by HTTP and JSON whose messages and failures are those of a call by gRPC, so that tests can compare them.

use std::sync::LazyLock;

use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};
use http::Method;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use serde_json::Value;
use tonic::{Code, Status};
use waterwheel::proto::{Job, JobFailure, SubmitRequest, SubmitResponse};

use super::{JSON, Version, ask};
use crate::{
    refusal::{Refusal, rebuilt},
    service::Address,
};

static CONTRACT: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(waterwheel::proto::DESCRIPTORS).expect("descriptors"));

/// Submits a job. A timeout is in the header of gRPC, as in the other ways, and is sent as that of this protocol.
pub(crate) async fn submit(
    address: Address,
    job: Option<Job>,
    headers: &[(&'static str, &str)],
) -> Result<SubmitResponse, Refusal> {
    let millis = |text: &str| text.trim_end_matches('S').parse::<u64>().map(|seconds| (seconds * 1000).to_string());
    let headers = headers.iter().map(|(name, value)| match *name {
        "grpc-timeout" => {
            ("connect-timeout-ms", millis(value).unwrap_or_else(|_| value.trim_end_matches('m').to_owned()))
        }
        name => (name, (*value).to_owned()),
    });
    let headers: Vec<_> = headers.collect();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    call(address, "WorkerPoolService/Submit", &SubmitRequest { job }, &headers).await
}

/// Calls `method` of a service of this contract, such as `WorkerPoolService/Submit`.
pub(crate) async fn call<A: Message + Default>(
    address: Address,
    method: &str,
    request: &impl Message,
    headers: &[(&str, &str)],
) -> Result<A, Refusal> {
    let descriptor = descriptor(method);
    let text = DynamicMessage::decode(descriptor.input(), &*request.encode_to_vec()).expect("its request");
    let body = serde_json::to_vec(&text).expect("JSON");
    let headers = [&[JSON], headers].concat();
    let answer = ask(address, Version::Http1, Method::POST, &format!("/waterwheel.v1.{method}"), &headers, body).await;
    if answer.status.is_success() {
        let message = DynamicMessage::deserialize(descriptor.output(), answer.json()).expect("its answer");
        return Ok(A::decode(&*message.encode_to_vec()).expect("its answer"));
    }
    let status = status(&answer.json());
    assert_eq!(answer.status.as_u16(), http_status(status.code()), "{status:?}");
    let request_id = answer.header("x-request-id").map(str::to_owned);
    let refusal = Refusal { status, before_headers: true, inside: true, request_id };
    let delay = refusal.details().retry_info().and_then(|info| info.retry_delay);
    let delay = delay.filter(|_| refusal.facts().get("execution").is_some_and(|execution| execution == "NOT_STARTED"));
    let seconds = delay.map(|delay| delay.as_millis().div_ceil(1000).to_string());
    assert_eq!(answer.header("retry-after"), seconds.as_deref(), "{refusal:?}");
    Err(refusal)
}

fn descriptor(method: &str) -> MethodDescriptor {
    let (service, name) = method.split_once('/').expect("a service and a method");
    let service = CONTRACT.get_service_by_name(&format!("waterwheel.v1.{service}")).expect("a service");
    service.methods().find(|method| method.name() == name).expect("a method")
}

/// The status that an error describes.
fn status(error: &Value) -> Status {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{error}")).to_owned();
    let details = error["details"].as_array().into_iter().flatten().map(|detail| prost_types::Any {
        type_url: format!("type.googleapis.com/{}", text(&detail["type"])),
        value: BASE64_STANDARD_NO_PAD.decode(text(&detail["value"])).expect("base64"),
    });
    let code = text(&error["code"]);
    let code = (0..=16).find(|number| name(Code::from_i32(*number)) == code).expect("a code of gRPC");
    rebuilt(JobFailure { code, message: text(&error["message"]), details: details.collect() })
}

/// The name of a code in the specification of Connect, which writes CANCELLED with one L.
fn name(code: Code) -> String {
    let words = format!("{code:?}").replace("Cancelled", "Canceled");
    let mut name = String::new();
    for letter in words.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

/// The status of HTTP in the same specification.
fn http_status(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::Cancelled => 499,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::DeadlineExceeded => 504,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::PermissionDenied => 403,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::Unauthenticated => 401,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
    }
}
