//! How a call is written: its codec and its frames, from its media type, its query, and what its caller accepts.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue,
    header::{ACCEPT, CONTENT_TYPE},
};
use percent_encoding::percent_decode_str;
use tonic::Status;

use crate::{model::Reason, rpc::status};

/// Base64 of a query, with or without padding.
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// The media type of JSON texts, one in each line.
const LINES: &str = "application/x-ndjson";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Json,
    Protobuf,
}

/// What stands around messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// The body is one message.
    Whole,
    /// Flags, length and message, as in gRPC. The last one says how the call ended.
    Envelopes,
    /// Each message is a line, and so is the end of the call.
    Lines,
}

/// How a call and its answer are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) codec: Codec,
    pub(super) request: Framing,
    pub(super) answer: Framing,
}

impl Form {
    /// The form of a call by POST; `None` for gRPC and whatever else is no call of this door.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let (codec, request) = match media_type(headers.get(CONTENT_TYPE)?)? {
            "application/json" => (Codec::Json, Framing::Whole),
            "application/proto" => (Codec::Protobuf, Framing::Whole),
            "application/connect+json" => (Codec::Json, Framing::Envelopes),
            "application/connect+proto" => (Codec::Protobuf, Framing::Envelopes),
            _ => return None,
        };
        let accepts_lines = (codec, request) == (Codec::Json, Framing::Whole)
            && headers.get_all(ACCEPT).iter().any(|accepted| media_type(accepted) == Some(LINES));
        Some(Self { codec, request, answer: if accepts_lines { Framing::Lines } else { request } })
    }

    /// Whether a method can be called in this form. Only answers can be lines.
    pub(super) fn fits(self, streams_requests: bool, streams_answers: bool) -> bool {
        match self.answer {
            Framing::Whole => !streams_requests && !streams_answers,
            Framing::Envelopes => streams_requests || streams_answers,
            Framing::Lines => !streams_requests && streams_answers,
        }
    }

    /// The media type of an answer.
    pub(super) fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match (self.codec, self.answer) {
            (_, Framing::Lines) => LINES,
            (Codec::Json, Framing::Whole) => "application/json",
            (Codec::Protobuf, Framing::Whole) => "application/proto",
            (Codec::Json, Framing::Envelopes) => "application/connect+json",
            (Codec::Protobuf, Framing::Envelopes) => "application/connect+proto",
        })
    }
}

/// The type and subtype of a value, if they are in lower case, as all callers write them.
fn media_type(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()?.split([';', ' ', ',']).next()
}

/// The call in the query of a GET.
#[derive(Debug, Clone)]
pub(super) struct Query {
    pub(super) form: Form,
    pub(super) message: Bytes,
    pub(super) compression: Option<String>,
}

impl Query {
    /// `None` if the query names no encoding of this door: it is no call.
    ///
    /// # Errors
    /// The refusal of a call that cannot be read.
    pub(super) fn read(query: &str) -> Option<Result<Self, Status>> {
        let of = |name: &str| {
            let mut parts = query.split('&').filter_map(|part| part.split_once('='));
            parts.find(|(known, _)| *known == name).map(|(_, value)| value)
        };
        let codec = match of("encoding")? {
            "json" => Codec::Json,
            "proto" => Codec::Protobuf,
            _ => return None,
        };
        let form = Form { codec, request: Framing::Whole, answer: Framing::Whole };
        let message = message(of("connect"), of("message"), of("base64"));
        let compression = of("compression").map(str::to_owned);
        Some(message.map(|message| Self { form, message: message.into(), compression }))
    }
}

/// The message in a query with these parameters.
///
/// # Errors
/// INVALID_ARGUMENT if one is missing, or has a value that it cannot have.
fn message(version: Option<&str>, message: Option<&str>, base64: Option<&str>) -> Result<Vec<u8>, Status> {
    let refuse = |text: &str| status::saying(Reason::InvalidForm, format!("the parameter {text}"));
    if version.is_some_and(|version| version != "v1") {
        return Err(refuse("connect must be v1"));
    }
    // As forms are written: some callers write a space as a plus.
    let text = message.ok_or_else(|| refuse("message is missing"))?.replace('+', "%20");
    let text: Vec<u8> = percent_decode_str(&text).collect();
    match base64 {
        None => Ok(text),
        Some("1") => URL_SAFE.decode(&text).map_err(|error| refuse(&format!("message is no base64: {error}"))),
        Some(_) => Err(refuse("base64 must be 1")),
    }
}
