//! Finds the boundaries of messages in the pieces of a body. `upload.rs` uses it.

/// Length of the prefix of a gRPC message: a flag, and the message's length.
pub(super) const HEAD: usize = 5;

/// Tracks the boundaries of a call's messages, piece by piece.
#[derive(Debug, Default)]
pub(super) struct Framing {
    head: [u8; HEAD],
    /// Bytes of the incomplete message, with its prefix.
    read: usize,
    /// Missing bytes of its body, once its prefix is complete.
    missing: usize,
    /// Whether it began in the last piece.
    is_new: bool,
    /// Length of the longest message whose prefix was in the last piece.
    longest: Option<usize>,
}

impl Framing {
    /// Reads the next piece.
    pub(super) fn read(&mut self, mut piece: &[u8]) {
        self.is_new = false;
        self.longest = None;
        while !piece.is_empty() {
            if self.read == 0 {
                self.is_new = true;
                // Most messages come whole, and need no tracking.
                if let Some((head, rest)) = piece.split_first_chunk()
                    && let Some((_, next)) = rest.split_at_checked(length(*head))
                {
                    self.longest = self.longest.max(Some(length(*head)));
                    piece = next;
                    continue;
                }
            }
            if self.read < HEAD {
                let count = piece.len().min(HEAD - self.read);
                self.head[self.read..self.read + count].copy_from_slice(&piece[..count]);
                self.read += count;
                piece = &piece[count..];
                if self.read < HEAD {
                    return;
                }
                self.missing = length(self.head);
                self.longest = self.longest.max(Some(self.missing));
            }
            let count = piece.len().min(self.missing);
            self.read += count;
            self.missing -= count;
            piece = &piece[count..];
            if self.missing == 0 {
                self.read = 0;
            }
        }
    }

    /// Received bytes of the incomplete message.
    pub(super) fn unfinished(&self) -> usize {
        self.read
    }

    /// Length of the incomplete message, with its prefix, as far as known.
    pub(super) fn length(&self) -> usize {
        self.read.saturating_add(self.missing)
    }

    /// Length of the longest message whose prefix was in the last piece, without the prefix.
    pub(super) fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Whether the incomplete message began in the last piece.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }
}

/// Length of the message behind the prefix.
pub(super) fn length([_, a, b, c, d]: [u8; HEAD]) -> usize {
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u8) -> Vec<u8> {
        [&[0, 0, 0, 0, length][..], &vec![7; length.into()]].concat()
    }

    #[test]
    fn every_cut_of_messages_leaves_what_is_not_whole() {
        let messages: Vec<Vec<u8>> = [0, 3, 1, 200, 0, 0, 5].map(message).into();
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
                assert_eq!(framing.unfinished(), at - begin, "pieces of {size}, at {at}");
                if at > begin {
                    assert_eq!(framing.is_new(), begin >= began, "pieces of {size}, at {at}");
                }
            }
            assert_eq!(framing.unfinished(), 0);
        }
    }
}
