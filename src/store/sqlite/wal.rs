//! Checks the write-ahead log before SQLite opens it. SQLite stops reading at the first damaged frame, and silently
//! drops every later commit. <https://sqlite.org/fileformat2.html#walformat> describes the format.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read as _, Seek as _, Write as _},
    path::Path,
};

use super::{StoreError, beside, io_error};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// First bytes of a log with big-endian checksums, and its version.
const BIG_ENDIAN: [u8; 8] = [0x37, 0x7f, 0x06, 0x83, 0x00, 0x2d, 0xe2, 0x18];

/// The two running sums of the WAL checksum.
type Checksum = (u32, u32);

struct Wal {
    big_endian: bool,
    page: usize,
    salt: [u8; 8],
    sum: Checksum,
}

/// Checks the chain of checksums in the log of a database. Returns the first frame of a last transaction that is
/// incomplete although its commit is there: a power cut may leave it so, and a damage too.
///
/// A crash may leave the last transaction incomplete. Each earlier one was flushed before the next began. So if a
/// commit follows the transaction with the first broken frame, the file was damaged later.
pub(super) fn verify(database: &Path) -> Result<Option<u64>, StoreError> {
    let path = &beside(database, "-wal");
    let damaged = |detail: String| StoreError::Damaged { path: database.to_owned(), detail };
    let failed = |error: io::Error| io_error(&error, path);
    let mut file = match File::open(path) {
        Ok(file) => BufReader::with_capacity(1 << 20, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut header = [0; HEADER];
    if !fill(&mut file, &mut header).map_err(failed)? {
        return Ok(None);
    }
    let Some(mut wal) = Wal::of(&header) else {
        // A log that was only reserved has only zeros.
        let mut rest = Vec::new();
        let is_reserved = header == [0; HEADER] && {
            file.read_to_end(&mut rest).map_err(failed)?;
            rest.iter().all(|byte| *byte == 0)
        };
        return if is_reserved { Ok(None) } else { Err(damaged("the header of the log is broken".to_owned())) };
    };
    let mut frame = vec![0; FRAME_HEADER + wal.page];
    let (mut number, mut broken, mut commits) = (0_u64, None, 0);
    while fill(&mut file, &mut frame).map_err(failed)? {
        number += 1;
        if broken.is_none() && wal.accepts(&frame) {
            continue;
        }
        broken = broken.or(Some(number));
        commits += u32::from(is_commit(&frame) && wal.owns(&frame));
    }
    match broken {
        Some(number) if commits > 1 => Err(damaged(format!("frame {number} of its log is broken"))),
        _ => Ok(broken.filter(|_| commits > 0)),
    }
}

/// Copies the log of a database with a new chain of checksums, so that SQLite also reads what follows a broken frame.
pub(super) fn mend(database: &Path, copy: &Path) -> io::Result<()> {
    let Ok(log) = File::open(beside(database, "-wal")) else { return Ok(()) };
    let (mut log, mut header, mut first) = (BufReader::with_capacity(1 << 20, log), [0; HEADER], [0; FRAME_HEADER]);
    if !(fill(&mut log, &mut header)? && fill(&mut log, &mut first)?)
        || (header, first) == ([0; HEADER], [0; FRAME_HEADER])
    {
        return Ok(());
    }
    // A last transaction that is incomplete is left out, as SQLite does.
    let end = verify(database).ok().flatten().unwrap_or(u64::MAX);
    let found = Wal::of(&header).map(|wal| (wal.page, wal.salt));
    let (page, salt) = match found {
        Some(found) => found,
        // The database and the first frame have them, too.
        None => (page_size(database)?, *first[8..].first_chunk().expect("a frame's header has 24 bytes")),
    };
    header[..8].copy_from_slice(&BIG_ENDIAN);
    header[8..12].copy_from_slice(&(page as u32).to_be_bytes());
    header[16..24].copy_from_slice(&salt);
    let sum = checksum((0, 0), &header[..24], true);
    set_sum(&mut header[24..], sum);
    let mut wal = Wal { big_endian: true, page, salt, sum };
    let mut frame = vec![0; FRAME_HEADER + page];
    let mut copy = BufWriter::new(File::create(copy)?);
    copy.write_all(&header)?;
    log.seek(io::SeekFrom::Start(HEADER as u64))?;
    let mut number = 1;
    while number < end && fill(&mut log, &mut frame)? && wal.owns(&frame) {
        number += 1;
        frame[8..16].copy_from_slice(&salt);
        wal.sum = checksum(wal.sum, &frame[..8], true);
        wal.sum = checksum(wal.sum, &frame[FRAME_HEADER..], true);
        set_sum(&mut frame[16..FRAME_HEADER], wal.sum);
        copy.write_all(&frame)?;
    }
    copy.flush()
}

/// The page size in the header of a database.
fn page_size(database: &Path) -> io::Result<usize> {
    let mut start = [0; 18];
    fill(&mut File::open(database)?, &mut start)?;
    let size = usize::from(u16::from_be_bytes([start[16], start[17]]));
    Ok(if size.is_power_of_two() && size >= 512 { size } else { 65536 })
}

fn is_commit(frame: &[u8]) -> bool {
    frame[4..8] != [0; 4]
}

fn set_sum(bytes: &mut [u8], sum: Checksum) {
    bytes[..4].copy_from_slice(&sum.0.to_be_bytes());
    bytes[4..].copy_from_slice(&sum.1.to_be_bytes());
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

    /// Whether the frame was written since the log began anew, even if half of its salt is damaged.
    fn owns(&self, frame: &[u8]) -> bool {
        frame[8..12] == self.salt[..4] || frame[12..16] == self.salt[4..]
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
