//! A job as its caller describes it, and the bounds of its fields.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Call, Deadline, RequestId};

/// Longest kind, in bytes.
pub const MAX_KIND: usize = 64;
/// Longest media type, in bytes.
pub(super) const MAX_CONTENT_TYPE: usize = 128;
/// Longest tenant, in bytes.
pub const MAX_TENANT: usize = 128;
/// Longest ordering key or limit key, in bytes.
const MAX_KEY: usize = 256;
/// Maximum number of labels of a job.
pub const MAX_LABELS: usize = 16;
/// Longest key of a label, in bytes.
const MAX_LABEL_KEY: usize = 64;
/// Longest value of a label, in bytes.
const MAX_LABEL_VALUE: usize = 256;

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

/// How important a job is. More important classes go first; one start in twenty goes to the classes below the most
/// important one that waits. The names are those of Google's SRE book, chapter "Handling Overload".
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

impl Job {
    /// The violations of all fields; empty for a valid job.
    #[must_use]
    pub fn violations(&self) -> Vec<FieldViolation> {
        let mut found = Vec::new();
        if self.kind.is_empty() {
            found.push(FieldViolation::new("job.kind", "required: name a kind that the server has configured"));
        }
        bound("job.kind", &self.kind, MAX_KIND, &mut found);
        check_text("job.content_type", &self.content_type, MAX_CONTENT_TYPE, &mut found);
        check_text("job.tenant", &self.tenant, MAX_TENANT, &mut found);
        check_text("job.ordering_key", &self.ordering_key, MAX_KEY, &mut found);
        check_text("job.limit_key", &self.limit_key, MAX_KEY, &mut found);
        for (field, timeout) in [("job.run_timeout", self.run_timeout), ("job.queue_timeout", self.queue_timeout)] {
            if timeout == Some(Duration::ZERO) {
                found.push(FieldViolation::new(field, "zero; send a positive duration or leave it out"));
            }
        }
        self.label_violations(&mut found);
        found
    }

    fn label_violations(&self, found: &mut Vec<FieldViolation>) {
        if self.labels.len() > MAX_LABELS {
            found.push(FieldViolation::new("job.labels", format!("more than {MAX_LABELS} labels")));
            return;
        }
        for (key, value) in &self.labels {
            check_label_key("job.labels", key, found);
            check_label_value("job.labels", value, found);
        }
    }
}

/// Checks the key of a label of a job, or of a filter for jobs. A store may use a key as a path, where other characters
/// have a meaning.
pub fn check_label_key(field: &'static str, key: &str, found: &mut Vec<FieldViolation>) {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.-".contains(c);
    if key.is_empty() || key.len() > MAX_LABEL_KEY || !key.chars().all(is_allowed) {
        let rule = format!("a key must be 1 to {MAX_LABEL_KEY} characters of [a-z0-9_.-]");
        found.push(FieldViolation::new(field, rule));
    }
}

/// Checks the value of a label of a job, or of a filter for jobs.
pub fn check_label_value(field: &'static str, value: &str, found: &mut Vec<FieldViolation>) {
    if value.len() > MAX_LABEL_VALUE || value.chars().any(char::is_control) {
        let rule = format!("a value must be printable and at most {MAX_LABEL_VALUE} bytes");
        found.push(FieldViolation::new(field, rule));
    }
}

fn bound(field: &'static str, text: &str, max: usize, found: &mut Vec<FieldViolation>) {
    if text.len() > max {
        found.push(FieldViolation::new(field, format!("longer than {max} bytes")));
    }
}

/// Checks the length and the characters of an optional text of a job, or of a filter for jobs. Inlined, because most
/// jobs leave these fields empty.
#[inline]
pub fn check_text(field: &'static str, text: &str, max: usize, found: &mut Vec<FieldViolation>) {
    if text.is_empty() {
        return;
    }
    bound(field, text, max, found);
    if text.chars().any(char::is_control) {
        found.push(FieldViolation::new(field, "has a control character; send printable text"));
    }
}

/// An invalid value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldViolation {
    /// Path of the field in the request, such as `job.kind`.
    pub field: &'static str,
    /// The fault, and the valid values.
    pub description: String,
}

impl FieldViolation {
    /// A violation of `field`.
    #[must_use]
    pub fn new(field: &'static str, description: impl Into<String>) -> Self {
        Self { field, description: description.into() }
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
}
