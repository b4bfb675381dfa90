//! Reads the standard error of a program: lines for the log, and a tail for failures.

use std::collections::VecDeque;

use tokio::{process::ChildStderr, time::Instant};
use tokio_util::sync::CancellationToken;

use super::Pipe;

/// Most bytes of a tail.
pub(in crate::handler) const MAX_TAIL: usize = 3 << 10;
/// Most bytes of one line in the log.
const MAX_LINE: usize = 512;
/// Most lines of one program in the log in one second.
const LINES_PER_SECOND: u32 = 100;

/// Reads standard error to its end, so that the program never waits for us; keeps its last `keep` bytes, and copies
/// its lines to the log at the level debug, for they may hold secrets.
pub(in crate::handler) async fn drain(mut stderr: Pipe<ChildStderr>, keep: usize, ended: &CancellationToken) -> Tail {
    let mut tail = Tail::new(keep);
    let mut log = tracing::enabled!(tracing::Level::DEBUG).then(LineLog::new);
    while let Some(chunk) = stderr.next(ended).await {
        tail.push(&chunk);
        if let Some(log) = &mut log {
            log.push(&chunk, emit);
        }
    }
    if let Some(log) = &mut log {
        log.finish(emit);
    }
    tail
}

fn emit(line: &str, suppressed: u64) {
    tracing::debug!(line, suppressed, "the program wrote to its standard error");
}

/// The last bytes of a stream.
#[derive(Debug)]
pub(in crate::handler) struct Tail {
    keep: usize,
    bytes: VecDeque<u8>,
    cut: bool,
}

impl Tail {
    pub(in crate::handler) fn new(keep: usize) -> Self {
        Self { keep, bytes: VecDeque::new(), cut: false }
    }

    pub(in crate::handler) fn push(&mut self, chunk: &[u8]) {
        let from = chunk.len().saturating_sub(self.keep);
        self.bytes.extend(&chunk[from..]);
        let over = self.bytes.len().saturating_sub(self.keep);
        self.bytes.drain(..over);
        self.cut |= from + over > 0;
    }

    /// The tail as it was written, but for bytes that are no UTF-8, in at most 3 KiB.
    pub(in crate::handler) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        text[text.ceil_char_boundary(text.len().saturating_sub(MAX_TAIL))..].to_owned()
    }

    /// The tail as printable text of at most `room` bytes: lines and tabs stay, other control characters are escaped,
    /// invalid UTF-8 becomes U+FFFD, and neither a character nor an escape is split. An ellipsis stands for what is cut off.
    pub(super) fn printable(&self, room: usize) -> String {
        let mut bytes: Vec<u8> = self.bytes.iter().copied().collect();
        if self.cut {
            // The rest of a character whose begin is gone.
            let rest = bytes.iter().take(3).take_while(|byte| *byte & 0xc0 == 0x80).count();
            bytes.drain(..rest);
        }
        last_of(&String::from_utf8_lossy(&bytes), self.cut, room)
    }
}

const ELLIPSIS: &str = "…";

fn last_of(text: &str, cut: bool, room: usize) -> String {
    let text = text.trim_end();
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    let escaped = |c: char| if is_plain(c) { c.to_string() } else { c.escape_default().to_string() };
    let whole: usize = text.chars().map(|c| escaped(c).len()).sum();
    if !cut && whole <= room {
        return text.chars().map(escaped).collect();
    }
    let mut left = room.saturating_sub(ELLIPSIS.len());
    let fits = |piece: &String| {
        let fits = piece.len() <= left;
        left = left.saturating_sub(piece.len());
        fits
    };
    let mut pieces: Vec<String> = text.chars().rev().map(escaped).take_while(fits).collect();
    if pieces.is_empty() {
        return String::new();
    }
    pieces.push(ELLIPSIS.into());
    pieces.into_iter().rev().collect()
}

/// Cuts a stream into lines, none of them long, and not too many in any second.
#[derive(Debug)]
pub(in crate::handler) struct LineLog {
    line: Vec<u8>,
    window: Instant,
    used: u32,
    suppressed: u64,
}

impl LineLog {
    pub(in crate::handler) fn new() -> Self {
        Self { line: Vec::new(), window: Instant::now(), used: 0, suppressed: 0 }
    }

    pub(in crate::handler) fn push(&mut self, chunk: &[u8], mut emit: impl FnMut(&str, u64)) {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            let (piece, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |piece| (piece, true));
            let room = MAX_LINE - self.line.len();
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if ends {
                self.end_line(&mut emit);
            }
        }
    }

    pub(in crate::handler) fn finish(&mut self, mut emit: impl FnMut(&str, u64)) {
        if !self.line.is_empty() {
            self.end_line(&mut emit);
        }
        if self.suppressed > 0 {
            emit("", self.suppressed);
        }
    }

    fn end_line(&mut self, emit: &mut impl FnMut(&str, u64)) {
        let now = Instant::now();
        if now.duration_since(self.window).as_secs() > 0 {
            (self.window, self.used) = (now, 0);
        }
        if self.used < LINES_PER_SECOND {
            self.used += 1;
            emit(&last_of(&String::from_utf8_lossy(&self.line), false, 6 * MAX_LINE), self.suppressed);
            self.suppressed = 0;
        } else {
            self.suppressed += 1;
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn tail(keep: usize, chunks: &[&[u8]]) -> Tail {
        let mut tail = Tail::new(keep);
        chunks.iter().for_each(|chunk| tail.push(chunk));
        tail
    }

    #[test]
    fn the_tail_is_printable_and_never_splits_a_character() {
        let cases: [(usize, &[&[u8]], usize, &str); 11] = [
            (64, &[], 64, ""),
            (64, &[b"no such", b" file\n"], 64, "no such file"),
            (64, &[b"a\nb\t\x1b[31m\r\n\n"], 64, "a\nb\t\\u{1b}[31m"),
            (64, &[b"a\r\nb\0"], 64, "a\\r\nb\\u{0}"),
            (4, &[b"abc", b"defg"], 64, "…defg"),
            (4, &[b"abcdefg"], 64, "…defg"),
            (4, &["aéé€".as_bytes()], 64, "…€"),
            (64, &[b"a\xffb"], 64, "a\u{fffd}b"),
            (64, &["€€€".as_bytes()], 8, "…€"),
            (64, &[b"ab\x1b"], 7, ""),
            (0, &[b"abc"], 64, ""),
        ];
        for (keep, chunks, room, expected) in cases {
            let printable = tail(keep, chunks).printable(room);
            assert_eq!(printable, expected, "{chunks:?}");
            assert!(printable.len() <= room);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_is_bounded_in_length_and_rate() {
        let mut seen: Vec<(String, u64)> = Vec::new();
        let mut log = LineLog::new();
        log.push(&[b'x'; 10_000], |_, _| panic!("no line ended"));
        let flood = b"\nshort".repeat(1_000);
        log.push(&flood, |line, suppressed| seen.push((line.into(), suppressed)));
        assert_eq!(seen.len(), 100);
        assert_eq!(seen[0].0.len(), MAX_LINE);
        advance(Duration::from_secs(1)).await;
        log.push(b"\nlast", |line, suppressed| seen.push((line.into(), suppressed)));
        log.finish(|line, suppressed| seen.push((line.into(), suppressed)));
        assert_eq!(seen[100..], [("short".to_owned(), 900), ("last".to_owned(), 0)]);
    }
}
