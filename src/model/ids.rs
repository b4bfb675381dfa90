//! The ids of jobs, kinds and calls.

use std::{
    cell::Cell,
    fmt,
    ops::Range,
    str::FromStr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

/// Ids that a thread reserves at a time.
const IDS_PER_BLOCK: u64 = 256;
/// Length of the longest job id as text, in bytes.
const MAX_ID_LENGTH: usize = 33;

/// Identifies a job in answers, logs, traces and receipts; unique across restarts.
///
/// The text form is two hexadecimal numbers: one of the process, chosen with its first id, and one of the job in it.
/// The numbers that one thread assigns increase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId {
    process: u64,
    sequence: u64,
}

impl JobId {
    /// The next id of this process.
    #[must_use]
    pub fn next() -> Self {
        static PROCESS: OnceLock<u64> = OnceLock::new();
        thread_local! {
            static BLOCK: Cell<Range<u64>> = const { Cell::new(0..0) };
        }
        // Threads reserve numbers in blocks, because one shared counter would cost as much as the rest of the id.
        static BLOCKS: AtomicU64 = AtomicU64::new(0);
        let mut block = BLOCK.take();
        if block.is_empty() {
            let start = BLOCKS.fetch_add(1, Ordering::Relaxed) * IDS_PER_BLOCK + 1;
            block = start..start + IDS_PER_BLOCK;
        }
        let sequence = block.start;
        BLOCK.set(sequence + 1..block.end);
        // The upper half of a UUIDv7 has milliseconds and twelve random bits, so that ids of later processes sort
        // later.
        let process = *PROCESS.get_or_init(|| uuid::Uuid::now_v7().as_u64_pair().0);
        Self { process, sequence }
    }

    /// Passes the text of the id to `read`. The digits are written without the formatter, which is five times slower,
    /// because every result has an id.
    pub(crate) fn with_text<T>(self, read: impl FnOnce(&str) -> T) -> T {
        let sequence = hex(self.sequence);
        let zeros = (self.sequence.leading_zeros() / 4).min(15) as usize;
        let mut text = [b'-'; MAX_ID_LENGTH];
        text[..16].copy_from_slice(&hex(self.process));
        let text = &mut text[..MAX_ID_LENGTH - zeros];
        text[17..].copy_from_slice(&sequence[zeros..]);
        read(std::str::from_utf8(text).expect("hexadecimal digits are ASCII"))
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.with_text(str::to_owned)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.write_str(text))
    }
}

fn hex(number: u64) -> [u8; 16] {
    std::array::from_fn(|at| b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 0xF])
}

/// The text is not a job id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a job id")]
pub struct InvalidJobId;

impl FromStr for JobId {
    type Err = InvalidJobId;

    /// Parses the text form of an id.
    fn from_str(text: &str) -> Result<Self, InvalidJobId> {
        let (process, sequence) = text.split_once('-').ok_or(InvalidJobId)?;
        let number = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| InvalidJobId);
        let id = Self { process: number(process)?, sequence: number(sequence)? };
        // Another spelling of the same numbers is not a valid id.
        if id.to_string() == text { Ok(id) } else { Err(InvalidJobId) }
    }
}

/// Number of a kind in its pool. A kind that replaces another one has a new number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(pub(crate) usize);

/// Correlation id of a call (`x-request-id`): 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

/// The text is not a valid [`RequestId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request id must be 1 to 128 visible ASCII characters")]
pub struct InvalidRequestId;

impl RequestId {
    /// A new id: a UUID of version 7.
    #[must_use]
    pub fn generate() -> Self {
        // Ids of the same millisecond have no order, because an order would need a lock that all threads share.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid();
        let mut buffer = uuid::Uuid::encode_buffer();
        Self(Arc::from(&*id.hyphenated().encode_lower(&mut buffer)))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RequestId {
    type Err = InvalidRequestId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > 128 || !visible {
            return Err(InvalidRequestId);
        }
        Ok(Self(Arc::from(text)))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_share_the_process() {
        let (a, b) = (JobId::next(), JobId::next());
        assert_ne!(a, b);
        assert_eq!(a.to_string().split_once('-').map(|p| p.0.len()), Some(16));
        assert_eq!(a.process, b.process);
        for (process, sequence) in [(0, 0), (1, 0xf), (u64::MAX, 0x10), (0xabc0_1234_5678_9def, u64::MAX)] {
            assert_eq!(JobId { process, sequence }.to_string(), format!("{process:016x}-{sequence:x}"));
        }
    }

    #[test]
    fn ids_are_read_as_they_are_shown() {
        for (process, sequence) in [(0, 0), (1, 0xf), (u64::MAX, 0x10), (0xabc0_1234_5678_9def, u64::MAX)] {
            let id = JobId { process, sequence };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "-", "1-1", "0000000000000001-", "0000000000000001-01", "0000000000000001-+1", "g-1", "1"] {
            assert_eq!(text.parse::<JobId>(), Err(InvalidJobId), "{text:?}");
        }
    }

    #[test]
    fn request_ids_are_short_and_visible() {
        for bad in ["", " ", "a b", "é", "a\n", &"x".repeat(129)] {
            assert_eq!(bad.parse::<RequestId>(), Err(InvalidRequestId), "{bad:?}");
        }
        assert_eq!("x".repeat(128).parse::<RequestId>().map(|id| id.as_str().len()), Ok(128));
        assert_eq!(RequestId::generate().as_str().len(), 36);
    }
}
