//! The byte stream of a connection, over TCP, Unix sockets, TLS or a caller's own transport.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use super::incoming::Carrier;

/// The byte stream of a connection. Bytes that were read ahead are returned first.
#[derive(Debug)]
pub(super) struct Stream {
    io: Io,
    ahead: BytesMut,
}

/// The transport below. A stage that wraps a connection, such as TLS, is one more variant.
#[derive(Debug)]
pub(super) enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<Stream>>),
    Own(Box<dyn Carrier>),
}

impl Stream {
    pub(super) fn new(io: Io) -> Self {
        Self { io, ahead: BytesMut::new() }
    }

    /// Whether it may come from a network; other streams stay on the machine.
    pub(super) fn is_of_network(&self) -> bool {
        matches!(self.io, Io::Tcp(_) | Io::Own(_))
    }

    /// Bytes that were read ahead.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Reads ahead, up to `most` bytes in all. Cancel safe.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the stream, and errors of the socket.
    pub(super) async fn read_ahead(&mut self, most: usize) -> io::Result<()> {
        let free = most.saturating_sub(self.ahead.len());
        let mut part = bytes::BufMut::limit(&mut self.ahead, free);
        match self.io.read_buf(&mut part).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Removes bytes that were read ahead.
    pub(super) fn skip(&mut self, count: usize) {
        self.ahead.advance(count);
    }
}

macro_rules! with_io {
    ($stream:expr, $io:ident => $call:expr) => {
        match $stream {
            Io::Tcp($io) => $call,
            Io::Unix($io) => $call,
            Io::Tls($io) => $call,
            Io::Own($io) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        if self.ahead.is_empty() {
            // Most connections live long, and need not keep the buffer of their first bytes.
            self.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        with_io!(&mut self.io, io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_io!(&mut self.io, io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        with_io!(&self.io, io => io.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_io!(&mut self.io, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_io!(&mut self.io, io => Pin::new(io).poll_shutdown(cx))
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        with_io!(self.get_mut(), io => Pin::new(io).poll_read(cx, buf))
    }
}
