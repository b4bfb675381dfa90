//! The simulated network, as servers and clients see it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, stream::unfold};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::{TcpListener, TcpStream};

use crate::record::Record;

pub(crate) const PUBLIC: u16 = 7070;
pub(crate) const OPS: u16 = 7071;

/// Questions to a silent peer, and the time for its answer, on either side.
const KEEPALIVE: Duration = Duration::from_millis(100);

pub(crate) fn server_name(server: usize) -> String {
    format!("server-{server}")
}

pub(crate) fn caller_name(caller: usize) -> String {
    format!("caller-{caller}")
}

/// A connection that writes down what passes.
pub(crate) struct Recorded {
    stream: TcpStream,
    record: Record,
    connection: u64,
}

impl AsyncRead for Recorded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.record.bytes(self.connection, 0, &buf.filled()[before..]);
        Poll::Ready(read)
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        if let Ok(count) = written {
            self.record.bytes(self.connection, 1, &buf[..count]);
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Listens on a port of this host. Dropping the connections closes the port.
pub(crate) async fn listen(
    port: u16,
    record: Record,
) -> io::Result<impl Stream<Item = io::Result<(Recorded, SocketAddr)>> + Send + 'static> {
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)).await?;
    Ok(unfold((listener, record), move |(listener, record)| async move {
        let accepted = listener.accept().await.map(|(stream, peer)| {
            let connection = u64::from(peer.port());
            record.note(format_args!("connection from {peer} on {port}"));
            (Recorded { stream, record: record.clone(), connection }, peer)
        });
        Some((accepted, (listener, record)))
    }))
}

/// The way to a port of a server. It connects with the first call, and again when a connection broke.
pub(crate) fn channel(server: usize, port: u16) -> Channel {
    let name = server_name(server);
    let connect = move |_: Uri| {
        let name = name.clone();
        async move { TcpStream::connect((name, port)).await.map(TokioIo::new) }
    };
    Endpoint::from_static("http://server")
        .connect_timeout(KEEPALIVE * 2)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(tower::service_fn(connect))
}
