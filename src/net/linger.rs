//! Closes a connection whose peer still sends.
//!
//! The system resets a socket that is closed with unread bytes, and then the peer may lose the last data that was sent
//! to it: the reason in a GOAWAY, or an answer. So only the sending half is closed at first. Incoming data is discarded
//! until the peer has closed its half, or a time limit.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Longest time between the two shutdowns.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Most bytes that are discarded: several times what a peer that respects its windows can have in flight.
const MAX_DISCARDED: usize = 4 << 20;

/// A stream whose shutdown waits for its peer's.
#[derive(Debug)]
pub(super) struct Linger<S> {
    stream: S,
    /// Discarded bytes; `None` until the sending half is closed.
    dropped: Option<usize>,
    /// Made only for streams that wait.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Linger<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, dropped: None, alarm: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Linger<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Linger<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.dropped.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let dropped = this.dropped.get_or_insert(0);
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        while *dropped < MAX_DISCARDED {
            let mut part = ReadBuf::uninit(&mut buffer);
            match Pin::new(&mut this.stream).poll_read(cx, &mut part) {
                Poll::Ready(Ok(())) if !part.filled().is_empty() => *dropped += part.filled().len(),
                // However the peer's half ended, the connection is done.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep(MAX_WAIT)));
                    return alarm.as_mut().poll(cx).map(Ok);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_a_peer_still_sends_is_read_until_it_ends() {
        let (near, mut far) = duplex(4);
        let mut near = Linger::new(near);
        let peer = async move {
            far.write_all(&[0; 100]).await.unwrap();
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "nothing more comes");
            sleep(MAX_WAIT / 2).await;
        };
        let begin = Instant::now();
        let (shut, ()) = tokio::join!(near.shutdown(), peer);
        shut.unwrap();
        assert!((MAX_WAIT / 2..MAX_WAIT).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_end_has_its_time() {
        let (near, mut far) = duplex(4);
        let begin = Instant::now();
        Linger::new(near).shutdown().await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), MAX_WAIT.as_secs());
        far.write_all(b"more").await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_stops_is_not_read_for_ever() {
        let (near, mut far) = duplex(64 << 10);
        let begin = Instant::now();
        let peer = async {
            let mut sent = 0;
            while far.write_all(&[0; 1 << 10]).await.is_ok() {
                sent += 1 << 10;
            }
            sent
        };
        let shut = async {
            Linger::new(near).shutdown().await.unwrap();
        };
        let ((), sent) = tokio::join!(shut, peer);
        assert!((MAX_DISCARDED..=MAX_DISCARDED + (128 << 10)).contains(&sent), "{sent}");
        assert!(begin.elapsed() < MAX_WAIT, "{:?}", begin.elapsed());
    }
}
