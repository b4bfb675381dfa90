//! Validates the fields of a job before it reaches a pool.

use std::time::Duration;

use super::{Job, MAX_TENANT};

/// Longest kind, in bytes.
pub const MAX_KIND: usize = 64;
/// Longest media type, in bytes.
pub(in crate::model) const MAX_CONTENT_TYPE: usize = 128;
const MAX_KEY: usize = 256;
/// Maximum number of labels of a job.
pub const MAX_LABELS: usize = 16;
/// Longest key of a label, in bytes.
const MAX_LABEL_KEY: usize = 64;
/// Longest value of a label, in bytes.
const MAX_LABEL_VALUE: usize = 256;

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
