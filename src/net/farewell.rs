//! The end of a connection that the server ends.
//!
//! A socket that is closed while its peer still sends, if only a window update, is reset by the system, and with it goes
//! what the peer has not received of the last answers. So the server ends its own half, reads on, and lets go when the
//! peer has.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    sync::oneshot,
};

/// A stream that comes back from whom it was lent to.
#[derive(Debug)]
pub(super) struct Lent<S> {
    stream: Option<S>,
    back: Option<oneshot::Sender<S>>,
}

impl<S> Lent<S> {
    /// Lends a stream. It is sent back when it is dropped.
    pub(super) fn new(stream: S) -> (Self, oneshot::Receiver<S>) {
        let (back, returned) = oneshot::channel();
        (Self { stream: Some(stream), back: Some(back) }, returned)
    }
}

impl<S: Unpin> Lent<S> {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut S> {
        Pin::new(self.get_mut().stream.as_mut().expect("it is there until the drop"))
    }
}

impl<S> Drop for Lent<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            // Where nobody wants it back, it is closed.
            let _ = back.send(stream);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lent<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lent<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

/// Reads on, for nothing, until the peer ends its half. The own half has been ended.
pub(super) async fn read_on(mut stream: impl AsyncRead + Unpin) {
    let mut unwanted = [0; 512];
    while stream.read(&mut unwanted).await.is_ok_and(|count| count > 0) {}
}
