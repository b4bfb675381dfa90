//! The byte stream of a connection, over TCP, Unix sockets, TLS or a caller's own transport, and its limits.
//!
//! A peer may answer pings without reading. So a write without progress for too long is an error.
//!
//! If a socket is closed with unread bytes, the system resets it, and the peer may lose the last data: the reason in a
//! GOAWAY, or an answer. So first only the sending half is closed. Incoming data is discarded until the peer closes its
//! half, or until a time limit.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Longest time between closing the two halves.
const MAX_LINGER: Duration = Duration::from_secs(1);
/// Maximum bytes that are discarded: twice what a peer that respects the default window has in flight.
const MAX_DISCARDED: usize = 16 << 20;

/// A transport: TCP, a Unix socket, TLS over one of them, or one of the caller's.
pub(super) trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Carrier for C {}

/// The byte stream of a connection. Bytes that were read ahead are returned first.
///
/// Once it is [bounded](Self::bound), its writes fail with `TimedOut` if they make no progress for too long, and its
/// shutdown waits for the peer's shutdown. Timers are created only when something waits.
pub(super) struct Stream {
    io: Box<dyn Carrier>,
    ahead: BytesMut,
    /// Longest time without progress of a write; `None` before it is bounded, and below TLS.
    stall: Option<Duration>,
    alarm: Option<Pin<Box<Sleep>>>,
    activity: Activity,
    /// Bytes discarded since the sending half was closed; `None` before that.
    discarded: Option<usize>,
}

/// Activity of a stream. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Activity(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    reads: AtomicU64,
    is_blocked: AtomicBool,
}

impl Activity {
    /// Number of reads that returned data.
    pub(super) fn reads(&self) -> u64 {
        self.0.reads.load(Relaxed)
    }

    /// Whether data waits because the peer does not accept it.
    pub(super) fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Relaxed)
    }
}

impl Stream {
    pub(super) fn new(io: impl Carrier + 'static) -> Self {
        let (stall, alarm, activity, discarded) = Default::default();
        Self { io: Box::new(io), ahead: BytesMut::new(), stall, alarm, activity, discarded }
    }

    /// Bounds writes: they may stand still for `stall`.
    pub(super) fn bound(&mut self, stall: Duration) {
        self.stall = Some(stall);
    }

    /// The activity of the peer, once the stream is bounded.
    pub(super) fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Bytes that were read ahead.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Reads ahead, up to `max` bytes in all. Cancel safe.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the stream, and errors of the socket.
    pub(super) async fn read_ahead(&mut self, max: usize) -> io::Result<()> {
        let free = max.saturating_sub(self.ahead.len());
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

    fn note<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(stall) = self.stall else { return written };
        // Only the connection's task writes this flag.
        if self.activity.is_blocked() != written.is_pending() {
            self.activity.0.is_blocked.store(written.is_pending(), Relaxed);
        }
        if written.is_ready() {
            self.alarm = None;
            return written;
        }
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(stall)));
        alarm.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            let read = Pin::new(&mut self.io).poll_read(cx, buf);
            if read.is_ready() {
                self.activity.0.reads.store(self.activity.reads() + 1, Relaxed);
            }
            return read;
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        if self.ahead.is_empty() {
            // Most connections live long, and should not keep the buffer of their first bytes.
            self.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.note(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.note(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.discarded.is_none() {
            let shut = Pin::new(&mut this.io).poll_shutdown(cx);
            ready!(this.note(cx, shut))?;
            if this.stall.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
        let discarded = this.discarded.get_or_insert(0);
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        while *discarded < MAX_DISCARDED {
            let mut part = ReadBuf::uninit(&mut buffer);
            match Pin::new(&mut this.io).poll_read(cx, &mut part) {
                Poll::Ready(Ok(())) if !part.filled().is_empty() => *discarded += part.filled().len(),
                // However the peer's half ended, the connection is finished.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep(MAX_LINGER)));
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
        io::{AsyncWriteExt, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    const STALL: Duration = Duration::from_secs(40);

    fn bounded(io: DuplexStream) -> Stream {
        let mut stream = Stream::new(io);
        stream.bound(STALL);
        stream
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_stands_still_fails_and_one_that_goes_on_does_not() {
        let (near, mut far) = duplex(4);
        let mut near = bounded(near);
        let reads = async {
            let mut read = [0; 4];
            for _ in 0..4 {
                sleep(STALL / 2).await;
                far.read_exact(&mut read).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[0; 20]), reads);
        written.unwrap();
        let begin = Instant::now();
        assert_eq!(near.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), STALL.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_peer_still_sends_is_read_until_it_ends() {
        let (near, mut far) = duplex(4);
        let mut near = bounded(near);
        let peer = async move {
            far.write_all(&[0; 100]).await.unwrap();
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "nothing more comes");
            sleep(MAX_LINGER / 2).await;
        };
        let begin = Instant::now();
        let (shut, ()) = tokio::join!(near.shutdown(), peer);
        shut.unwrap();
        assert!((MAX_LINGER / 2..MAX_LINGER).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_end_has_its_time() {
        let (near, mut far) = duplex(4);
        let begin = Instant::now();
        bounded(near).shutdown().await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), MAX_LINGER.as_secs());
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
            bounded(near).shutdown().await.unwrap();
        };
        let ((), sent) = tokio::join!(shut, peer);
        assert!((MAX_DISCARDED..=MAX_DISCARDED + (128 << 10)).contains(&sent), "{sent}");
        assert!(begin.elapsed() < MAX_LINGER, "{:?}", begin.elapsed());
    }
}
