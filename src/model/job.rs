//! A job as its caller describes it, its importance and its id. `job/check.rs` checks the bounds of its fields.

mod check;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt,
    ops::Range,
    str::FromStr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
pub(super) use check::MAX_CONTENT_TYPE;
pub use check::{FieldViolation, MAX_KIND, MAX_LABELS, check_label_key, check_label_value, check_text};

use super::{Call, Deadline, RequestId};

/// Longest tenant, in bytes.
pub const MAX_TENANT: usize = 128;
/// Ids that a thread reserves at a time.
const IDS_PER_BLOCK: u64 = 256;

/// Key-value pairs that a caller attaches to a job for its handler.
pub type Labels = BTreeMap<String, String>;

/// One unit of work, as its caller describes it.
///
/// ```
/// use std::time::Duration;
/// use waterwheel::{Criticality, Job};
///
/// let job = Job::new("thumbnail", "…png…")
///     .content_type("image/png")
///     .timeout(Duration::from_secs(2))
///     .criticality(Criticality::Sheddable);
/// assert_eq!(job.kind, "thumbnail");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// Name of the handler that runs the job. At most 64 bytes.
    pub kind: String,
    /// Input of the handler.
    pub payload: Bytes,
    /// Media type of the payload; empty when unspecified. At most 128 bytes.
    pub content_type: String,
    /// Time limit of the caller for the whole job. `None` means the default of the pool.
    pub timeout: Option<Duration>,
    /// Longest run that the caller allows.
    pub run_timeout: Option<Duration>,
    /// Longest wait in the queue that the caller allows.
    pub queue_timeout: Option<Duration>,
    /// Importance of the job.
    pub criticality: Criticality,
    /// Tenant that the job is charged to; empty is the shared default tenant. At most 128 bytes.
    pub tenant: String,
    /// Jobs of one tenant with the same key run one at a time in a pool, in order of acceptance; empty means unordered.
    /// At most 256 bytes.
    pub ordering_key: String,
    /// Jobs of one kind with the same key share the limits that the kind sets per key. The empty key is a key like any
    /// other. At most 256 bytes.
    pub limit_key: String,
    /// What to do if the pool is full. `None` means the policy of the pool.
    pub when_full: Option<WhenFull>,
    /// At most 16 labels; keys of `[a-z0-9_.-]` up to 64 bytes, values up to 256 bytes.
    pub labels: Labels,
    /// The deadline, if it was fixed before the job reached the pool. It overrides `timeout`.
    pub deadline: Option<Deadline>,
    /// The call of the job. `None` means no request id, and the tracing span that is current at submission.
    pub call: Option<Arc<Call>>,
}

/// For each field, the method that sets it.
macro_rules! setters {
    ($($(#[$doc:meta])+ $field:ident: $value:ty;)+) => {$(
        $(#[$doc])+
        #[must_use]
        pub fn $field(mut self, $field: $value) -> Self {
            self.$field = $field.into();
            self
        }
    )+};
}

impl Job {
    /// A job of `kind` with `payload` as its input, and defaults for the rest.
    #[must_use]
    pub fn new(kind: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { kind: kind.into(), payload: payload.into(), ..Self::default() }
    }

    setters! {
        /// Sets the media type of the payload.
        content_type: impl Into<String>;
        /// Sets the timeout.
        timeout: Duration;
        /// Sets the longest run.
        run_timeout: Duration;
        /// Sets the longest wait in the queue.
        queue_timeout: Duration;
        /// Sets the importance.
        criticality: Criticality;
        /// Sets the tenant.
        tenant: impl Into<String>;
        /// Sets the ordering key.
        ordering_key: impl Into<String>;
        /// Sets the key by which the kind limits its jobs (`per_key`).
        limit_key: impl Into<String>;
        /// Sets what to do when the pool is full.
        when_full: WhenFull;
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Sets the request id of the job's call. A job without a call gets one in the current span.
    #[must_use]
    pub fn request_id(mut self, id: RequestId) -> Self {
        let call = self.call.get_or_insert_with(|| Arc::new(Call::here()));
        Arc::make_mut(call).request_id = Some(id);
        self
    }
}

/// How important a job is. More important classes go first; one start in twenty goes to the classes below
/// the most important one that waits. The names
/// are those of Google's SRE book, chapter "Handling Overload".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "programs", derive(serde::Deserialize), serde(rename_all = "SCREAMING_SNAKE_CASE"))]
pub enum Criticality {
    /// Batch work that may be dropped at any time.
    Sheddable,
    /// Work whose loss is tolerable now and then.
    SheddablePlus,
    /// Work that a user waits for.
    #[default]
    Critical,
    /// Work whose loss is an outage.
    CriticalPlus,
}

impl Criticality {
    /// All classes, the most important first: the order of service.
    pub const BY_IMPORTANCE: [Self; 4] = [Self::CriticalPlus, Self::Critical, Self::SheddablePlus, Self::Sheddable];

    /// Names in logs and in the configuration, in the order of [`BY_IMPORTANCE`](Self::BY_IMPORTANCE). In the protobuf
    /// contract they have the prefix `CRITICALITY_`.
    pub const NAMES: [&str; 4] = ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"];

    /// Position in [`BY_IMPORTANCE`](Self::BY_IMPORTANCE).
    #[must_use]
    pub fn rank(self) -> usize {
        3 - self as usize
    }
}

/// What happens to a job that finds the pool full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "programs", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum WhenFull {
    /// Refuse at once.
    #[default]
    Reject,
    /// Wait for capacity until the deadline. More important classes go first, then earlier arrivals. Callers whose
    /// tenant has used up its share of the queue are skipped.
    Wait,
    /// Evict the newest queued job of the lowest class below the arriving one. Refuse the arriving job if there is
    /// none.
    Shed,
    /// Replace the oldest queued jobs of the same tenant and class with this policy. Refuse the arriving job if there
    /// are none. It is for work of which only the newest matters.
    DropOldest,
}

/// Stage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobStage {
    /// Its caller waits for capacity.
    Waiting,
    /// It is queued.
    Queued,
    /// It runs on a worker.
    Running,
    /// It completed.
    Completed,
    /// It ended without a result.
    Failed,
}

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
}

impl JobId {
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

/// Length of the longest id as text, in bytes.
const MAX_ID_LENGTH: usize = 33;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_named() {
        let cases: [(&str, Job); 9] = [
            ("job.kind", Job::new("", "")),
            ("job.kind", Job::new("k".repeat(65), "")),
            ("job.content_type", Job::new("k", "").content_type("c".repeat(129))),
            ("job.tenant", Job::new("k", "").tenant("a\nb")),
            ("job.ordering_key", Job::new("k", "").ordering_key("o".repeat(257))),
            ("job.limit_key", Job::new("k", "").limit_key("o".repeat(257))),
            ("job.labels", Job::new("k", "").label("Upper", "")),
            ("job.labels", Job::new("k", "").label("a", "v".repeat(257))),
            ("job.run_timeout", Job::new("k", "").run_timeout(Duration::ZERO)),
        ];
        for (field, job) in cases {
            let found = job.violations();
            assert_eq!(found.len(), 1, "{field}: {found:?}");
            assert_eq!(found[0].field, field);
        }
        assert!(Job::new("k", "").tenant("t").label("a.b-c_1", "v").violations().is_empty());
    }

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
}
