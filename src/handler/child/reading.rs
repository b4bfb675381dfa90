//! Reads the output of a program: its pipes, lines for the log, and a tail for failures.

use std::{collections::VecDeque, io, os::fd::AsFd};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe::Receiver,
    process::ChildStderr,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Largest read in bytes: the default capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// Smallest free space for a read. With less, a new buffer is allocated, so that small chunks do not keep large buffers
/// alive.
const LEAST_ROOM: usize = 8 << 10;
/// Largest tail, in bytes.
pub(in crate::handler) const MAX_TAIL: usize = 3 << 10;
/// Longest line in the log, in bytes.
const MAX_LINE: usize = 512;
/// Maximum number of lines of one program in the log per second.
const LINES_PER_SECOND: u32 = 100;

/// The reading end of a program's output.
pub(in crate::handler) struct Pipe<R> {
    reader: R,
    buffer: BytesMut,
    /// Bytes still to read after the program has exited.
    left: Option<usize>,
}

impl<R: AsyncRead + AsFd + Unpin> Pipe<R> {
    /// A pipe that reads from `reader`.
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: BytesMut::new(), left: None }
    }

    /// Reads the next bytes. Returns `None` once every writer has closed the pipe. After the program has `ended`, also
    /// once the bytes are read that were in the pipe at that time, because a stray descendant may keep it open.
    ///
    /// Cancel safe: bytes are either returned or left in the pipe.
    pub(in crate::handler) async fn next(&mut self, ended: &CancellationToken) -> Option<Bytes> {
        if self.left.is_none() {
            tokio::select! {
                biased;
                () = ended.cancelled() => self.left = Some(self.unread()),
                chunk = Self::read(&mut self.reader, &mut self.buffer, CHUNK) => return chunk,
            }
        }
        let left = self.left.filter(|left| *left > 0)?;
        // The pipe holds that many bytes, and this is its only reader, so the read does not wait.
        let chunk = Self::read(&mut self.reader, &mut self.buffer, left).await?;
        self.left = Some(left - chunk.len());
        Some(chunk)
    }

    async fn read(reader: &mut R, buffer: &mut BytesMut, max: usize) -> Option<Bytes> {
        if buffer.capacity() < LEAST_ROOM {
            buffer.reserve(CHUNK);
        }
        // A read error counts as the end of the pipe.
        let read = reader.read_buf(&mut buffer.limit(max)).await.ok().filter(|read| *read > 0);
        read.map(|_| buffer.split().freeze())
    }

    fn unread(&self) -> usize {
        let unread = rustix::io::ioctl_fionread(&self.reader).unwrap_or(0);
        usize::try_from(unread).unwrap_or(usize::MAX)
    }
}

impl Pipe<Receiver> {
    /// Registers the pipe with the caller's runtime.
    pub(in crate::handler) fn moved(self) -> io::Result<Self> {
        let reader = Receiver::from_owned_fd_unchecked(self.reader.into_nonblocking_fd()?)?;
        Ok(Self { reader, ..self })
    }
}

/// Reads standard error to its end, so that the program never blocks on a full pipe. Keeps the last `keep` bytes.
/// Copies the lines to the log at level debug, because they may hold secrets.
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

    /// The tail in at most 3 KiB, with invalid UTF-8 replaced.
    pub(in crate::handler) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        text[text.ceil_char_boundary(text.len().saturating_sub(MAX_TAIL))..].to_owned()
    }

    /// The tail as printable text of at most `room` bytes. Newlines and tabs stay, other control characters are
    /// escaped, and invalid UTF-8 becomes U+FFFD. Characters and escapes are never split. An ellipsis marks a cut.
    pub(super) fn printable(&self, room: usize) -> String {
        let mut bytes: Vec<u8> = self.bytes.iter().copied().collect();
        if self.cut {
            // Skip the rest of a character whose first byte was cut off.
            let rest = bytes.iter().take(3).take_while(|byte| *byte & 0xc0 == 0x80).count();
            bytes.drain(..rest);
        }
        last_of(&String::from_utf8_lossy(&bytes), self.cut, room)
    }
}

const ELLIPSIS: &str = "…";

/// The end of a text in at most `room` bytes, with control characters escaped. An ellipsis marks a cut.
fn last_of(text: &str, cut: bool, room: usize) -> String {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    let escaped = |c: char| if is_plain(c) { c.to_string() } else { c.escape_default().to_string() };
    let pieces: Vec<String> = text.trim_end().chars().map(escaped).collect();
    if !cut && pieces.iter().map(String::len).sum::<usize>() <= room {
        return pieces.concat();
    }
    let (mut left, mut first) = (room.saturating_sub(ELLIPSIS.len()), pieces.len());
    while first > 0 && pieces[first - 1].len() <= left {
        first -= 1;
        left -= pieces[first].len();
    }
    if first == pieces.len() { String::new() } else { ELLIPSIS.to_owned() + &pieces[first..].concat() }
}

/// Splits a stream into log lines, with limits on their length and their rate.
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
