//! Calls by the Connect protocol: JSON, or Protobuf without frames, over any version of HTTP.
//!
//! A call becomes a gRPC call for the layers below, and their answer becomes that of its caller. Its message is
//! translated while they wait for it, so that their deadline, credentials, rules and bounds apply.

mod error;
mod form;
mod incoming;
mod json;
mod outgoing;
mod work;

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{
        ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
    },
    request::Parts,
};
use http_body_util::Full;
use prost_reflect::{MethodDescriptor, prost_types::method_options::IdempotencyLevel};
use tonic::{Code, Status, body::Body};
use tower::BoxError;

#[cfg(any(test, fuzzing))]
pub(in crate::rpc) use self::json::{read as read_json, write as write_json};
use self::{
    form::{Codec, Form, Framing, Query},
    incoming::{Incoming, Reader},
    outgoing::Writer,
};
use super::{
    Connection, Front,
    answer::{AnswerBody, add_request_id},
    browsers::Translated,
};
use crate::{
    memory::HeldBack,
    model::Reason,
    rpc::{
        context::REQUEST_ID,
        routes::plain_text,
        status,
        timeout::{self, CONNECT_TIMEOUT, GRPC_TIMEOUT},
        upload::{Expected, Upload},
    },
};
pub use work::Work;

const VERSION: &str = "connect-protocol-version";
/// What a stream has in place of the headers of a whole body.
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
const STREAM_ACCEPTS: HeaderName = HeaderName::from_static("connect-accept-encoding");

/// A call of this protocol.
#[derive(Clone)]
pub(super) struct Call {
    form: Form,
    /// That of a GET.
    query: Option<Result<Query, Status>>,
    /// The refusal of a call of an unknown method, or of one that is closed to this protocol.
    method: Result<MethodDescriptor, Status>,
    work: Work,
}

impl Call {
    /// `None` if the request is no call of this protocol, or it is not spoken here.
    pub(super) fn of<B>(connection: &Connection, request: &Request<B>) -> Option<Self> {
        let Connection { edge, json, .. } = connection;
        let work = json.as_ref()?;
        let (form, query) = form(request)?;
        let path = request.uri().path();
        (!edge.catalog.is_page(path)).then(|| Self {
            form,
            query,
            method: edge.catalog.by_json(path),
            work: work.clone(),
        })
    }

    /// Translates the call to gRPC, and its answer back. Pages may read it if the operator allows them.
    pub(super) fn translate<B>(self, front: Front, request: Request<B>) -> Translated
    where
        B: http_body::Body<Data = Bytes> + HeldBack + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let memory = Arc::clone(&front.0.memory);
        let browsers = front.0.edge.browsers.clone();
        Box::pin(async move {
            let Ok(answer) = match browsers {
                Some(browsers) => {
                    browsers.answer(move |request| self.clone().answer(front.clone(), request), request).await
                }
                None => self.answer(front, request).await,
            };
            Ok(AnswerBody::new(answer, None, Some(memory)))
        })
    }

    async fn answer<B>(self, front: Front, request: Request<B>) -> Result<Response<Body>, Infallible>
    where
        B: http_body::Body<Data = Bytes> + HeldBack + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let (head, body) = request.into_parts();
        let Self { form, query, method, work } = self;
        let sent = head.headers.get(REQUEST_ID).cloned();
        let accepts = if form.answer == Framing::Whole { &ACCEPT_ENCODING } else { &STREAM_ACCEPTS };
        let gzip = head.headers.get_all(accepts).iter().any(|names| lists_gzip(names.as_bytes()));
        let answer = async {
            let method = match method {
                Ok(method) => method,
                Err(status) => return Err(unknown(&front, head, status).await),
            };
            let query = query.transpose()?;
            let writer = Writer { form, gzip, output: method.output(), work: work.clone() };
            let request = Request::from_parts(head, body);
            let call = front.answer(Asked { form, query, method, work }.request(&front.0, request)?);
            let give_up = call.give_up;
            let Ok(answer) = call.await;
            Ok::<_, Refusal>(writer.answer(answer, give_up).await)
        };
        let mut answer = answer.await.unwrap_or_else(|refusal| refusal.answer(form));
        let headers = answer.headers_mut();
        add_request_id(headers, sent.as_ref());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Ok(answer)
    }
}

/// The form of a call, and the query of one by GET; `None` if the request is no call of this protocol.
fn form<B>(request: &Request<B>) -> Option<(Form, Option<Result<Query, Status>>)> {
    if request.method() == Method::POST {
        return Some((Form::of(request.headers())?, None));
    }
    if request.method() != Method::GET {
        return None;
    }
    let query = Query::read(request.uri().query()?)?;
    let otherwise = Form { codec: Codec::Json, request: Framing::Whole, answer: Framing::Whole };
    Some((query.as_ref().map_or(otherwise, |query| query.form), Some(query)))
}

/// The refusal of a call of a method that is unknown, or closed to this protocol. Callers without the credentials that
/// others need do not learn which it is.
async fn unknown(front: &Front, mut head: Parts, refusal: Status) -> Refusal {
    if front.0.edge.catalog.has_rpc(head.uri.path()) {
        return Refusal::NotFound(refusal);
    }
    as_grpc(&mut head);
    let Ok(answer) = front.answer(Request::from_parts(head, Body::empty())).await;
    match Status::from_header_map(answer.headers()) {
        Some(status) if status.code() != Code::Unimplemented => Refusal::Status(status),
        _ => Refusal::NotFound(refusal),
    }
}

