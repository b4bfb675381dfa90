//! A peer that sends raw frames and records what the server sends.

use std::{collections::BTreeMap, io};

use tokio::{io::Interest, net::TcpStream, time::timeout};

use super::frames::{
    ACK, DATA, END_STREAM, Frames, GOAWAY, HEAD, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::{process::PATIENCE, service::Address};

/// One connection. It acknowledges SETTINGS, and answers no PING.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    unread: Vec<u8>,
    next_stream: u32,
    pings: u64,
    pub(crate) seen: Seen,
}

/// What the server sent.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The server's settings.
    pub(crate) settings: BTreeMap<u16, u32>,
    /// Number of streams that the server reset, by error code.
    pub(crate) resets: BTreeMap<u32, usize>,
    /// Number of streams that the server ended or reset.
    pub(crate) ended: usize,
    /// Header blocks, of headers and of trailers.
    pub(crate) blocks: Vec<Vec<u8>>,
    /// The flow-control window of the connection, in bytes.
    pub(crate) window: u64,
    /// Received bytes of bodies.
    pub(crate) body: usize,
    /// Answers to PINGs.
    pub(crate) pongs: u64,
    /// Answers to SETTINGS.
    pub(crate) settings_acks: u64,
    /// PINGs that the server sent.
    pub(crate) pings: u64,
    /// Error code of the last GOAWAY.
    pub(crate) go_away: Option<u32>,
    /// Whether the connection has ended.
    pub(crate) closed: bool,
    /// Whether it ended with an error such as a reset.
    pub(crate) broken: bool,
}

impl Peer {
    /// Connects, sends the preface, and waits for the server's settings.
    pub(crate) async fn connect(address: Address) -> Self {
        Self::connect_with(address, &[]).await
    }

    /// [`connect`](Self::connect), with these settings of the client.
    pub(crate) async fn connect_with(address: Address, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(address.0).await.unwrap();
        let mut peer = Self {
            stream,
            unread: Vec::new(),
            next_stream: 1,
            pings: 0,
            seen: Seen { window: 65_535, ..Seen::default() },
        };
        let hello = Frames::new().settings(settings).settings_ack();
        peer.send_bytes(&[PREFACE, hello.bytes()].concat()).await;
        peer.until("settings", |seen| seen.settings_acks > 0).await;
        peer
    }

    /// The next unused stream id.
    pub(crate) fn stream(&mut self) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        stream
    }

    /// Writes frames, and reads meanwhile. Returns whether the connection is still open.
    pub(crate) async fn send(&mut self, frames: &Frames) -> bool {
        self.send_bytes(frames.bytes()).await
    }

    async fn send_bytes(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() && !self.seen.closed {
            let ready = self.stream.ready(Interest::READABLE | Interest::WRITABLE).await.unwrap();
            if ready.is_readable() {
                self.read();
            }
            if ready.is_writable() {
                match self.stream.try_write(bytes) {
                    Ok(written) => bytes = &bytes[written..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // The last frames of the server can still be read.
                    Err(_) => self.until_closed().await,
                }
            }
        }
        !self.seen.closed
    }

    /// Writes frames and reads nothing.
    pub(crate) async fn send_deaf(&mut self, frames: &Frames) {
        let mut bytes = frames.bytes();
        while !bytes.is_empty() && !self.seen.closed {
            self.stream.writable().await.unwrap();
            match self.stream.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.until_closed().await,
            }
        }
    }

    /// Reads until `reached`, or until the connection ends.
    pub(crate) async fn until(&mut self, what: &str, reached: impl Fn(&Seen) -> bool) {
        let reading = async {
            while !reached(&self.seen) && !self.seen.closed {
                self.stream.readable().await.unwrap();
                self.read();
            }
        };
        let waited = timeout(PATIENCE, reading).await;
        assert!(waited.is_ok(), "the server did not send {what}: {:?}", self.seen);
    }

    /// Reads until the server has processed all that was sent, or the connection ends. A PING marks the end.
    pub(crate) async fn settle(&mut self) {
        self.pings += 1;
        let pings = self.pings;
        if self.send(&Frames::new().ping(pings.to_be_bytes())).await {
            self.until("an answer to a PING", |seen| seen.pongs >= pings).await;
        }
    }

    /// Reads until the connection ends.
    pub(crate) async fn until_closed(&mut self) {
        self.until("the end of the connection", |seen| seen.closed).await;
    }

    /// Reads all that is available, without waiting.
    fn read(&mut self) {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return self.close(),
                Ok(read) => self.unread.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.seen.broken = true;
                    return self.close();
                }
            }
        }
        self.parse();
    }

    fn close(&mut self) {
        self.parse();
        self.seen.closed = true;
    }

    fn parse(&mut self) {
        let mut rest = self.unread.as_slice();
        while let [a, b, c, kind, flags, s, t, r, m, ..] = *rest {
            let end = HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
            if rest.len() < end {
                break;
            }
            self.seen.frame(kind, flags, u32::from_be_bytes([s, t, r, m]), &rest[HEAD..end]);
            rest = &rest[end..];
        }
        let parsed = self.unread.len() - rest.len();
        self.unread.drain(..parsed);
    }
}

impl Seen {
    pub(crate) fn resets(&self) -> usize {
        self.resets.values().sum()
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let code = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        let ends = flags & END_STREAM != 0;
        match kind {
            DATA => {
                self.body += payload.len();
                self.ended += usize::from(ends);
            }
            HEADERS => {
                self.blocks.push(payload.to_vec());
                self.ended += usize::from(ends);
            }
            RST_STREAM => {
                *self.resets.entry(code(0)).or_default() += 1;
                self.ended += 1;
            }
            SETTINGS if flags & ACK != 0 => self.settings_acks += 1,
            SETTINGS => {
                let values = payload.chunks(6).map(|pair| {
                    let (id, value) = pair.split_at(2);
                    (u16::from_be_bytes(id.try_into().unwrap()), u32::from_be_bytes(value.try_into().unwrap()))
                });
                self.settings.extend(values);
            }
            PING if flags & ACK != 0 => self.pongs += 1,
            PING => self.pings += 1,
            GOAWAY => self.go_away = Some(code(4)),
            WINDOW_UPDATE if stream == 0 => self.window += u64::from(code(0)),
            WINDOW_UPDATE => {}
            other => panic!("the server sent a frame of kind {other:#x}"),
        }
    }
}
