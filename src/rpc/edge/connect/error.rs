//! A status as JSON, and as a status of HTTP.

use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use prost::Message as _;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};
use tonic::{Code, Status, body::Body};
use tonic_types::StatusExt as _;

use crate::rpc::reflection::DESCRIPTORS;

/// The answer to a call whose answer is one message.
pub(super) fn answer(status: &Status, mut headers: HeaderMap) -> Response<Body> {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = retry_after(status) {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    let mut response = Response::new(Body::new(json(status).to_string()));
    *response.status_mut() = http_status(status.code());
    *response.headers_mut() = headers;
    response
}

/// Seconds, rounded up, after which the call may be repeated: its job has not started.
fn retry_after(status: &Status) -> Option<u64> {
    let details = status.get_error_details();
    let execution = details.error_info().and_then(|info| info.metadata.get("execution").cloned());
    let delay = details.retry_info().and_then(|info| info.retry_delay)?;
    (execution.as_deref() == Some("NOT_STARTED"))
        .then(|| delay.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX))
}

/// Callers without Protobuf read `debug` of the details.
pub(super) fn json(status: &Status) -> Value {
    let details = tonic_types::pb::Status::decode(status.details()).map(|status| status.details);
    let mut details = details.unwrap_or_default();
    // Callers find the reason in the first one.
    details.sort_by_key(|detail| !detail.type_url.ends_with("google.rpc.ErrorInfo"));
    let mut error = json!({ "code": code_name(status.code()) });
    if !status.message().is_empty() {
        error["message"] = status.message().into();
    }
    if !details.is_empty() {
        error["details"] = details.iter().map(|detail| self::detail(&detail.type_url, &detail.value)).collect();
    }
    error
}

fn detail(type_url: &str, value: &[u8]) -> Value {
    let name = type_url.rsplit('/').next().unwrap_or_default();
    let mut detail = json!({ "type": name, "value": BASE64_STANDARD_NO_PAD.encode(value) });
    let known = DESCRIPTORS.get_message_by_name(name);
    let message = known.and_then(|known| DynamicMessage::decode(known, value).ok());
    if let Some(debug) = message.and_then(|message| serde_json::to_value(message).ok()) {
        detail["debug"] = debug;
    }
    detail
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "canceled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

/// As the specification of Connect has it.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
