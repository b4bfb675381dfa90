//! The connection of a command to a server, and its calls with their metadata and deadline.
//!
//! tonic's own channel stops exactly when `grpc-timeout` passes. So it misses the server's answer, which has the
//! reason. This connection has no timer; [`Call`] owns the deadline.

use std::{
    collections::HashMap,
    error::Error,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use clap::Args;
use http::{
    HeaderMap, HeaderValue, StatusCode, Uri,
    header::{AUTHORIZATION, USER_AGENT},
};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
    rt::Executor,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    time::Instant,
};
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    metadata::{Ascii, MetadataValue},
};
use tonic_types::{ErrorDetails, StatusExt};

use super::{
    access::{Access, AccessArgs, Address},
    failure::{Exit, Failure},
    flags::any_duration,
    output::setting,
};
use crate::{
    file::explain,
    model::{InvalidRequestId, Reason, RequestId},
    proto::{
        admin_service_client::AdminServiceClient, health::health_client::HealthClient,
        job_service_client::JobServiceClient, worker_pool_service_client::WorkerPoolServiceClient,
    },
};

/// Longest time to connect.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Time after the deadline in which the server's answer may still arrive.
const SLACK: Duration = Duration::from_millis(250);

/// Longest wait for an answer that the server gives at once.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Flags that become metadata.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CallArgs {
    /// Deadline of the job: queue and run together, such as 2s or 500ms [default: the server's].
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    deadline: Option<Duration>,
    /// Id of the job in logs and traces [default: chosen by the server].
    #[arg(long, value_name = "ID", value_parser = request_id)]
    request_id: Option<MetadataValue<Ascii>>,
}

impl CallArgs {
    /// A deadline, and no request id.
    pub(crate) fn within(deadline: Duration) -> Self {
        Self { deadline: Some(deadline), request_id: None }
    }
}

/// One call on its own connection.
///
/// It sends its deadline to the server, and also ends itself if the server does not answer.
pub(crate) struct Call {
    pub(crate) connection: Connection,
    address: Address,
    deadline: Option<Duration>,
    /// When to stop waiting: [`SLACK`] after the deadline.
    give_up: Option<Instant>,
}

impl Call {
    /// Connects, and starts the clock once the connection is open.
    ///
    /// # Errors
    /// If a file for the access cannot be used, or the server is unreachable.
    pub(crate) async fn begin(address: &Address, access: &AccessArgs, args: CallArgs) -> Result<Self, Failure> {
        let CallArgs { deadline, request_id } = args;
        let limit = deadline.map_or(CONNECT_TIMEOUT, |it| it.min(CONNECT_TIMEOUT));
        let mut connection = Connection::open(&access.load(address)?, limit).await?;
        let mut metadata = Request::new(());
        if let Some(deadline) = deadline {
            metadata.set_timeout(deadline);
        }
        if let Some(id) = request_id {
            metadata.metadata_mut().insert("x-request-id", id);
        }
        connection.headers.extend(metadata.into_parts().0.into_headers());
        let give_up = deadline.and_then(|it| Instant::now().checked_add(it + SLACK));
        Ok(Self { connection, address: address.clone(), deadline, give_up })
    }

    /// Makes the call, and waits for the answer.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub(crate) async fn ask<A>(
        &self,
        send: impl AsyncFnOnce(&Connection) -> Result<Response<A>, Status>,
    ) -> Result<A, Failure> {
        Ok(self.wait(send(&self.connection)).await?.into_inner())
    }

    /// Waits for the server's answer, at most until the deadline.
    ///
    /// # Errors
    /// If the deadline passes, or the status is a failure.
    pub(crate) async fn wait<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Failure> {
        let answered = match (self.give_up, self.deadline) {
            (Some(at), Some(deadline)) => tokio::time::timeout_at(at, answer).await.map_err(|_| {
                let deadline = setting(deadline);
                let what = format!("no answer by the deadline of {deadline}; whether the job started is unknown");
                Failure::new(Exit::DeadlineExceeded, what, "see \"waterwheel stats\" for the state of the server")
            })?,
            _ => answer.await,
        };
        answered.map_err(|status| Failure::of_status(status, &self.address))
    }
}

/// Flags that name a server.
pub(crate) trait Target {
    /// Address of the server.
    fn address(&self) -> &Address;

    /// How to reach that address.
    fn access(&self) -> AccessArgs;

    /// Connects for one call.
    async fn call(&self, args: CallArgs) -> Result<Call, Failure> {
        Call::begin(self.address(), &self.access(), args).await
    }

    /// Makes one call that the server answers at once.
    async fn ask<A>(&self, send: impl AsyncFnOnce(&Connection) -> Result<Response<A>, Status>) -> Result<A, Failure> {
        self.call(CallArgs::within(ANSWER_TIMEOUT)).await?.ask(send).await
    }
}

/// A connection to one server, for generated clients.
#[derive(Clone)]
pub(crate) struct Connection {
    requests: SendRequest<Body>,
    origin: Uri,
    /// Headers of each call.
    headers: HeaderMap,
}

/// An HTTP/2 frame begins with its length, whose first byte is zero.
const FRAME: u8 = 0;

