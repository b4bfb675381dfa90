//! Listening sockets: TCP, Unix, and those of the service manager. `accept.rs` accepts their connections.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
};

use listenfd::ListenFd;
use socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, unix::UCred},
};

use super::{
    address::{DEFAULT_MODE, ListenAddress},
    incoming::{Carrier, Incoming},
    stream::{Io, Stream},
    tracker::Entry,
};
use crate::model::Origin;

/// Connections that may wait in the kernel's queue.
const LISTEN_BACKLOG: i32 = 1024;

/// A bound socket. Connections wait in its queue until it is served.
#[derive(Debug)]
pub struct Bound {
    address: ListenAddress,
    /// The socket file, if it must be removed. It is dropped before the socket, as in a [`Listener`].
    file: Option<SocketFile>,
    socket: Listening,
}

#[derive(Debug)]
enum Listening {
    Tcp(StdTcpListener),
    Unix(StdUnixListener),
    Own(Incoming),
}

/// Sockets that the service manager passed to this process.
pub struct Inherited(ListenFd);

/// Removes a socket file when dropped.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and number of the file, to recognize a successor's.
    id: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed or replaced it.
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
    #[must_use]
    pub fn take() -> Self {
        Self(ListenFd::from_env())
    }
}

/// Binds `address`. Port 0 takes any free port; a socket file without a server is replaced.
///
/// # Errors
/// If the address is in use, is not one of this machine, or was not passed by the service manager.
pub fn bind(address: &ListenAddress, inherited: &mut Inherited) -> io::Result<Bound> {
    match address {
        ListenAddress::Tcp(address) => {
            let listener = bind_tcp(*address)?;
            let address = ListenAddress::Tcp(listener.local_addr()?);
            Ok(Bound { address, socket: Listening::Tcp(listener), file: None })
        }
        ListenAddress::Unix { path, mode } => {
            let socket = Listening::Unix(bind_unix(path, *mode)?);
            Ok(Bound { address: address.clone(), socket, file: Some(SocketFile::of(path)?) })
        }
        ListenAddress::Systemd(place) => inherit(*place, &mut inherited.0),
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<StdTcpListener> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // After a restart, connections of the predecessor must not block the port until they time out.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<StdUnixListener> {
    remove_abandoned(path)?;
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Connections are possible only after `listen`, so that the umask's permissions never apply to one.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket file of a server that did not clean up.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    match StdUnixStream::connect(path) {
        Err(error) if is_socket && error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        // If something else is there, the bind fails.
        _ => Ok(()),
    }
}

fn inherit(place: usize, inherited: &mut ListenFd) -> io::Result<Bound> {
    let missing = || {
        let text = "the service manager passed no such listening socket, or it is in use";
        io::Error::new(ErrorKind::NotFound, text)
    };
    if let Ok(Some(listener)) = inherited.take_unix_listener(place) {
        listener.set_nonblocking(true)?;
        let path = listener.local_addr()?.as_pathname().map(Path::to_path_buf);
        let address = match path {
            Some(path) => ListenAddress::Unix { path, mode: DEFAULT_MODE },
            None => ListenAddress::Systemd(place),
        };
        // The file belongs to the service manager.
        return Ok(Bound { address, socket: Listening::Unix(listener), file: None });
    }
    let listener = inherited.take_tcp_listener(place).map_err(|_| missing())?.ok_or_else(missing)?;
    listener.set_nonblocking(true)?;
    let address = ListenAddress::Tcp(listener.local_addr()?);
    Ok(Bound { address, socket: Listening::Tcp(listener), file: None })
}

impl Bound {
    /// A listener without a socket of the system, such as pipes in memory or a simulated network. Each connection comes
    /// with the address of its peer, and is treated like one of a network, TLS included. Drop `incoming` to close the
    /// listener; after the end of `incoming` no connection comes. `address` is its name.
    pub fn of<C>(
        address: ListenAddress,
        incoming: impl futures_util::Stream<Item = io::Result<(C, SocketAddr)>> + Send + 'static,
    ) -> Self
    where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self { address, socket: Listening::Own(Incoming::new(incoming)), file: None }
    }

    /// Its address, with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    pub(super) fn listen(self) -> io::Result<Listener> {
        let Self { address: _, socket, file } = self;
        let socket = match socket {
            Listening::Tcp(listener) => Acceptor::Tcp(TcpListener::from_std(listener)?),
            Listening::Unix(listener) => Acceptor::Unix(UnixListener::from_std(listener)?),
            Listening::Own(incoming) => Acceptor::Own(incoming),
        };
        Ok(Listener { _file: file, socket })
    }
}

/// A listening socket on this runtime.
#[derive(Debug)]
pub(super) struct Listener {
    // Dropped before the socket is closed, so that a socket file always has a listening server.
    _file: Option<SocketFile>,
    socket: Acceptor,
}

#[derive(Debug)]
enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
    Own(Incoming),
}

/// A counted connection, on its way to the thread that serves it.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: Socket,
    pub(super) origin: Origin,
    pub(super) entry: Entry,
}

/// The socket of a connection, not yet on a runtime.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
    Own(Box<dyn Carrier>),
}

impl Listener {
    /// The next connection. Cancel safe.
    pub(super) async fn accept(&mut self) -> io::Result<(Socket, Origin)> {
        match &mut self.socket {
            Acceptor::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Replies are batched above the socket, so that the system must not delay them.
                stream.set_nodelay(true)?;
                Ok((Socket::Tcp(stream.into_std()?), Origin::Address(address)))
            }
            Acceptor::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let origin = process(stream.peer_cred()?);
                Ok((Socket::Unix(stream.into_std()?), origin))
            }
            Acceptor::Own(incoming) => {
                let (carrier, address) = incoming.next().await?;
                Ok((Socket::Own(carrier), Origin::Address(address)))
            }
        }
    }
}

impl Socket {
    /// Registers the socket with the current runtime.
    pub(super) fn into_stream(self) -> io::Result<Stream> {
        Ok(Stream::new(match self {
            Self::Tcp(socket) => Io::Tcp(tokio::net::TcpStream::from_std(socket)?),
            Self::Unix(socket) => Io::Unix(tokio::net::UnixStream::from_std(socket)?),
            Self::Own(carrier) => Io::Own(carrier),
        }))
    }
}

fn process(credentials: UCred) -> Origin {
    Origin::Process { user: credentials.uid(), group: credentials.gid(), process: credentials.pid() }
}
