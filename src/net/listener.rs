//! Listening sockets: TCP, Unix, and those of the service manager. Accepts connections within the limits.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use ipnet::IpNet;
use listenfd::ListenFd;
use socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
    time::sleep,
};
use tracing::warn;

use super::{
    address::{DEFAULT_MODE, ListenAddress},
    proxy::proxy_address,
    server::{Deal, Stage, reached},
    stream::{Carrier, Stream},
    tracker::{ConnectionTracker, Entry, Refused},
};
use crate::{incidents::Throttle, model::Origin};

/// Connections that may wait in the kernel's accept queue.
const LISTEN_BACKLOG: i32 = 1024;
/// First pause after the system failed to accept a connection. It doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A bound socket. Connections wait in its queue until it is served.
pub struct Bound {
    address: ListenAddress,
    // Dropped before the socket closes, so that a socket file always has a listening server.
    _file: Option<SocketFile>,
    incoming: Incoming,
}

/// New connections and their peers.
type Incoming = BoxStream<'static, io::Result<(Socket, Origin)>>;

/// Sockets that the service manager passed to this process.
pub struct Inherited(ListenFd);

/// Removes a socket file when dropped.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file, to recognize a successor's file.
    id: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed or replaced the file.
        if id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Inherited {
    /// The sockets that the environment describes. Only the first call in a process finds any.
    pub fn take() -> Self {
        Self(ListenFd::from_env())
    }
}

/// Binds `address`. Port 0 means any free port. A socket file without a server is replaced.
///
/// # Errors
/// If the address is in use, belongs to another machine, or was not passed by the service manager.
///
/// # Panics
/// Outside of a runtime, which polls the socket.
pub fn bind(address: &ListenAddress, inherited: &mut Inherited) -> io::Result<Bound> {
    match address {
        ListenAddress::Tcp(address) => {
            let listener = bind_tcp(*address)?;
            let address = ListenAddress::Tcp(listener.local_addr()?);
            Ok(Bound { address, _file: None, incoming: incoming_tcp(listener)? })
        }
        ListenAddress::Unix { path, mode } => {
            let incoming = incoming_unix(bind_unix(path, *mode)?)?;
            Ok(Bound { address: address.clone(), _file: Some(SocketFile::of(path)?), incoming })
        }
        ListenAddress::Systemd(place) => inherit(*place, &mut inherited.0),
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<StdTcpListener> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // After a restart, old connections in TIME_WAIT must not block the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<StdUnixListener> {
    remove_abandoned(path)?;
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Clients can connect only after `listen`, so the umask's permissions never apply to a connection.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket file of a server that exited without removing it.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    match StdUnixStream::connect(path) {
        Err(error) if is_socket && error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        // If anything else is there, the bind fails.
        _ => Ok(()),
    }
}

fn inherit(place: usize, inherited: &mut ListenFd) -> io::Result<Bound> {
    if let Ok(Some(listener)) = inherited.take_unix_listener(place) {
        let path = listener.local_addr()?.as_pathname().map(Path::to_path_buf);
        let address = match path {
            Some(path) => ListenAddress::Unix { path, mode: DEFAULT_MODE },
            None => ListenAddress::Systemd(place),
        };
        // The file belongs to the service manager.
        return Ok(Bound { address, _file: None, incoming: incoming_unix(listener)? });
    }
    let listener = inherited.take_tcp_listener(place).ok().flatten().ok_or_else(|| {
        let text = "the service manager did not pass this listening socket, or another listener took it";
        io::Error::new(ErrorKind::NotFound, text)
    })?;
    let address = ListenAddress::Tcp(listener.local_addr()?);
    Ok(Bound { address, _file: None, incoming: incoming_tcp(listener)? })
}

