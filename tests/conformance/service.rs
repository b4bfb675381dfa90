//! The service that the runner calls. Each request says how it is to be answered, and the answer says what arrived.
//!
//! All methods are served as streams of undecoded messages: then one function serves them all, with any headers and
//! trailers.
// tidy: real time, because the runner asks for delays, and measures them.

use std::{
    convert::Infallible,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use prost::Message as _;
use prost_reflect::{MethodDescriptor, ServiceDescriptor};
use prost_types::Any;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status, Streaming,
    body::Body,
    codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataMap,
    server::Grpc,
};
use tower::{Service, service_fn};
use waterwheel::rpc::timeout;

use crate::messages::{
    Answer, DuplexRequest, Failure, Header, Payload, RequestInfo, StreamDefinition, StreamRequest, UnaryRequest,
};

/// The service, with the largest size of a message.
#[derive(Clone)]
pub(crate) struct Conformance {
    pub(crate) descriptor: ServiceDescriptor,
    pub(crate) largest: usize,
}

impl Service<Request<axum::body::Body>> for Conformance {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<axum::body::Body>) -> Self::Future {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let method = self.descriptor.methods().find(|method| method.name() == name);
        let mut grpc = Grpc::new(Undecoded)
            .max_decoding_message_size(self.largest)
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip);
        async move {
            let Some(method) = method else { return Ok(Status::unimplemented("no such method").into_http()) };
            let call = service_fn(move |request| answer(method.clone(), request));
            let mut answer = grpc.streaming(call, request.map(Body::new)).await;
            let trailers = answer.extensions_mut().remove::<Trailers>().unwrap_or_default().0;
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |mut frame| {
                    if let Some(sent) = frame.trailers_mut() {
                        sent.extend(trailers.clone());
                    }
                    frame
                }))
            }))
        }
        .boxed()
    }
}

/// Passes messages on as they are.
struct Undecoded;

impl Codec for Undecoded {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Undecoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(message);
        Ok(())
    }
}

impl Decoder for Undecoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}

/// Trailers of an answer, beside those of gRPC.
#[derive(Clone, Default)]
struct Trailers(HeaderMap);

type Answers = ReceiverStream<Result<Bytes, Status>>;

async fn answer(
    method: MethodDescriptor,
    request: tonic::Request<Streaming<Bytes>>,
) -> Result<tonic::Response<Answers>, Status> {
    if method.name() == "Unimplemented" {
        return Err(Status::unimplemented("as its name says"));
    }
    let (metadata, _, messages) = request.into_parts();
    let mut arrived = Arrived { method, headers: metadata.into_headers(), messages, requests: Vec::new() };
    let first = arrived.next().await?.unwrap_or_default();
    let definition = arrived.definition(&first)?;
    let is_bidi = arrived.method.is_client_streaming() && arrived.method.is_server_streaming();
    let is_full_duplex = is_bidi && DuplexRequest::decode(&first[..]).is_ok_and(|request| request.full_duplex);
    if !is_full_duplex {
        while arrived.next().await?.is_some() {}
    }
    let (sender, answers) = mpsc::channel(1);
    let mut response = tonic::Response::new(ReceiverStream::new(answers));
    *response.metadata_mut() = MetadataMap::from_headers(header_map(&definition.headers));
    response.extensions_mut().insert(Trailers(header_map(&definition.trailers)));
    tokio::spawn(async move {
        if let Err(status) = arrived.answers(definition, is_full_duplex, &sender).await {
            let _ = sender.send(Err(status)).await;
        }
    });
    Ok(response)
}

/// What has arrived of a call.
struct Arrived {
    method: MethodDescriptor,
    headers: HeaderMap,
    messages: Streaming<Bytes>,
    /// Those that no answer has named.
    requests: Vec<Any>,
}

impl Arrived {
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let message = self.messages.message().await.map_err(|status| match status.code() {
            // The codec's word for a message that is too large.
            Code::OutOfRange => Status::resource_exhausted(status.message()),
            _ => status,
        })?;
        if let Some(message) = &message {
            let type_url = format!("type.googleapis.com/{}", self.method.input().full_name());
            self.requests.push(Any { type_url, value: message.to_vec() });
        }
        Ok(message)
    }

    /// How the caller wants to be answered.
    fn definition(&self, first: &[u8]) -> Result<StreamDefinition, Status> {
        let broken = |error: prost::DecodeError| Status::invalid_argument(error.to_string());
        if self.method.is_server_streaming() {
            return Ok(StreamRequest::decode(first).map_err(broken)?.definition.unwrap_or_default());
        }
        let definition = UnaryRequest::decode(first).map_err(broken)?.definition.unwrap_or_default();
        Ok(StreamDefinition {
            data: if definition.error.is_some() { Vec::new() } else { vec![definition.data] },
            headers: definition.headers,
            trailers: definition.trailers,
            error: definition.error,
            delay_ms: definition.delay_ms,
        })
    }

    /// Sends the answers: after all requests, or each after one more.
    async fn answers(
        mut self,
        definition: StreamDefinition,
        is_full_duplex: bool,
        sender: &mpsc::Sender<Result<Bytes, Status>>,
    ) -> Result<(), Status> {
        let is_silent = definition.data.is_empty();
        for (number, data) in definition.data.into_iter().enumerate() {
            let more = number > 0 && is_full_duplex && self.next().await?.is_some();
            sleep(Duration::from_millis(definition.delay_ms.into())).await;
            let request_info = match number {
                0 => Some(self.info()),
                _ if more => Some(RequestInfo { requests: std::mem::take(&mut self.requests), ..Default::default() }),
                _ => None,
            };
            let answer = Answer { payload: Some(Payload { data, request_info }) };
            if sender.send(Ok(answer.encode_to_vec().into())).await.is_err() {
                return Ok(());
            }
        }
        let Some(Failure { code, message, mut details }) = definition.error else { return Ok(()) };
        if is_silent {
            sleep(Duration::from_millis(definition.delay_ms.into())).await;
            let type_url = "type.googleapis.com/connectrpc.conformance.v1.ConformancePayload.RequestInfo".to_owned();
            details.push(Any { type_url, value: self.info().encode_to_vec() });
        }
        let status = tonic_types::pb::Status { code, message: message.clone(), details };
        Err(Status::with_details(Code::from(code), message, status.encode_to_vec().into()))
    }

    /// The headers, and the requests that no answer has named.
    fn info(&mut self) -> RequestInfo {
        let timeout =
            self.headers.get(timeout::GRPC_TIMEOUT).and_then(|value| timeout::parse(value.to_str().ok()?).ok());
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let header = |name: &HeaderName| Header {
            name: name.as_str().to_owned(),
            value: self.headers.get_all(name).iter().map(text).collect(),
        };
        RequestInfo {
            headers: self.headers.keys().map(header).collect(),
            timeout_ms: timeout.and_then(|timeout| timeout.as_millis().try_into().ok()),
            requests: std::mem::take(&mut self.requests),
        }
    }
}

fn header_map(headers: &[Header]) -> HeaderMap {
    let pairs = headers.iter().flat_map(|header| header.value.iter().map(|value| (&header.name, value)));
    pairs.filter_map(|(name, value)| Some((name.parse::<HeaderName>().ok()?, value.parse().ok()?))).collect()
}
