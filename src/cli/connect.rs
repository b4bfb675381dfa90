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
    sync::{Arc, OnceLock},
    task::{Context, Poll},
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
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_util::io::InspectReader;
use tonic::{Code, Status, body::Body};
use tonic_types::{ErrorDetails, StatusExt};

use super::{
    access::{Access, AccessArgs},
    failure::Failure,
};
use crate::{
    model::Reason,
    proto::{
        admin_service_client::AdminServiceClient, health::health_client::HealthClient,
        job_service_client::JobServiceClient, worker_pool_service_client::WorkerPoolServiceClient,
    },
};

/// Longest time to connect.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

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
    /// A host and a port with TLS.
    Tls(Authority),
    /// A socket file.
    Unix(PathBuf),
}

/// The text is not an address.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum AddressError {
    #[error("no port; pass HOST:PORT, such as {0}:7070")]
    NoPort(String),
    #[error("no path after unix:; pass unix:PATH")]
    NoPath,
    #[error("not an address; pass HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH")]
    Malformed,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(AddressError::NoPath),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let (is_tls, text) = match text.strip_prefix("https://") {
            Some(text) => (true, text),
            None => (false, text.strip_prefix("http://").unwrap_or(text)),
        };
        let text = text.strip_suffix('/').unwrap_or(text);
        let authority = Authority::from_str(text).map_err(|_| AddressError::Malformed)?;
        if authority.host().is_empty() || text.contains('@') {
            Err(AddressError::Malformed)
        } else if authority.port_u16().is_none() {
            Err(AddressError::NoPort(authority.host().to_owned()))
        } else if is_tls {
            Ok(Self::Tls(authority))
        } else {
            Ok(Self::Tcp(authority))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => write!(f, "{authority}"),
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
            Self::Tcp(authority) | Self::Tls(authority) => {
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
    heard: Heard,
}

/// The first byte of the peer.
type Heard = Arc<OnceLock<u8>>;

/// HTTP/2 begins with the length of a frame, whose first byte is zero.
const FRAME: u8 = 0;

/// Why a connection carried no call: its peer did not begin to speak HTTP/2.
#[derive(Debug, Error)]
pub(super) enum Unspoken {
    #[error("it does not speak HTTP/2 in plaintext")]
    NotPlain,
    #[error("{0}")]
    NoTls(String),
}

impl Connection {
    /// Connects within `patience`.
    ///
    /// # Errors
    /// [`Failure::Unreachable`] with the system's error.
    pub(crate) async fn open(address: &Address, access: &Access, patience: Duration) -> Result<Self, Failure> {
        let heard = Heard::default();
        let unreachable = |cause: String| Failure::Unreachable { address: address.clone(), cause, flag: "--server" };
        let connected = tokio::time::timeout(patience, async {
            match address {
                Address::Tcp(authority) | Address::Tls(authority) => {
                    let socket = TcpStream::connect(authority.as_str()).await?;
                    socket.set_nodelay(true)?;
                    let secured = access.secure(authority.host(), socket).await;
                    Ok(handshake(secured.map_err(Unconnected::NoTls)?, &heard).await)
                }
                Address::Unix(path) => Ok::<_, Unconnected>(handshake(UnixStream::connect(path).await?, &heard).await),
            }
        });
        let requests = match connected.await {
            Ok(Ok(Ok(requests))) => requests,
            Ok(Ok(Err(error))) if access.scheme() == "https" => {
                return Err(Failure::NoTls { address: address.clone(), cause: root_cause(&error) });
            }
            Ok(Ok(Err(error))) => return Err(unreachable(root_cause(&error))),
            Ok(Err(Unconnected::NoTls(error))) => {
                return Err(Failure::NoTls { address: address.clone(), cause: explain(&error) });
            }
            Ok(Err(Unconnected::Io(error))) => return Err(unreachable(explain(&error))),
            Err(_) => {
                let waited = super::output::setting(patience);
                return Err(unreachable(format!("no connection within {waited}")));
            }
        };
        let authority = match address {
            Address::Tcp(authority) | Address::Tls(authority) => authority.clone(),
            Address::Unix(_) => Authority::from_static("localhost"),
        };
        let origin = Uri::builder()
            .scheme(access.scheme())
            .authority(authority)
            .path_and_query("/")
            .build()
            .expect("scheme, authority and path make a URI");
        Ok(Self { requests, origin, token: access.token().cloned(), heard })
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

    /// Why a call found its connection broken.
    fn broken(&self, error: hyper::Error) -> Box<dyn Error + Send + Sync> {
        match self.heard.get() {
            Some(&FRAME) => error.into(),
            // A client without the certificate that it must show is let go at once, after the handshake.
            _ if self.origin.scheme_str() == Some("https") => Unspoken::NoTls(root_cause(&error)).into(),
            _ => Unspoken::NotPlain.into(),
        }
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
        self.requests.poll_ready(cx).map_err(|error| self.broken(error))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        const AGENT: HeaderValue = HeaderValue::from_static(concat!("waterwheel/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(USER_AGENT, AGENT);
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let answer = self.requests.send_request(request);
        let connection = self.clone();
        Box::pin(async move {
            match answer.await {
                // HTTP/2 itself answers so, before gRPC reads the headers.
                Ok(response) if response.status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                    Err(headers_too_large().into())
                }
                Ok(response) => Ok(response),
                Err(error) => Err(connection.broken(error)),
            }
        })
    }
}

/// The refusal that the server itself gives where HTTP/2 lets the headers through.
fn headers_too_large() -> Status {
    let reason = Reason::HeadersTooLarge;
    let metadata = HashMap::from([("execution".to_owned(), "NOT_STARTED".to_owned())]);
    let mut details = ErrorDetails::with_error_info(reason.name(), "waterwheel", metadata);
    details.add_help_link(reason.help(), "");
    Status::with_error_details(Code::ResourceExhausted, reason.words(), details)
}

/// Why there is no connection.
enum Unconnected {
    /// The handshake of TLS failed.
    NoTls(io::Error),
    Io(io::Error),
}

impl From<io::Error> for Unconnected {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The innermost error, which says what happened.
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

async fn handshake<S>(socket: S, heard: &Heard) -> Result<SendRequest<Body>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let first = Arc::clone(heard);
    let socket = InspectReader::new(socket, move |bytes: &[u8]| {
        let _ = bytes.first().map(|byte| first.get_or_init(|| *byte));
    });
    let (requests, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEPALIVE)
        .handshake(TokioIo::new(socket))
        .await?;
    // The calls of the connection report how it broke.
    TokioExecutor::new().execute(async move { drop(connection.await) });
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::{Access, Address, AddressError, Connection};
    use crate::cli::{exit::Exit, fake};
    use std::time::Duration;

    #[test]
    fn addresses_are_read_in_every_form() {
        let cases = [
            ("127.0.0.1:7070", Ok("127.0.0.1:7070")),
            ("http://127.0.0.1:7071", Ok("127.0.0.1:7071")),
            ("http://host.example:80/", Ok("host.example:80")),
            ("[::1]:7070", Ok("[::1]:7070")),
            ("unix:/run/ww.sock", Ok("unix:/run/ww.sock")),
            ("unix:///run/ww.sock", Ok("unix:/run/ww.sock")),
            ("https://host:1", Ok("https://host:1")),
            ("host", Err(AddressError::NoPort("host".to_owned()))),
            ("unix:", Err(AddressError::NoPath)),
            ("", Err(AddressError::Malformed)),
            (":7070", Err(AddressError::Malformed)),
            ("user@host:1", Err(AddressError::Malformed)),
            ("host:1/path", Err(AddressError::Malformed)),
            ("host:99999", Err(AddressError::NoPort("host".to_owned()))),
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
