//! Checks the write-ahead log before SQLite opens it. SQLite stops reading at the first damaged frame, and silently
//! drops every later commit. <https://sqlite.org/fileformat2.html#walformat> describes the format.

use std::{
    fs::File,
    io::{self, BufReader, Read as _},
    path::Path,
};

use super::StoreError;

const FRAME_HEADER: usize = 24;

/// The two running sums of the WAL checksum.
type Checksum = (u32, u32);

struct Wal {
    big_endian: bool,
    page: usize,
    salt: [u8; 8],
    sum: Checksum,
}

/// Checks the chain of checksums.
///
/// A crash may leave the last transaction incomplete. Each earlier one was flushed before the next began. So if a
/// commit follows the transaction with the first broken frame, the file was damaged later.
pub(super) fn verify(path: &Path) -> Result<(), StoreError> {
    let damaged = |detail: &str| StoreError::Damaged { path: path.to_owned(), detail: detail.to_owned() };
    let mut file = match File::open(path) {
        Ok(file) => BufReader::with_capacity(1 << 20, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(super::io_error(&error, path)),
    };
    let mut header = [0; 32];
    if !fill(&mut file, &mut header).map_err(|error| super::io_error(&error, path))? {
        return Ok(());
    }
    let Some(mut wal) = Wal::of(&header) else {
        // A log that was only reserved has only zeros.
        let mut rest = Vec::new();
        let is_reserved = header == [0; 32] && {
            file.read_to_end(&mut rest).map_err(|error| super::io_error(&error, path))?;
            rest.iter().all(|byte| *byte == 0)
        };
        return if is_reserved { Ok(()) } else { Err(damaged("the header of the log is broken")) };
    };
    let mut frame = vec![0; FRAME_HEADER + wal.page];
    let (mut number, mut broken, mut commits) = (0_u64, None, 0);
    while fill(&mut file, &mut frame).map_err(|error| super::io_error(&error, path))? {
        number += 1;
        if broken.is_none() && wal.accepts(&frame) {
            continue;
        }
        broken = broken.or(Some(number));
        let is_commit = frame[4..8] != [0; 4];
        commits += u32::from(is_commit && frame[8..16] == wal.salt);
    }
    match broken {
        Some(number) if commits > 1 => Err(damaged(&format!("frame {number} of the log is broken"))),
        _ => Ok(()),
    }
}

impl Wal {
    /// The log with this header; `None` if the header is damaged.
    fn of(header: &[u8; 32]) -> Option<Self> {
        let big_endian = match word(header, 0, true) {
            0x377f_0682 => false,
            0x377f_0683 => true,
            _ => return None,
        };
        let sum = checksum((0, 0), &header[..24], big_endian);
        let is_intact = sum == (word(header, 24, true), word(header, 28, true));
        let page = word(header, 8, true) as usize;
        let salt = header[16..24].try_into().ok()?;
        (is_intact && (512..=65536).contains(&page)).then_some(Self { big_endian, page, salt, sum })
    }

    /// Whether the frame continues the chain of checksums.
    fn accepts(&mut self, frame: &[u8]) -> bool {
        let sum = checksum(self.sum, &frame[..8], self.big_endian);
        let sum = checksum(sum, &frame[FRAME_HEADER..], self.big_endian);
        let is_next = frame[8..16] == self.salt && sum == (word(frame, 16, true), word(frame, 20, true));
        if is_next {
            self.sum = sum;
        }
        is_next
    }
}

fn checksum(start: Checksum, bytes: &[u8], big_endian: bool) -> Checksum {
    bytes.as_chunks::<8>().0.iter().fold(start, |(first, second), pair| {
        let first = first.wrapping_add(word(pair, 0, big_endian)).wrapping_add(second);
        (first, second.wrapping_add(word(pair, 4, big_endian)).wrapping_add(first))
    })
}

fn word(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

/// Fills the buffer. Returns `false` if the file ends before that.
fn fill(file: &mut impl io::Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
