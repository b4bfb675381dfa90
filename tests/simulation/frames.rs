//! The frames of HTTP/2 that a server writes, as far as the oracle asks for them.

/// Length, type, flags and stream of a frame.
const HEAD: usize = 9;
const GOAWAY: u8 = 7;

/// Follows what one side writes on a connection, from its first byte.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    head: Vec<u8>,
    /// What is to come of the frame that began last.
    rest: usize,
}

impl Frames {
    /// Reads on. Returns whether a frame began that says goodbye.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut says_goodbye = false;
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
                says_goodbye |= kind == GOAWAY;
                self.head.clear();
            }
        }
        says_goodbye
    }
}
