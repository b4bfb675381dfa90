use std::{
    io,
    net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
};

use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use tokio::net::{TcpListener, UnixListener, unix::UCred};

use super::stream::{Io, Stream};
use crate::model::Origin;

/// Connections that the system may hold until they are taken.
const LISTEN_BACKLOG: i32 = 1024;

/// A socket that listens; connections wait in it until it is served.
#[derive(Debug)]
pub enum Bound {
    /// An address of a network.
    Tcp(StdTcpListener),
    /// A path of the file system.
    Unix(StdUnixListener),
}

/// Takes `address`. Port 0 takes any free one.
///
/// # Errors
/// Where the address is taken, or not one of this machine.
pub fn bind(address: SocketAddr) -> io::Result<Bound> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A server that restarts must not wait for the connections of its predecessor to time out.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(Bound::Tcp(socket.into()))
}

impl Bound {
    /// The address, where it is one of a network.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    pub(super) fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(listener) => Listener::Unix(UnixListener::from_std(listener)?),
        })
    }
}

/// A socket that listens on this runtime.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection on its way to the thread that serves it.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: Socket,
    pub(super) origin: Origin,
}

/// The socket of a connection, on no runtime.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
}

impl Listener {
    /// The next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Replies are gathered above the socket; the system must not hold them back.
                stream.set_nodelay(true)?;
                Ok(Accepted { socket: Socket::Tcp(stream.into_std()?), origin: Origin::Address(address) })
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let origin = process(stream.peer_cred()?);
                Ok(Accepted { socket: Socket::Unix(stream.into_std()?), origin })
            }
        }
    }
}

impl Socket {
    /// Brings the socket to the runtime of the caller.
    pub(super) fn into_stream(self) -> io::Result<Stream> {
        Ok(Stream::new(match self {
            Self::Tcp(socket) => Io::Tcp(tokio::net::TcpStream::from_std(socket)?),
            Self::Unix(socket) => Io::Unix(tokio::net::UnixStream::from_std(socket)?),
        }))
    }
}

fn process(credentials: UCred) -> Origin {
    Origin::Process { user: credentials.uid(), group: credentials.gid(), process: credentials.pid() }
}
