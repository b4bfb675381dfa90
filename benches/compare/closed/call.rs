//! Calls of one gRPC method, encoded once. The load generator runs on the machine of the server, so it must be cheap.

use std::{io, net::SocketAddr, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{Connection, ResponseFuture, SendRequest},
};
use http::{HeaderMap, Method, Request, StatusCode, Version, header};
use prost::Message;
use tokio::net::TcpStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::load::Reason;

/// Bytes before each message: compression flag and length.
pub(super) const PREFIX: usize = 5;
/// Windows as large as those of common clients, so that flow control does not limit the load.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;
/// The reason of calls that ended without a status.
const NO_STATUS: &str = "NO_STATUS";

/// A connection: the half that opens calls and the half that moves bytes.
pub(super) struct Link {
    /// Opens calls.
    pub(super) sender: SendRequest<Bytes>,
    /// Transfers bytes while it is polled. Ends when the connection does.
    pub(super) connection: Connection<TcpStream, Bytes>,
}

/// The request head of a method; each call sends a copy.
#[derive(Debug, Clone)]
pub(super) struct Head(Request<()>);

impl Head {
    /// The head for calls of `method` of the worker-pool service on `authority`.
    ///
    /// # Errors
    /// If `authority` is not valid.
    pub(super) fn new(authority: &str, method: &str, deadline: Duration) -> Result<Self, http::Error> {
        let head = Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            .uri(format!("http://{authority}/waterwheel.v1.WorkerPoolService/{method}"))
            .header("grpc-timeout", grpc_timeout(deadline))
            .header(header::TE, "trailers")
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::USER_AGENT, concat!("waterwheel-bench/", env!("CARGO_PKG_VERSION")));
        Ok(Self(head.body(())?))
    }

    /// Opens a call.
    ///
    /// # Errors
    /// If the connection is lost or accepts no more calls.
    pub(super) async fn open(
        &self,
        sender: &mut SendRequest<Bytes>,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        std::future::poll_fn(|cx| sender.poll_ready(cx)).await?;
        sender.send_request(self.0.clone(), false)
    }
}

/// Connects to the server.
///
/// # Errors
/// If the server accepts no connection.
pub(super) async fn connect(server: SocketAddr) -> io::Result<Link> {
    let socket = TcpStream::connect(server).await?;
    socket.set_nodelay(true)?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW).enable_push(false);
    let (sender, connection) = builder.handshake(socket).await.map_err(io::Error::other)?;
    Ok(Link { sender, connection })
}

/// A gRPC frame with this message.
pub(super) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).expect("clap bounds the payload far below 4 GiB"));
    message.encode(&mut framed).expect("the buffer was made for the message");
    framed.freeze()
}

/// The body of a response. `None` if its head ended the call with OK.
///
/// # Errors
/// A head with another status than OK, or one that is not a gRPC response.
pub(super) async fn body(response: ResponseFuture) -> Result<Option<RecvStream>, Reason> {
    let (head, body) = response.await.map_err(|error| lost(&error))?.into_parts();
    if head.status != StatusCode::OK {
        return Err(format!("HTTP_{}", head.status.as_u16()).into());
    }
    if body.is_end_stream() {
        return ended(&head.headers).map(|()| None);
    }
    Ok(Some(body))
}

/// Reads a body to its end and returns how the call ended.
///
/// # Errors
/// A status other than OK, or a lost connection.
pub(super) async fn discard(mut body: RecvStream) -> Result<(), Reason> {
    while let Some(data) = body.data().await {
        let data = data.map_err(|error| lost(&error))?;
        body.flow_control().release_capacity(data.len()).map_err(|error| lost(&error))?;
    }
    let trailers = body.trailers().await.map_err(|error| lost(&error))?;
    trailers.map_or(Err(NO_STATUS.into()), |trailers| ended(&trailers))
}

/// The reason of the end of a call, if its status is not OK.
fn ended(trailers: &HeaderMap) -> Result<(), Reason> {
    if trailers.get(Status::GRPC_STATUS).is_some_and(|status| status == "0") {
        return Ok(());
    }
    Err(Status::from_header_map(trailers).map_or(NO_STATUS.into(), |status| reason(&status)))
}

/// `ErrorInfo.reason` of a status, else the name of its code.
pub(super) fn reason(status: &Status) -> Reason {
    match status.get_details_error_info() {
        Some(info) if !info.reason.is_empty() => info.reason.into(),
        _ => code_name(status.code()).into(),
    }
}

/// The reason for the end of a connection or stream.
pub(super) fn lost(error: &h2::Error) -> Reason {
    match error.reason() {
        Some(reason) if error.is_reset() => format!("RST_STREAM_{reason:?}").into(),
        Some(reason) if error.is_go_away() && reason != h2::Reason::NO_ERROR => format!("GOAWAY_{reason:?}").into(),
        _ => "CONNECTION_LOST".into(),
    }
}

/// The name of a code in the documents of gRPC, such as `DEADLINE_EXCEEDED`.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// A `grpc-timeout` value: at most eight digits and a unit, in the finest unit that fits.
fn grpc_timeout(deadline: Duration) -> String {
    let units = [(deadline.as_micros(), 'u'), (deadline.as_millis(), 'm'), (u128::from(deadline.as_secs()), 'S')];
    let fits = units.into_iter().find(|(count, _)| *count < 100_000_000);
    fits.map_or("99999999S".to_owned(), |(count, unit)| format!("{count}{unit}"))
}
