//! The simulated network: recorded connections of servers, and channels of clients.

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

use crate::record::{Record, now};

pub(crate) const PUBLIC: u16 = 7070;
pub(crate) const OPS: u16 = 7071;

/// Interval and timeout of keepalive pings.
const KEEPALIVE: Duration = Duration::from_millis(100);

pub(crate) fn server_name(server: usize) -> String {
    format!("server-{server}")
}

pub(crate) fn caller_name(caller: usize) -> String {
    format!("caller-{caller}")
}

/// A connection that records its bytes.
pub(crate) struct Recorded {
    stream: TcpStream,
    record: Record,
    connection: u64,
    /// Its number in the record.
    number: usize,
    frames: Frames,
}

impl AsyncRead for Recorded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        let bytes = &buf.filled()[before..];
        self.record.bytes(self.connection, 0, bytes);
        if bytes.is_empty() {
            self.record.lock().connections[self.number].has_failed = true;
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        match written {
            Ok(count) => {
                self.record.bytes(self.connection, 1, &buf[..count]);
                let has_goaway = self.frames.read(&buf[..count]);
                let connection = &mut self.record.lock().connections[self.number];
                connection.has_begun = true;
                if has_goaway {
                    connection.goaway.get_or_insert_with(now);
                }
            }
            Err(_) => self.record.lock().connections[self.number].has_failed = true,
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

impl Drop for Recorded {
    fn drop(&mut self) {
        self.record.lock().connections[self.number].end = Some(now());
    }
}

/// Listens on a port of this host, for the service with the number `life`. Dropping the stream closes the port.
pub(crate) async fn listen(
    life: usize,
    port: u16,
    record: Record,
) -> io::Result<impl Stream<Item = io::Result<(Recorded, SocketAddr)>> + Send + 'static> {
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)).await?;
    Ok(unfold((listener, record), move |(listener, record)| async move {
        let accepted = listener.accept().await.map(|(stream, peer)| {
            let connection = u64::from(peer.port());
            record.note(format_args!("connection from {peer} on {port}"));
            let number = record.connect(life, port);
            let frames = Frames::default();
            (Recorded { stream, record: record.clone(), connection, number, frames }, peer)
        });
        Some((accepted, (listener, record)))
    }))
}

/// A channel to a port of a server. It connects with the first call, and again after a connection broke.
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

/// Size of a frame header: length, type, flags and stream.
const HEAD: usize = 9;
const GOAWAY: u8 = 7;

/// Parses the bytes that one side writes on a connection, from the first byte.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    head: Vec<u8>,
    /// Remaining bytes of the current frame.
    rest: usize,
}

impl Frames {
    /// Parses more bytes. Returns whether a GOAWAY frame began.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_goaway = false;
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                bytes = &bytes[skipped..];
                self.rest -= skipped;
                continue;
            }
            let (head, more) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
            self.head.extend_from_slice(head);
            bytes = more;
            if let [high, middle, low, kind, ..] = self.head[..]
                && self.head.len() == HEAD
            {
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                has_goaway |= kind == GOAWAY;
                self.head.clear();
            }
        }
        has_goaway
    }
}
