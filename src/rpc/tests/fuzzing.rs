//! Fuzz targets for metadata and messages: see [`crate::fuzzing`].

use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use prost_reflect::DynamicMessage;
use tonic::{Code, Request, Status};

use super::{
    context::{self, CallContext, REQUEST_ID},
    convert,
    edge::{read_json, write_json},
    reflection::DESCRIPTORS,
    status,
    status_message::decode_message,
    timeout,
    trace::{self, BAGGAGE, Sampler, TRACEPARENT, TRACESTATE},
};
use crate::{
    auth::Rpc,
    model::{DeadlinePolicy, Rejection, RejectionReason, RequestId},
    proto::SubmitRequest,
};

/// Longest message and details that leave room for the other headers in a buffer of 4 KiB.
const MAX_STATUS: usize = 3_400;

/// `grpc-timeout`: parsed by the protocol's rules, and formatted so that it never grows.
pub(crate) fn grpc_timeout(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let valid = matches!(data, [digits @ .., b'H' | b'M' | b'S' | b'm' | b'u' | b'n']
        if (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit));
    let parsed = timeout::parse(text);
    assert_eq!(parsed.is_ok(), valid);
    if let Ok(time) = parsed {
        let again = timeout::parse(&timeout::format(time)).expect("the formatted text parses");
        assert!(again <= time && time - again <= time / 600_000, "{time:?} became {again:?}");
    }
}

/// `x-request-id`: kept if valid, else generated; the result always fits in a header.
pub(crate) fn request_id(data: &[u8]) {
    let Ok(sent) = HeaderValue::from_bytes(data) else { return };
    let id = context::request_id(Some(&sent));
    let valid = (1..=128).contains(&data.len()) && data.iter().all(u8::is_ascii_graphic);
    assert_eq!(id.as_str().as_bytes() == data, valid);
    assert_eq!(id.as_str().parse(), Ok(id.clone()));
    HeaderValue::from_str(id.as_str()).expect("an id fits a header");
}

/// The headers of a trace, a line each: a `p`, an `s` or a `b`, then the value of `traceparent`, `tracestate` or
/// `baggage`.
pub(crate) fn trace(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let (name, value) = match line {
            [b'p', value @ ..] => (TRACEPARENT, value),
            [b's', value @ ..] => (TRACESTATE, value),
            [b'b', value @ ..] => (BAGGAGE, value),
            _ => continue,
        };
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(name, value);
        }
    }
    let Some(found) = trace::extract(&headers) else { return };
    assert_eq!(headers.get_all(TRACEPARENT).iter().count(), 1);
    let sent = headers[TRACEPARENT].as_bytes();
    assert_eq!(sent[2..55], found.traceparent.as_bytes()[2..]);
    assert!(found.tracestate.len() <= 512 && found.baggage.len() <= 8_192);
    let parent = trace::remote_parent(&found).expect("an accepted context has a parent");
    assert!(parent.is_valid() && parent.is_remote());
    let flags = parent.trace_flags().to_u8();
    assert_eq!(format!("00-{}-{}-{flags:02x}", parent.trace_id(), parent.span_id()), found.traceparent);
    for text in [&found.tracestate, &found.baggage] {
        HeaderValue::from_str(text).expect("an accepted value fits a header");
    }
}

/// All headers of a call, one `name: value` a line: a deadline within the policy, or INVALID_ARGUMENT.
pub(crate) fn metadata(data: &[u8]) {
    let mut request = Request::new(());
    for line in data.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii_start()))
        {
            request.metadata_mut().as_mut().append(name, value);
        }
    }
    match CallContext::read(&request, Rpc::Submit, &Sampler::new(None, 0)) {
        Ok(call) => {
            let policy = DeadlinePolicy::default();
            let deadline = policy.fix(call.at, call.timeout);
            assert!(deadline.budget() <= policy.max);
            let answer = call.answer(());
            assert_eq!(answer.metadata().as_ref()[REQUEST_ID], call.request_id().as_str());
        }
        Err(refusal) => assert_short(&refusal),
    }
}

/// A message with a job: valid, or refused with all reasons in a status that any client accepts.
pub(crate) fn job(data: &[u8]) {
    let Ok(message) = SubmitRequest::decode(data) else { return };
    let id = RequestId::generate();
    match convert::job(message.job) {
        Ok(job) => {
            let violations = job.violations();
            if !violations.is_empty() {
                let reason = RejectionReason::Invalid { violations };
                let kind = job.kind.as_str().into();
                let rejection = Rejection { reason, pool: None, kind, retry_after: None };
                assert_short(&status::status(&rejection.into(), &id));
            }
        }
        Err(violations) => {
            assert!(!violations.is_empty());
            assert_short(&status::unreadable(violations, &id));
        }
    }
}

fn assert_short(refusal: &Status) {
    assert_eq!(refusal.code(), Code::InvalidArgument);
    let mut headers = refusal.clone().into_http::<()>().into_parts().0.headers;
    decode_message(&mut headers);
    let length = |name: &str| headers.get(name).map_or(0, HeaderValue::len);
    let length = length("grpc-message") + length("grpc-status-details-bin");
    assert!(length <= MAX_STATUS, "{length} bytes of status");
}

/// A job as JSON: refused with a short text, or the same after it is written and read again.
pub(crate) fn json(data: &[u8]) {
    let input = DESCRIPTORS.get_message_by_name("waterwheel.v1.CreateJobRequest").expect("a message");
    let read = |text: &[u8]| {
        let mut message = Vec::new();
        read_json(&input, text, &mut message).map(|()| message)
    };
    match read(data) {
        Ok(message) => {
            let again = read(&write_json(&input, &message).expect("what is read is written")).expect("and read again");
            let decoded = |message: &[u8]| DynamicMessage::decode(input.clone(), message).expect("it is whole");
            assert_eq!(decoded(&message), decoded(&again));
        }
        Err(refusal) => {
            assert!([Code::InvalidArgument, Code::ResourceExhausted].contains(&refusal.code()), "{refusal}");
            assert!(refusal.message().len() <= 4 << 10, "{refusal}");
        }
    }
}
