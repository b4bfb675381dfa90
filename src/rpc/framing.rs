//! Finds the boundaries of messages in the chunks of a body, and cuts messages that are too large. `upload.rs` uses it.

use std::mem;

use bytes::{Bytes, BytesMut};

/// Length of a gRPC message's prefix: a flag, and the length of the message.
pub(super) const HEAD: usize = 5;

/// Tracks the boundaries of a call's messages, chunk by chunk.
#[derive(Debug, Default)]
pub(super) struct Framing {
    head: [u8; HEAD],
    /// Received bytes of the incomplete message, including its prefix.
    pub(super) unfinished: usize,
    /// Bytes of its body that are not received, once its prefix is complete.
    missing: usize,
    /// Whether it began in the last chunk.
    pub(super) is_new: bool,
    /// Length without prefix of the longest message whose prefix was in the last chunk.
    pub(super) longest: Option<usize>,
}

impl Framing {
    /// Reads the next chunk.
    pub(super) fn read(&mut self, mut piece: &[u8]) {
        self.is_new = false;
        self.longest = None;
        while !piece.is_empty() {
            if self.unfinished == 0 {
                self.is_new = true;
                // Most messages arrive whole, and need no tracking.
                if let Some((head, rest)) = piece.split_first_chunk()
                    && let Some((_, next)) = rest.split_at_checked(length(*head))
                {
                    self.longest = self.longest.max(Some(length(*head)));
                    piece = next;
                    continue;
                }
            }
            if self.unfinished < HEAD {
                let count = piece.len().min(HEAD - self.unfinished);
                self.head[self.unfinished..self.unfinished + count].copy_from_slice(&piece[..count]);
                self.unfinished += count;
                piece = &piece[count..];
                if self.unfinished < HEAD {
                    return;
                }
                self.missing = length(self.head);
                self.longest = self.longest.max(Some(self.missing));
            }
            let count = piece.len().min(self.missing);
            self.unfinished += count;
            self.missing -= count;
            piece = &piece[count..];
            if self.missing == 0 {
                self.unfinished = 0;
            }
        }
    }

    /// Length of the incomplete message, including its prefix, as far as known.
    pub(super) fn length(&self) -> usize {
        self.unfinished.saturating_add(self.missing)
    }
}

/// Length of the message after the prefix.
pub(super) fn length([_, a, b, c, d]: [u8; HEAD]) -> usize {
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
}

/// The flag of a message that was cut.
pub(super) const CUT: u8 = 0x80;

/// Bytes that are kept of a message that is too large: enough for the id of its job.
const KEPT_BYTES: usize = 64;

/// Cuts messages that are too large to their first bytes, for calls that continue afterwards.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// Part of a prefix, whose rest is not received yet.
    head: Bytes,
    /// Bytes of the current message that are still to be passed on.
    pass: usize,
    /// Bytes of it to drop after those.
    drop: usize,
}

impl Cutter {
    /// Returns the part of the next chunk that remains, if messages may have `largest` bytes.
    pub(super) fn cut(&mut self, piece: Bytes, largest: usize) -> Bytes {
        let head = mem::take(&mut self.head);
        let mut piece = if head.is_empty() { piece } else { [head, piece].concat().into() };
        let mut left = BytesMut::new();
        let mut at = 0;
        while at < piece.len() {
            let rest = piece.len() - at;
            if self.pass > 0 {
                let passed = self.pass.min(rest);
                self.pass -= passed;
                at += passed;
            } else if self.drop > 0 {
                left.extend_from_slice(&piece.split_to(at));
                let dropped = self.drop.min(rest);
                self.drop -= dropped;
                piece = piece.split_off(dropped);
                at = 0;
            } else if let Some(head) = piece[at..].first_chunk() {
                let length = length(*head);
                if length <= largest {
                    self.pass = HEAD + length;
                } else {
                    left.extend_from_slice(&piece.split_to(at));
                    left.extend_from_slice(&[CUT, 0, 0, 0, KEPT_BYTES as u8]);
                    piece = piece.split_off(HEAD);
                    (at, self.pass, self.drop) = (0, KEPT_BYTES, length - KEPT_BYTES);
                }
            } else {
                self.head = Bytes::copy_from_slice(&piece.split_off(at));
            }
        }
        if left.is_empty() {
            return piece;
        }
        left.extend_from_slice(&piece);
        left.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(flag: u8, length: u32) -> Vec<u8> {
        let body = (0..length).map(|byte| byte as u8);
        [flag].into_iter().chain(length.to_be_bytes()).chain(body).collect()
    }

    #[test]
    fn every_cut_of_messages_leaves_what_is_not_whole() {
        let messages: Vec<Vec<u8>> = [0, 3, 1, 200, 0, 0, 5].map(|length| message(0, length)).into();
        let all = messages.concat();
        let ends: Vec<usize> = messages
            .iter()
            .scan(0, |end, one| {
                *end += one.len();
                Some(*end)
            })
            .collect();
        for size in 1..all.len() {
            let (mut framing, mut at) = (Framing::default(), 0);
            for piece in all.chunks(size) {
                framing.read(piece);
                let began = at;
                at += piece.len();
                let begin = ends.iter().copied().filter(|end| *end <= at).max().unwrap_or(0);
                assert_eq!(framing.unfinished, at - begin, "pieces of {size}, at {at}");
                if at > begin {
                    assert_eq!(framing.is_new, begin >= began, "pieces of {size}, at {at}");
                }
            }
            assert_eq!(framing.unfinished, 0);
        }
    }

    #[test]
    fn only_what_is_too_large_is_cut_however_it_comes() {
        let lengths = [0, 3, 1000, 1001, 7, 1, 2000, 70_000, 1000];
        let all = lengths.map(|length| message(0, length)).concat();
        let cut = |length| if length > 1000 { message(CUT, 64) } else { message(0, length) };
        let expected = lengths.map(cut).concat();
        for size in [1, 2, 3, 5, 7, 64, 100, 1003, 16_384, all.len()] {
            let mut cutter = Cutter::default();
            let left: Vec<u8> =
                all.chunks(size).flat_map(|piece| cutter.cut(Bytes::copy_from_slice(piece), 1000)).collect();
            assert_eq!(left, expected, "pieces of {size}");
        }
    }

    #[test]
    fn a_piece_without_a_cut_is_not_copied() {
        let piece = Bytes::from(message(0, 1000).repeat(3));
        assert_eq!(Cutter::default().cut(piece.clone(), 1000).as_ptr(), piece.as_ptr());
    }
}