/// Makes the head of a request that of a gRPC call.
fn as_grpc(head: &mut Parts) {
    head.method = Method::POST;
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // The layers below answer this one, which reads trailers.
    head.version = Version::HTTP_2;
}

/// Why a request is not passed on.
enum Refusal {
    Status(Status),
    /// There is no such method.
    NotFound(Status),
    Http(StatusCode, (HeaderName, &'static str), &'static str),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl Refusal {
    fn answer(self, form: Form) -> Response<Body> {
        match self {
            Self::Status(status) => outgoing::failed(form, &status, HeaderMap::new()),
            Self::NotFound(status) => {
                let mut response = outgoing::failed(form, &status, HeaderMap::new());
                if form.answer == Framing::Whole {
                    *response.status_mut() = StatusCode::NOT_FOUND;
                }
                response
            }
            Self::Http(code, (name, value), text) => {
                let mut response = plain_text(code, text);
                response.headers_mut().insert(name, HeaderValue::from_static(value));
                response
            }
        }
    }
}

/// A call that can be read.
struct Asked {
    form: Form,
    query: Option<Query>,
    method: MethodDescriptor,
    work: Work,
}

impl Asked {
    /// The request, as gRPC.
    ///
    /// # Errors
    /// The refusal of a call that is not sound.
    fn request<B>(self, connection: &Connection, request: Request<B>) -> Result<Request<Body>, Refusal>
    where
        B: http_body::Body<Data = Bytes> + HeldBack + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let Self { form, query, method, work } = self;
        let (mut head, body) = request.into_parts();
        let max_message = connection.edge.max_message;
        if !form.fits(method.is_client_streaming(), method.is_server_streaming()) {
            let (unary, stream) =
                ("application/json, application/proto", "application/connect+json, application/connect+proto");
            let (accepted, text) = match (method.is_client_streaming(), method.is_server_streaming()) {
                (false, false) => (unary, "the answer is one message: call with content-type application/json"),
                (false, true) => (stream, "the answer streams: call also with accept: application/x-ndjson"),
                (true, _) => (stream, "the call streams: send envelopes with content-type application/connect+json"),
            };
            let accept_post = (HeaderName::from_static("accept-post"), accepted);
            return Err(Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE, accept_post, text));
        }
        connection.edge.refuse_page(&head, is_read_only(&method))?;
        let encoding = if form.request == Framing::Whole { CONTENT_ENCODING } else { STREAM_ENCODING };
        let encoding = head.headers.remove(encoding);
        let mut encoding = encoding.as_ref().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
        if let Some(query) = &query {
            if !is_read_only(&method) {
                let text = "this method may change something: call it by POST";
                return Err(Refusal::Http(StatusCode::METHOD_NOT_ALLOWED, (ALLOW, "POST"), text));
            }
            encoding.clone_from(&query.compression);
        } else if head.headers.get(VERSION).is_some_and(|version| version != "1") {
            return Err(invalid("connect-protocol-version must be 1").into());
        }
        let is_gzip = match encoding.as_deref() {
            None | Some("" | "identity") => false,
            Some("gzip") => true,
            Some(_) => return Err(status::of(Reason::CompressionUnknown).into()),
        };
        set_timeout(&mut head.headers)?;
        let written = match form.codec {
            // Base64 adds a third.
            Codec::Json => max_message.saturating_add(max_message / 3).saturating_add(json::MAX_TEXT),
            Codec::Protobuf => max_message,
        };
        let announced = head.headers.remove(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0);
        if announced > written && form.request == Framing::Whole {
            return Err(status::message_too_large(announced, written).into());
        }
        as_grpc(&mut head);
        let memory = Arc::clone(&connection.memory);
        let reader = Reader {
            codec: form.codec,
            framing: form.request,
            is_gzip,
            input: method.input(),
            written,
            largest: max_message,
            memory: Arc::clone(&memory),
            work,
        };
        let expected = if form.request == Framing::Whole { Expected::Whole(announced) } else { Expected::Many };
        let body = match query {
            Some(query) => {
                let upload = Upload::new(Full::new(query.message), memory, written, expected);
                Body::new(Incoming::new(upload, reader))
            }
            None => Body::new(Incoming::new(Upload::new(body, memory, written, expected), reader)),
        };
        Ok(Request::from_parts(head, body))
    }
}

impl<D> HeldBack for Full<D> {}

fn invalid(message: &'static str) -> Status {
    status::saying(Reason::InvalidForm, message)
}

/// Whether a list of encodings, such as `br;q=1, gzip`, has gzip.
fn lists_gzip(names: &[u8]) -> bool {
    let names = names.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    names.map(|name| name.split(|byte| *byte == b';').next().unwrap_or_default()).any(|name| name == b"gzip")
}

/// Whether a method changes nothing, as its contract says. Only then it may be a GET, which any page can send.
pub(in crate::rpc) fn is_read_only(method: &MethodDescriptor) -> bool {
    let options = method.options();
    let level = options.get_field_by_name("idempotency_level").and_then(|level| level.as_enum_number());
    level == Some(IdempotencyLevel::NoSideEffects as i32)
}

/// Replaces the timeout by that of gRPC.
fn set_timeout(headers: &mut HeaderMap) -> Result<(), Status> {
    let Some(asked) = headers.remove(CONNECT_TIMEOUT) else { return Ok(()) };
    let asked = asked.to_str().ok().and_then(timeout::parse_millis);
    let timeout = timeout::format(asked.ok_or_else(|| invalid("connect-timeout-ms must be 1 to 10 digits"))?);
    headers.insert(GRPC_TIMEOUT, HeaderValue::try_from(timeout).map_err(|_| invalid("connect-timeout-ms"))?);
    Ok(())
}
