//! Cuts messages that are too large to their first bytes, for calls that go on after one.

use std::mem;

use bytes::{Bytes, BytesMut};

use super::framing::{HEAD, length};

/// The flag of a message that was cut.
pub(super) const CUT: u8 = 0x80;

/// Bytes that are kept of a message that is too large: enough for the id of its job.
const KEPT: usize = 64;

/// Follows the messages of one call.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// Part of a prefix, of which the rest is still to come.
    head: Bytes,
    /// Bytes of the current message to pass on.
    pass: usize,
    /// Bytes of it to drop then.
    drop: usize,
}

impl Cutter {
    /// Returns what is left of the next piece, where messages may have `largest` bytes.
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
                    left.extend_from_slice(&[CUT, 0, 0, 0, KEPT as u8]);
                    piece = piece.split_off(HEAD);
                    (at, self.pass, self.drop) = (0, KEPT, length - KEPT);
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
