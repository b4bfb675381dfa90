//! The connection of a command to a server.
//!
//! tonic's own channel stops exactly when `grpc-timeout` passes, and so misses the server's answer, which explains why.
//! This connection has no timer; [`super::call`] owns the deadline.

use std::{
    collections::HashMap,
    error::Error,
    fmt, io,
    path::PathBuf,
    pin::Pin,
    str::FromStr,
    task::{Context, Poll, ready},
    time::Duration,
};

use clap::Args;
use http::{
    HeaderValue, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, USER_AGENT},
    uri::Authority,
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
};
use tonic::{Code, Status, body::Body};
use tonic_types::{ErrorDetails, StatusExt};

use super::{
    access::{Access, AccessArgs},
    failure::Failure,
    output::setting,
};
use crate::{
    model::Reason,
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

/// The flag that names the server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Address of the server: HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_SERVER", default_value = "127.0.0.1:7070")]
    pub(crate) server: Address,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host and a port.
    Tcp(Authority),
    /// A host and a port without TLS.
    Plain(Authority),
    /// A host and a port with TLS.
    Tls(Authority),
    /// A socket file.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = &'static str;

    /// The error says what to pass instead.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const MALFORMED: &str = "not an address; pass HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH";
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err("no path after unix:; pass unix:PATH"),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let (form, text): (fn(Authority) -> Self, _) = match text.split_once("://") {
            Some(("https", text)) => (Self::Tls, text),
            Some(("http", text)) => (Self::Plain, text),
            _ => (Self::Tcp, text),
        };
        let text = text.strip_suffix('/').unwrap_or(text);
        let authority = Authority::from_str(text).map_err(|_| MALFORMED)?;
        if authority.host().is_empty() || text.contains('@') {
            Err(MALFORMED)
        } else if authority.port_u16().is_none() {
            Err("no port; pass HOST:PORT, such as 127.0.0.1:7070")
        } else {
            Ok(form(authority))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) | Self::Plain(authority) => write!(f, "{authority}"),
            Self::Tls(authority) => write!(f, "https://{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Whether the address is on this machine.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(authority) | Self::Plain(authority) | Self::Tls(authority) => {
                let host = authority.host().trim_start_matches('[').trim_end_matches(']');
                host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

/// A connection to one server, for generated clients.
#[derive(Clone)]
pub(crate) struct Connection {
    requests: SendRequest<Body>,
    origin: Uri,
    token: Option<HeaderValue>,
}

/// An HTTP/2 frame begins with its length, whose first byte is zero.
const FRAME: u8 = 0;

impl Connection {
    /// Connects within `limit`, and waits until the peer begins to speak HTTP/2.
    ///
    /// # Errors
    /// The system's error, or that of TLS, or that the peer speaks something else.
    pub(crate) async fn open(address: &Address, access: &Access, limit: Duration) -> Result<Self, Failure> {
        let unreachable = |error: io::Error| Failure::unreachable(address, &explain(&error));
        let connected = tokio::time::timeout(limit, async {
            let spoken = match address {
                Address::Tcp(authority) | Address::Plain(authority) | Address::Tls(authority) => {
                    let socket = TcpStream::connect(authority.as_str()).await.map_err(unreachable)?;
                    socket.set_nodelay(true).map_err(unreachable)?;
                    let secured = access.secure(authority.host(), socket).await;
                    handshake(secured.map_err(|error| Failure::no_tls(address, &error))?).await
                }
                Address::Unix(path) => handshake(UnixStream::connect(path).await.map_err(unreachable)?).await,
            };
            spoken.map_err(|error| match access.scheme() {
                "https" => Failure::no_tls(address, &error),
                _ => Failure::not_plain(address),
            })
        });
        let late = |_| Failure::unreachable(address, &format!("no connection within {}", setting(limit)));
        let requests = connected.await.map_err(late)??;
        let authority = match address {
            Address::Tcp(authority) | Address::Plain(authority) | Address::Tls(authority) => authority.clone(),
            Address::Unix(_) => Authority::from_static("localhost"),
        };
        let origin = Uri::builder()
            .scheme(access.scheme())
            .authority(authority)
            .path_and_query("/")
            .build()
            .expect("scheme, authority and path make a URI");
        Ok(Self { requests, origin, token: access.token().cloned() })
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

impl tower::Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        const AGENT: HeaderValue = HeaderValue::from_static(concat!("waterwheel/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(USER_AGENT, AGENT);
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let answer = self.requests.send_request(request);
        Box::pin(async move {
            match answer.await {
                // HTTP/2 itself answers this, before gRPC reads the headers.
                Ok(response) if response.status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                    Err(headers_too_large().into())
                }
                Ok(response) => Ok(response),
                Err(error) => Err(error.into()),
            }
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

/// The innermost error, which describes the cause.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<io::Error>() {
        Some(error) => explain(error),
        None => innermost.to_string(),
    }
}

/// A system error as text, without its number.
pub(super) fn explain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = match text.split_once(" (os error ") {
        Some((words, _)) => words,
        None => &text,
    };
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Begins to speak HTTP/2, and waits for the first byte of the peer: in TLS 1.3 a peer that wants a certificate says so
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

/// A socket that reports the first byte that it reads, or `None` at its end. No write fails: the reason is in what can
/// still be read, such as an alert of TLS.
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

#[cfg(test)]
mod tests {
    use super::{Access, Address, Connection};
    use crate::cli::{exit::Exit, fake};
    use std::time::Duration;

    #[test]
    fn addresses_are_read_in_every_form() {
        const MALFORMED: &str = "not an address; pass HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH";
        let cases = [
            ("127.0.0.1:7070", Ok("127.0.0.1:7070")),
            ("http://127.0.0.1:7071", Ok("127.0.0.1:7071")),
            ("http://host.example:80/", Ok("host.example:80")),
            ("[::1]:7070", Ok("[::1]:7070")),
            ("unix:/run/ww.sock", Ok("unix:/run/ww.sock")),
            ("unix:///run/ww.sock", Ok("unix:/run/ww.sock")),
            ("https://host:1", Ok("https://host:1")),
            ("host", Err("no port; pass HOST:PORT, such as 127.0.0.1:7070")),
            ("unix:", Err("no path after unix:; pass unix:PATH")),
            ("", Err(MALFORMED)),
            (":7070", Err(MALFORMED)),
            ("user@host:1", Err(MALFORMED)),
            ("host:1/path", Err(MALFORMED)),
            ("host:99999", Err("no port; pass HOST:PORT, such as 127.0.0.1:7070")),
        ];
        for (text, expected) in cases {
            let read = text.parse::<Address>().map(|address| address.to_string());
            assert_eq!(read, expected.map(str::to_owned), "{text}");
        }
    }

    #[tokio::test]
    async fn a_closed_port_is_unreachable_in_words() {
        let address = fake::closed_address().await;
        let failure = Connection::open(&address, &Access::default(), Duration::from_secs(1)).await.err().unwrap();
        assert_eq!(failure.exit(), Exit::Unreachable);
        assert_eq!(
            anstream::adapter::strip_str(&failure.text()).to_string(),
            format!(
                "cannot reach {address}: connection refused\n  help: start one with \"waterwheel dev\", or pass \
                 --server"
            )
        );
    }
}