impl Bound {
    /// A listener without a system socket, such as in-memory pipes or a simulated network. Connections count as network
    /// connections from their peer's address, so TLS applies. The server drops `incoming` to close the listener. If
    /// `incoming` ends, the server accepts no more connections. `address` is the listener's name.
    pub fn of<C>(
        address: ListenAddress,
        incoming: impl futures_util::Stream<Item = io::Result<(C, SocketAddr)>> + Send + 'static,
    ) -> Self
    where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let accepted = incoming.map(|accepted| {
            accepted.map(|(carrier, address)| (Socket::Own(Box::new(carrier)), Origin::Address(address)))
        });
        Self { address, _file: None, incoming: accepted.boxed() }
    }

    /// Its address, with the port that the system chose.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }
}

/// Registers the socket with the current runtime.
fn incoming_tcp(listener: StdTcpListener) -> io::Result<Incoming> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let accept = move |(stream, address): (TcpStream, SocketAddr)| {
        // Replies are already batched above the socket, so the system must not delay them.
        stream.set_nodelay(true)?;
        Ok((Socket::Tcp(stream.into_std()?), Origin::Address(address)))
    };
    Ok(stream::poll_fn(move |cx| listener.poll_accept(cx).map(|accepted| Some(accepted.and_then(accept)))).boxed())
}

/// Registers the socket with the current runtime.
fn incoming_unix(listener: StdUnixListener) -> io::Result<Incoming> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let accept = move |(stream, _): (UnixStream, _)| {
        let peer = stream.peer_cred()?;
        let origin = Origin::Process { user: peer.uid(), group: peer.gid(), process: peer.pid() };
        Ok((Socket::Unix(stream.into_std()?), origin))
    };
    Ok(stream::poll_fn(move |cx| listener.poll_accept(cx).map(|accepted| Some(accepted.and_then(accept)))).boxed())
}

/// A counted connection, on its way to the thread that serves it.
pub(super) struct Accepted {
    pub(super) socket: Socket,
    pub(super) origin: Origin,
    pub(super) entry: Entry,
    /// While it is held, the server has not ended.
    pub(super) stage: watch::Receiver<Stage>,
}

/// The socket of a connection, not yet on a runtime.
pub(super) enum Socket {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
    Own(Box<dyn Carrier>),
}

impl Socket {
    /// Registers the socket with the current runtime.
    pub(super) fn into_stream(self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(socket) => Stream::new(TcpStream::from_std(socket)?),
            Self::Unix(socket) => Stream::new(UnixStream::from_std(socket)?),
            Self::Own(carrier) => Stream::new(carrier),
        })
    }
}

/// Accepts connections within the limits, and passes them to `deal`, until the listener closes. Peers in `proxies` have
/// no limit per address. After an error of the system, such as no free file descriptor, the loop pauses, longer each
/// time. Meanwhile connections wait in the kernel's accept queue.
pub(super) async fn accept(
    mut bound: Bound,
    mut stage: watch::Receiver<Stage>,
    tracker: ConnectionTracker,
    proxies: Arc<[IpNet]>,
    deal: Arc<Deal>,
) {
    let mut pause = MIN_PAUSE;
    let failures = Throttle::default();
    loop {
        let accepted = tokio::select! {
            Some(accepted) = bound.incoming.next() => accepted,
            () = reached(&mut stage, Stage::Closed) => return,
        };
        match accepted {
            Ok((socket, origin)) => {
                pause = MIN_PAUSE;
                // Dropping a socket closes it.
                let Some(mut entry) = tracker.enter() else {
                    tracker.refuse(&origin, Refused::Connections);
                    continue;
                };
                if proxy_address(&proxies, &origin).is_none() && !entry.claim(&origin) {
                    entry.refuse(&origin, Refused::PerAddress);
                    continue;
                }
                deal(Accepted { socket, origin, entry, stage: stage.clone() });
            }
            // The error concerns one connection, such as one that its peer closed in the queue.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if let Some(others) = failures.pass() {
                    warn!(%error, pause_ms = pause.as_millis(), others, "cannot accept connections");
                }
                tokio::select! {
                    () = sleep(pause) => {}
                    () = reached(&mut stage, Stage::Closed) => return,
                }
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, InvalidInput, NotConnected};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | InvalidInput | NotConnected
    )
}
