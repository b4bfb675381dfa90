//! Reads what a program writes.

use std::{io, os::fd::AsFd};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe::Receiver,
};
use tokio_util::sync::CancellationToken;

/// Most bytes of one read: what a pipe holds unless its writer asked for more.
const CHUNK: usize = 64 << 10;
/// Least room for a read; with less, the buffer is given up. It bounds what small chunks hold on to.
const LEAST_ROOM: usize = 8 << 10;

/// The reading end of what a program writes.
pub(in crate::handler) struct Pipe<R> {
    reader: R,
    buffer: BytesMut,
    /// Bytes still to read, once the program has exited.
    left: Option<usize>,
}

impl<R: AsyncRead + AsFd + Unpin> Pipe<R> {
    /// The pipe that `reader` reads from.
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: BytesMut::new(), left: None }
    }

    /// The next bytes; `None` at the end, which is where every writer has closed the pipe, or where all is read that
    /// was in it when the program had `ended`. The latter matters where a stray descendant keeps it open.
    ///
    /// Cancel safe: bytes are either returned or left in the pipe.
    pub(in crate::handler) async fn next(&mut self, ended: &CancellationToken) -> Option<Bytes> {
        if self.left.is_none() {
            tokio::select! {
                biased;
                () = ended.cancelled() => self.left = Some(self.unread()),
                chunk = Self::read(&mut self.reader, &mut self.buffer, CHUNK) => return chunk,
            }
        }
        let left = self.left.filter(|left| *left > 0)?;
        // That many bytes are in the pipe and nobody else reads them, so this does not wait.
        let chunk = Self::read(&mut self.reader, &mut self.buffer, left).await?;
        self.left = Some(left - chunk.len());
        Some(chunk)
    }

    async fn read(reader: &mut R, buffer: &mut BytesMut, most: usize) -> Option<Bytes> {
        if buffer.capacity() < LEAST_ROOM {
            buffer.reserve(CHUNK);
        }
        // A pipe that cannot be read has ended for us too.
        let read = reader.read_buf(&mut buffer.limit(most)).await.ok().filter(|read| *read > 0);
        read.map(|_| buffer.split().freeze())
    }

    fn unread(&self) -> usize {
        let unread = rustix::io::ioctl_fionread(&self.reader).unwrap_or(0);
        usize::try_from(unread).unwrap_or(usize::MAX)
    }
}

impl Pipe<Receiver> {
    /// The same pipe, driven by the runtime of the caller.
    pub(in crate::handler) fn moved(self) -> io::Result<Self> {
        let reader = Receiver::from_owned_fd_unchecked(self.reader.into_nonblocking_fd()?)?;
        Ok(Self { reader, ..self })
    }
}
