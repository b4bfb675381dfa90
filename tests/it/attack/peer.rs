//! A peer that sends raw HTTP/2 frames (RFC 9113), also such as no well-behaved client library writes, and records what
//! the server sends.

use std::{collections::BTreeMap, io};

use bytes::BufMut;
use tokio::{io::Interest, net::TcpStream, time::timeout};

use crate::{process::PATIENCE, service::Address};

/// The connection preface of a client.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Default of `SETTINGS_MAX_FRAME_SIZE`.
pub(crate) const LARGEST_FRAME: usize = 16 << 10;
/// Length of a frame header.
pub(crate) const HEAD: usize = 9;

pub(crate) const DATA: u8 = 0x0;
pub(crate) const HEADERS: u8 = 0x1;
pub(crate) const PRIORITY: u8 = 0x2;
pub(crate) const RST_STREAM: u8 = 0x3;
pub(crate) const SETTINGS: u8 = 0x4;
pub(crate) const PING: u8 = 0x6;
pub(crate) const GOAWAY: u8 = 0x7;
pub(crate) const WINDOW_UPDATE: u8 = 0x8;
pub(crate) const CONTINUATION: u8 = 0x9;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;

/// `SETTINGS_MAX_CONCURRENT_STREAMS`.
pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 0x3;
/// `SETTINGS_INITIAL_WINDOW_SIZE`.
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 0x4;

pub(crate) const PROTOCOL_ERROR: u32 = 0x1;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 0x3;
pub(crate) const REFUSED_STREAM: u32 = 0x7;
pub(crate) const CANCEL: u32 = 0x8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 0xb;

/// A sequence of encoded frames.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frames(Vec<u8>);

/// A header block in HPACK (RFC 7541). Fields are literals, without Huffman coding, unless a method says otherwise.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block(Vec<u8>);

impl Frames {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn frame(mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        assert!(payload.len() <= LARGEST_FRAME, "a frame of {} bytes", payload.len());
        self.0.put_uint(payload.len() as u64, 3);
        self.0.put_slice(&[kind, flags]);
        self.0.put_u32(stream);
        self.0.put_slice(payload);
        self
    }

    /// A complete header block.
    pub(crate) fn headers(self, stream: u32, block: &Block) -> Self {
        self.frame(HEADERS, END_HEADERS, stream, &block.0)
    }

    /// The first part of a header block, which CONTINUATION frames continue.
    pub(crate) fn headers_begin(self, stream: u32, block: &Block) -> Self {
        self.frame(HEADERS, 0, stream, &block.0)
    }

    pub(crate) fn continuation(self, stream: u32, block: &Block) -> Self {
        self.frame(CONTINUATION, 0, stream, &block.0)
    }

    /// Body data without END_STREAM.
    pub(crate) fn data(self, stream: u32, bytes: &[u8]) -> Self {
        bytes.chunks(LARGEST_FRAME).fold(self, |frames, chunk| frames.frame(DATA, 0, stream, chunk))
    }

    /// Body data whose last frame has END_STREAM.
    pub(crate) fn data_end(self, stream: u32, bytes: &[u8]) -> Self {
        let last = bytes.len().saturating_sub(1) / LARGEST_FRAME * LARGEST_FRAME;
        self.data(stream, &bytes[..last]).frame(DATA, END_STREAM, stream, &bytes[last..])
    }

    pub(crate) fn reset(self, stream: u32, code: u32) -> Self {
        self.frame(RST_STREAM, 0, stream, &code.to_be_bytes())
    }

    pub(crate) fn settings(self, values: &[(u16, u32)]) -> Self {
        let mut payload = Vec::new();
        for (id, value) in values {
            payload.put_u16(*id);
            payload.put_u32(*value);
        }
        self.frame(SETTINGS, 0, 0, &payload)
    }

    pub(crate) fn settings_ack(self) -> Self {
        self.frame(SETTINGS, ACK, 0, &[])
    }

    pub(crate) fn ping(self, opaque: [u8; 8]) -> Self {
        self.frame(PING, 0, 0, &opaque)
    }

    pub(crate) fn window_update(self, stream: u32, increment: u32) -> Self {
        self.frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
    }

    /// Makes `stream` depend on the stream `on`.
    pub(crate) fn priority(self, stream: u32, on: u32) -> Self {
        let mut payload = on.to_be_bytes().to_vec();
        payload.push(16);
        self.frame(PRIORITY, 0, stream, &payload)
    }
}

impl Block {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The headers that every gRPC call has.
    pub(crate) fn call(path: &str) -> Self {
        Self::pseudo("POST", path).with("content-type", "application/grpc").with("te", "trailers")
    }

    pub(crate) fn pseudo(method: &str, path: &str) -> Self {
        let begin = Self::new().with(":method", method).with(":scheme", "http");
        begin.with(":path", path).with(":authority", "waterwheel")
    }

    /// A literal that the server does not add to its dynamic table.
    pub(crate) fn with(self, name: &str, value: &str) -> Self {
        self.literal(0x00, name, value.as_bytes())
    }

    /// A literal that the server adds to its dynamic table, at index [`DYNAMIC`].
    pub(crate) fn kept(self, name: &str, value: &str) -> Self {
        self.literal(0x40, name, value.as_bytes())
    }

    /// A reference to a field by its index in the tables, which takes one byte.
    pub(crate) fn indexed(mut self, index: u8) -> Self {
        assert!(index < 0x7f, "one byte");
        self.0.push(0x80 | index);
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn literal(mut self, pattern: u8, name: &str, value: &[u8]) -> Self {
        self.0.push(pattern);
        self.string(name.as_bytes());
        self.string(value);
        self
    }

    /// A string literal: its length as an integer with a prefix of seven bits, and its bytes without Huffman coding.
    fn string(&mut self, bytes: &[u8]) {
        let mut rest = bytes.len();
        if rest < 0x7f {
            self.0.push(rest as u8);
        } else {
            self.0.push(0x7f);
            rest -= 0x7f;
            while rest >= 0x80 {
                self.0.push((rest % 0x80) as u8 | 0x80);
                rest /= 0x80;
            }
            self.0.push(rest as u8);
        }
        self.0.extend_from_slice(bytes);
    }
}

/// Index of the newest field of the dynamic table.
pub(crate) const DYNAMIC: u8 = 62;

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
    /// Last stream that it names as accepted.
    pub(crate) last_accepted: u32,
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
            GOAWAY => (self.last_accepted, self.go_away) = (code(0), Some(code(4))),
            WINDOW_UPDATE if stream == 0 => self.window += u64::from(code(0)),
            WINDOW_UPDATE => {}
            other => panic!("the server sent a frame of kind {other:#x}"),
        }
    }
}
