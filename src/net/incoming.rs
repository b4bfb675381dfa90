//! Connections that do not come from a socket of the system: pipes in memory, simulated networks.

use std::{fmt, future::pending, io, net::SocketAddr, pin::Pin};

use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream that carries such a connection.
pub(super) trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Carrier for C {}

impl fmt::Debug for dyn Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Carrier")
    }
}

type Arrival = (Box<dyn Carrier>, SocketAddr);

/// The stream of new connections.
pub(super) struct Incoming(Pin<Box<dyn Stream<Item = io::Result<Arrival>> + Send>>);

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incoming")
    }
}

impl Incoming {
    pub(super) fn new<C: Carrier + 'static>(
        incoming: impl Stream<Item = io::Result<(C, SocketAddr)>> + Send + 'static,
    ) -> Self {
        // A stream must not be polled again after its end.
        let incoming = incoming.fuse();
        Self(Box::pin(incoming.map(|arrived| arrived.map(|(carrier, address)| (Box::new(carrier) as Box<_>, address)))))
    }

    /// The next connection. It does not return after the end of the stream. Cancel safe.
    pub(super) async fn next(&mut self) -> io::Result<Arrival> {
        match self.0.next().await {
            Some(arrived) => arrived,
            None => pending().await,
        }
    }
}