impl Connection {
    /// Connects within `limit`, and waits until the peer begins to speak HTTP/2.
    ///
    /// # Errors
    /// The system's error, or that of TLS, or that the peer speaks something else.
    pub(crate) async fn open(access: &Access, limit: Duration) -> Result<Self, Failure> {
        let address = &access.address;
        let unreachable = |error: io::Error| Failure::unreachable(address, &explain(&error));
        let connected = tokio::time::timeout(limit, async {
            let spoken = match address {
                Address::Tcp { authority, .. } => {
                    let socket = TcpStream::connect(authority.as_str()).await.map_err(unreachable)?;
                    socket.set_nodelay(true).map_err(unreachable)?;
                    let secured = access.secure(authority.host(), socket).await;
                    handshake(secured.map_err(|error| Failure::no_tls(address, &error))?).await
                }
                Address::Unix(path) => handshake(UnixStream::connect(path).await.map_err(unreachable)?).await,
            };
            spoken.map_err(|error| match access.has_tls() {
                true => Failure::no_tls(address, &error),
                false => Failure::not_plain(address),
            })
        });
        let late = |_| Failure::unreachable(address, &format!("no connection within {}", setting(limit)));
        let requests = connected.await.map_err(late)??;
        const AGENT: HeaderValue = HeaderValue::from_static(concat!("waterwheel/", env!("CARGO_PKG_VERSION")));
        let mut headers = HeaderMap::from_iter([(USER_AGENT, AGENT)]);
        headers.extend(access.token.clone().map(|token| (AUTHORIZATION, token)));
        Ok(Self { requests, origin: access.origin(), headers })
    }

    /// A client for callers, without limits on message sizes.
    pub(crate) fn worker_pool(&self) -> WorkerPoolServiceClient<Self> {
        WorkerPoolServiceClient::with_origin(self.clone(), self.origin.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX)
    }

    /// A client for detached jobs, without limits on message sizes.
    pub(crate) fn jobs(&self) -> JobServiceClient<Self> {
        JobServiceClient::with_origin(self.clone(), self.origin.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX)
    }

    /// A client for operators.
    pub(crate) fn admin(&self) -> AdminServiceClient<Self> {
        AdminServiceClient::with_origin(self.clone(), self.origin.clone())
    }

    /// A client of the health service.
    pub(crate) fn health(&self) -> HealthClient<Self> {
        HealthClient::with_origin(self.clone(), self.origin.clone())
    }
}

impl tower::Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        request.headers_mut().extend(self.headers.clone());
        let answer = self.requests.send_request(request);
        Box::pin(async move {
            let response = answer.await?;
            // HTTP/2 itself answers this, before gRPC reads the headers.
            let is_refused = response.status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            if is_refused { Err(headers_too_large().into()) } else { Ok(response) }
        })
    }
}

/// The refusal that the server itself sends if HTTP/2 accepts the headers.
fn headers_too_large() -> Status {
    let reason = Reason::HeadersTooLarge;
    let metadata = HashMap::from([("execution".to_owned(), "NOT_STARTED".to_owned())]);
    let mut details = ErrorDetails::with_error_info(reason.name(), "waterwheel", metadata);
    details.add_help_link(reason.help(), "");
    Status::with_error_details(Code::ResourceExhausted, reason.words(), details)
}

/// Begins to speak HTTP/2, and waits for the first byte of the peer. In TLS 1.3, a peer asks for a missing certificate
/// only after the handshake.
async fn handshake<S>(socket: S) -> io::Result<SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (reported, first) = oneshot::channel();
    let (requests, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEPALIVE)
        .handshake(TokioIo::new(FirstByte { socket, reported: Some(reported) }))
        .await
        .map_err(io::Error::other)?;
    // The connection's calls report how it broke.
    TokioExecutor::new().execute(async move { drop(connection.await) });
    match first.await.unwrap_or(Ok(None))? {
        Some(FRAME) => Ok(requests),
        Some(_) => Err(io::Error::other("it does not speak HTTP/2")),
        None => Err(io::Error::other("it closed the connection")),
    }
}

/// A socket that reports the first byte that it reads, or `None` at its end. Errors of writes are ignored, because a
/// read then has the reason, such as an alert of TLS.
struct FirstByte<S> {
    socket: S,
    reported: Option<oneshot::Sender<io::Result<Option<u8>>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstByte<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.socket).poll_read(cx, buffer));
        let Some(reported) = self.reported.take() else { return Poll::Ready(read) };
        let copy = read.as_ref().copied().map_err(|error| error.kind().into());
        drop(reported.send(read.map(|()| buffer.filled().get(before).copied())));
        Poll::Ready(copy)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstByte<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes).map(|written| Ok(written.unwrap_or(bytes.len())))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map(|_| Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

fn request_id(text: &str) -> Result<MetadataValue<Ascii>, InvalidRequestId> {
    text.parse::<RequestId>()?.as_str().parse().map_err(|_| InvalidRequestId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake;

    #[tokio::test]
    async fn a_closed_port_is_unreachable_in_words() {
        let address = fake::closed_address().await;
        let failure = Connection::open(&AccessArgs::default().load(&address).unwrap(), Duration::from_secs(1))
            .await
            .err()
            .unwrap();
        assert_eq!(failure.exit(), Exit::Unreachable);
        assert_eq!(
            anstream::adapter::strip_str(&failure.text()).to_string(),
            format!(
                "cannot reach {address}: connection refused\n  help: start one with \"waterwheel dev\", or pass its \
                 address: --server for callers, --ops for operators"
            )
        );
    }

    #[test]
    fn request_ids_are_what_the_server_keeps() {
        assert!(request_id("req-1/α").is_err());
        assert!(request_id("a b").is_err());
        assert!(request_id("").is_err());
        assert!(request_id(&"x".repeat(129)).is_err());
        assert_eq!(request_id("req-1").unwrap(), "req-1");
        assert!(request_id(&"x".repeat(128)).is_ok());
    }
}
