//! Finds GOAWAY frames in the HTTP/2 frames that a server writes.

/// Size of a frame header: length, type, flags and stream.
const HEAD: usize = 9;
const GOAWAY: u8 = 7;

/// Parses the bytes that one side writes on a connection, from the first byte.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    head: Vec<u8>,
    /// Remaining bytes of the current frame.
    rest: usize,
}

impl Frames {
    /// Parses more bytes. Returns whether a GOAWAY frame began.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_goaway = false;
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                bytes = &bytes[skipped..];
                self.rest -= skipped;
                continue;
            }
            let (head, more) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
            self.head.extend_from_slice(head);
            bytes = more;
            if let [high, middle, low, kind, ..] = self.head[..]
                && self.head.len() == HEAD
            {
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                has_goaway |= kind == GOAWAY;
                self.head.clear();
            }
        }
        has_goaway
    }
}
