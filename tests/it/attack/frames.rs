//! An encoder of HTTP/2 frames (RFC 9113) that can also write what no well-behaved client library writes.

use bytes::BufMut;

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
