//! The answer to a call, as its caller reads it.

use std::{
    io::Write as _,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use prost_reflect::MessageDescriptor;
use serde_json::json;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Status, body::Body};

use super::{
    STREAM_ENCODING, error,
    form::{Codec, Form, Framing},
    json,
    work::Work,
};
use crate::{
    model::Reason,
    rpc::{
        context::{REQUEST_ID, request_id},
        edge::answer::AnswerBody,
        status,
        upload::HEAD,
    },
};

/// The flags of an envelope: a compressed message, and the end of a stream.
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Smallest message that is compressed, in bytes.
const MIN_COMPRESSED: usize = 1 << 10;

/// How the messages of an answer are written.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) form: Form,
    /// Whether the caller reads gzip.
    pub(super) gzip: bool,
    pub(super) output: MessageDescriptor,
    pub(super) work: Work,
}

impl Writer {
    /// The answer, from that of the service. A stream ends at `give_up`: HTTP/1.1 could only cut its connection.
    pub(super) async fn answer(self, answer: Response<AnswerBody>, give_up: Option<Instant>) -> Response<Body> {
        let (mut head, body) = answer.into_parts();
        if head.status != StatusCode::OK {
            return Response::from_parts(head, Body::new(body));
        }
        let status = Status::from_header_map(&head.headers);
        take_status(&mut head.headers);
        match (status, self.form.answer) {
            (Some(status), _) => failed(self.form, &status, head.headers),
            (None, Framing::Whole) => self.whole(head.headers, body).await,
            (None, _) => {
                head.headers.insert(CONTENT_TYPE, self.form.media_type());
                if self.gzip && self.form.answer == Framing::Envelopes {
                    head.headers.insert(STREAM_ENCODING, HeaderValue::from_static("gzip"));
                }
                let late = status::too_late(&request_id(head.headers.get(REQUEST_ID)));
                let alarm = give_up.map(|give_up| Box::pin(sleep_until(give_up)));
                let (body, kept) = (Some(body), BytesMut::new());
                let body = Outgoing { body, writer: self, kept, is_translating: None, alarm, late };
                Response::from_parts(head, Body::new(body))
            }
        }
    }

    async fn whole(self, mut headers: HeaderMap, body: AnswerBody) -> Response<Body> {
        let collected = match body.collect().await {
            Ok(collected) => collected,
            Err(status) => return failed(self.form, &status, headers),
        };
        let mut trailers = collected.trailers().cloned().unwrap_or_default();
        let status = end_status(&trailers);
        take_status(&mut trailers);
        for (name, value) in &trailers {
            if let Ok(name) = HeaderName::try_from(format!("trailer-{name}")) {
                headers.append(name, value.clone());
            }
        }
        if status.code() != tonic::Code::Ok {
            return failed(self.form, &status, headers);
        }
        let (message, writer) = (collected.to_bytes(), self.clone());
        let written = self.work.run(message.len(), move || {
            let message = message.get(HEAD..).ok_or_else(|| broken("the answer has no message"))?;
            writer.compressed(writer.translated(message)?)
        });
        match written.await {
            Ok((written, is_compressed)) => {
                headers.insert(CONTENT_TYPE, self.form.media_type());
                if is_compressed {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                }
                let mut response = Response::new(Body::new(Full::new(Bytes::from(written))));
                *response.headers_mut() = headers;
                response
            }
            Err(status) => failed(self.form, &status, headers),
        }
    }

    fn translated(&self, message: &[u8]) -> Result<Vec<u8>, Status> {
        match self.form.codec {
            Codec::Protobuf => Ok(message.to_vec()),
            Codec::Json => json::write(&self.output, message),
        }
    }

