//! A TCP proxy that delays each byte by a fixed time without limiting the throughput.

use std::{io, net::SocketAddr, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

/// Largest number of delayed chunks, each from one read. A burst has far fewer.
const MAX_DELAYED_CHUNKS: usize = 1 << 16;
const CHUNK: usize = 256 << 10;

/// A proxy. Dropping it stops it from accepting connections.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to `server`, with this delay in each direction.
    pub(crate) async fn start(server: SocketAddr, delay: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { return };
                // A small segment must not wait for the acknowledgement of the previous one.
                if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
                    return;
                }
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                carry(from_client, to_server, delay);
                carry(from_server, to_client, delay);
            }
        });
        Ok(Self { address, accepting })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Reads at once and writes after the delay. Dropping the write half at the end closes it.
fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (sender, mut late) = mpsc::channel::<(Instant, Bytes)>(MAX_DELAYED_CHUNKS);
    tokio::spawn(async move {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            match from.read_buf(&mut buffer).await {
                Ok(read) if read > 0 => {}
                _ => return,
            }
            if sender.send((Instant::now() + delay, buffer.split().freeze())).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((due, bytes)) = late.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
}
