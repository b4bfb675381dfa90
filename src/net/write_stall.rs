//! Closes a connection whose peer does not read.
//!
//! A peer may answer pings and read nothing. So a write that makes no progress for too long is an error.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A stream whose writes fail with `TimedOut` if they make no progress for so long. The timer is made only for writes
/// that wait.
#[derive(Debug)]
pub(super) struct WriteStall<S> {
    stream: S,
    longest: Duration,
    alarm: Option<Pin<Box<Sleep>>>,
    heard: Heard,
}

/// Activity of a stream. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Heard(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    reads: AtomicU64,
    is_blocked: AtomicBool,
}

impl Heard {
    /// Number of reads that returned data.
    pub(super) fn reads(&self) -> u64 {
        self.0.reads.load(Relaxed)
    }

    /// Whether data waits that the peer does not accept yet.
    pub(super) fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Relaxed)
    }
}

impl<S> WriteStall<S> {
    pub(super) fn new(stream: S, longest: Duration) -> Self {
        Self { stream, longest, alarm: None, heard: Heard::default() }
    }

    /// The activity of the peer.
    pub(super) fn heard(&self) -> Heard {
        self.heard.clone()
    }

    fn bound<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        // Only the task of the connection writes this.
        if self.heard.is_blocked() != written.is_pending() {
            self.heard.0.is_blocked.store(written.is_pending(), Relaxed);
        }
        if written.is_ready() {
            self.alarm = None;
            return written;
        }
        let longest = self.longest;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(longest)));
        alarm.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteStall<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.heard.0.reads.store(self.heard.reads() + 1, Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteStall<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bound(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bound(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.bound(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bound(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(40);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_stands_still_fails_and_one_that_goes_on_does_not() {
        let (near, mut far) = duplex(4);
        let mut near = WriteStall::new(near, LIMIT);
        let reads = async {
            let mut read = [0; 4];
            for _ in 0..4 {
                sleep(LIMIT / 2).await;
                far.read_exact(&mut read).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[0; 20]), reads);
        written.unwrap();
        let begin = Instant::now();
        assert_eq!(near.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), LIMIT.as_secs());
    }
}