    /// The message, compressed if that is worth it.
    fn compressed(&self, message: Vec<u8>) -> Result<(Vec<u8>, bool), Status> {
        if !self.gzip || message.len() < MIN_COMPRESSED {
            return Ok((message, false));
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let compressed = encoder.write_all(&message).and_then(|()| encoder.finish());
        compressed.map(|compressed| (compressed, true)).map_err(|error| broken(&error.to_string()))
    }

    /// Messages of a stream, which have the prefix of gRPC.
    fn stream(&self, messages: &[u8]) -> Result<Bytes, Status> {
        let (mut written, mut rest) = (Vec::new(), messages);
        while let Some(([_, a, b, c, d], after)) = rest.split_first_chunk() {
            let (message, after) = after.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
            rest = after;
            let text = self.translated(message)?;
            if self.form.answer == Framing::Lines {
                written.extend_from_slice(&text);
                written.push(b'\n');
            } else {
                let (message, is_compressed) = self.compressed(text)?;
                envelope(if is_compressed { COMPRESSED } else { 0 }, &message, &mut written);
            }
        }
        Ok(written.into())
    }
}

/// The answer to a call that failed before its first message. That to a stream is its end.
pub(super) fn failed(form: Form, status: &Status, mut headers: HeaderMap) -> Response<Body> {
    if form.answer == Framing::Whole {
        return error::answer(status, headers);
    }
    headers.insert(CONTENT_TYPE, form.media_type());
    let mut response = Response::new(Body::new(Full::new(end(form, status, &HeaderMap::new()))));
    *response.headers_mut() = headers;
    response
}

/// The end of a stream: its error, if it failed, and its trailers.
fn end(form: Form, status: &Status, trailers: &HeaderMap) -> Bytes {
    let mut end = json!({});
    if status.code() != tonic::Code::Ok {
        end["error"] = error::json(status);
    }
    for name in trailers.keys() {
        let values = trailers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        end["metadata"][name.as_str()] = values.collect();
    }
    if form.answer == Framing::Lines {
        // A line that is no message. A call that succeeded has none.
        let failed = end.get("error").map(|error| format!("{}\n", json!({ "error": error })));
        return failed.unwrap_or_default().into();
    }
    let mut written = Vec::new();
    envelope(END, end.to_string().as_bytes(), &mut written);
    written.into()
}

fn envelope(flags: u8, message: &[u8], out: &mut Vec<u8>) {
    out.push(flags);
    out.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(message);
}

/// The status in trailers.
fn end_status(trailers: &HeaderMap) -> Status {
    Status::from_header_map(trailers).unwrap_or_else(|| broken("the answer has no status"))
}

fn broken(message: &str) -> Status {
    status::saying(Reason::ServerFailed, message.to_owned())
}

/// Removes what only gRPC says.
fn take_status(headers: &mut HeaderMap) {
    for name in [
        "grpc-status",
        "grpc-message",
        "grpc-status-details-bin",
        "grpc-encoding",
        "grpc-accept-encoding",
        "grpc-retry-pushback-ms",
    ] {
        headers.remove(name);
    }
}

/// Messages of a stream, and its end.
struct Outgoing {
    /// `None` once the end is sent.
    body: Option<AnswerBody>,
    writer: Writer,
    /// The begin of an incomplete message.
    kept: BytesMut,
    is_translating: Option<BoxFuture<'static, Result<Bytes, Status>>>,
    alarm: Option<Pin<Box<Sleep>>>,
    /// How a stream ends that is open at the alarm.
    late: Status,
}

impl Outgoing {
    /// The complete messages that have come.
    fn complete(&mut self) -> Bytes {
        let (mut length, mut rest) = (0, &self.kept[..]);
        while let Some(([_, a, b, c, d], after)) = rest.split_first_chunk()
            && let Some(after) = after.get(u32::from_be_bytes([*a, *b, *c, *d]) as usize..)
        {
            length += rest.len() - after.len();
            rest = after;
        }
        self.kept.split_to(length).freeze()
    }

    /// The last frame.
    fn end(&mut self, status: &Status, trailers: &HeaderMap) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.body = None;
        Poll::Ready(Some(Ok(Frame::data(end(self.writer.form, status, trailers)))))
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(translation) = &mut this.is_translating {
                let written = ready!(translation.poll_unpin(cx));
                this.is_translating = None;
                return match written {
                    Ok(written) => Poll::Ready(Some(Ok(Frame::data(written)))),
                    Err(status) => this.end(&status, &HeaderMap::new()),
                };
            }
            let Some(body) = &mut this.body else { return Poll::Ready(None) };
            let frame = match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame.into_data(),
                Poll::Ready(Some(Err(status))) => return this.end(&status, &HeaderMap::new()),
                Poll::Ready(None) => Err(Frame::trailers(HeaderMap::new())),
                Poll::Pending => {
                    let Some(alarm) = &mut this.alarm else { return Poll::Pending };
                    ready!(alarm.as_mut().poll(cx));
                    let late = this.late.clone();
                    return this.end(&late, &HeaderMap::new());
                }
            };
            match frame {
                Ok(data) => {
                    this.kept.extend_from_slice(&data);
                    let complete = this.complete();
                    if !complete.is_empty() {
                        let writer = this.writer.clone();
                        this.is_translating = Some(Box::pin(async move {
                            let work = writer.work.clone();
                            work.run(complete.len(), move || writer.stream(&complete)).await
                        }));
                    }
                }
                Err(frame) => {
                    let mut trailers = frame.into_trailers().unwrap_or_default();
                    let status = end_status(&trailers);
                    take_status(&mut trailers);
                    return this.end(&status, &trailers);
                }
            }
        }
    }
}
