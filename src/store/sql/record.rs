//! A job as a row, for both databases.

use std::{borrow::Cow, fmt, mem, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    model::{Criticality, Labels},
    store::{JobRecord, JobState, KindPolicy, NewJob, RetryPolicy, SessionId, StoreError, Timestamp},
};

/// A column of the table of jobs.
pub(in crate::store) struct Column {
    pub(super) name: &'static str,
    pub(super) write: fn(&JobRecord) -> Cell<'_>,
    /// Returns `false` if the value cannot be read. Then the field keeps its default.
    read: fn(&mut JobRecord, &mut Value) -> bool,
}

/// The columns of a job, in the order of reading and writing: those that change, the row number, and from [`FIXED`] on
/// those that never change.
pub(in crate::store) static COLUMNS: [Column; 32] = [
    column("state", |it| int(it.state as i64), |it, new| set(&mut it.state, new.one_of(&JobState::ALL))),
    column("place", |it| int(it.place), |it, new| set(&mut it.place, new.number())),
    column("holds_key", |it| Cell::Flag(it.holds_key), |it, new| set(&mut it.holds_key, new.flag())),
    column("due_at", |it| time(it.due_at), |it, new| set(&mut it.due_at, new.time())),
    column("expire_at", |it| time(it.request.expire_at), |it, new| set(&mut it.request.expire_at, new.any_time())),
    column("started_at", |it| time(it.started_at), |it, new| set(&mut it.started_at, new.any_time())),
    column("ended_at", |it| time(it.ended_at), |it, new| set(&mut it.ended_at, new.any_time())),
    // It follows from others.
    column("purge_at", |it| time(it.purge_at()), |_, _| true),
    column(
        "session",
        |it| Cell::Int(it.session.map(|it| it.0)),
        |it, new| set(&mut it.session, new.optional(|value| value.number().map(SessionId))),
    ),
    column("starts", |it| int(it.starts), |it, new| set(&mut it.starts, new.number())),
    column("failures", |it| int(it.failures), |it, new| set(&mut it.failures, new.number())),
    column("crashes", |it| int(it.crashes), |it, new| set(&mut it.crashes, new.number())),
    column("losses", |it| int(it.losses), |it, new| set(&mut it.losses, new.number())),
    column(
        "cancel_requested",
        |it| Cell::Flag(it.cancel_requested),
        |it, new| set(&mut it.cancel_requested, new.flag()),
    ),
    column("output_bytes", |it| int(it.output_bytes as i64), |it, new| set(&mut it.output_bytes, new.number())),
    column("output_type", |it| text(&it.output.content_type), |it, new| set(&mut it.output.content_type, new.text())),
    column(
        "attempts",
        |it| Cell::Text((!it.attempts.is_empty()).then(|| json(&it.attempts).into())),
        |it, new| set(&mut it.attempts, new.optional(Value::json).map(Option::unwrap_or_default)),
    ),
    // It follows from the attempts.
    column("outcome", |it| text(it.outcome()), |_, _| true),
    column("pattern", |it| text(&it.pattern), |it, new| set(&mut it.pattern, new.text())),
    column("row", |it| int(it.row), |it, new| set(&mut it.row, new.number())),
    column("id", |it| text(&it.request.id), |it, new| set(&mut it.request.id, new.text())),
    column("pool", |it| text(&it.request.pool), |it, new| set(&mut it.request.pool, new.text())),
    column("kind", |it| text(&it.request.job.kind), |it, new| set(&mut it.request.job.kind, new.text())),
    column("tenant", |it| text(&it.request.job.tenant), |it, new| set(&mut it.request.job.tenant, new.text())),
    column(
        "ordering_key",
        |it| text(&it.request.job.ordering_key),
        |it, new| set(&mut it.request.job.ordering_key, new.text()),
    ),
    // The limit key, where its concurrency is limited. Its text is in the other fields, too.
    column(
        "slot_key",
        |it| Cell::Text(it.request.limit_key().map(|(_, key)| key.into())),
        |it, new| set(&mut it.request.policy.has_key_limit, Some(!matches!(new, Value::Null))),
    ),
    column(
        "rank",
        |it| int(it.request.job.criticality.rank() as i64),
        |it, new| set(&mut it.request.job.criticality, new.one_of(&Criticality::BY_IMPORTANCE)),
    ),
    column("created_at", |it| time(it.created_at), |it, new| set(&mut it.created_at, new.time())),
    column(
        "digest",
        |it| Cell::Bytes(&it.digest),
        |it, new| set(&mut it.digest, new.bytes().and_then(|bytes| bytes.try_into().ok())),
    ),
    column("member_of", |it| Cell::Int(it.member_of), |it, new| set(&mut it.member_of, new.optional(Value::number))),
    column("payload_bytes", |it| int(it.payload_bytes as i64), |it, new| set(&mut it.payload_bytes, new.number())),
    column("spec", |it| Cell::Json(json(&Spec::of(&it.request))), |it, new| Spec::read(new, &mut it.request)),
];
/// Index of `id`, the first column that never changes: the number of columns before it, counted by hand.
pub(super) const FIXED: usize = 20;

const fn column(
    name: &'static str,
    write: fn(&JobRecord) -> Cell<'_>,
    read: fn(&mut JobRecord, &mut Value) -> bool,
) -> Column {
    Column { name, write, read }
}

/// Sets a field to a value, if there is one.
fn set<T>(field: &mut T, value: Option<T>) -> bool {
    value.map(|value| *field = value).is_some()
}

/// Reads a job, without its payload and the bytes of its output. A value that cannot be read becomes a default, and
/// [`JobRecord::fault`] names its column.
pub(in crate::store) fn read_record(row: &mut Values) -> JobRecord {
    // A job whose state cannot be read counts as ended.
    let mut record = JobRecord { state: JobState::Expired, ..JobRecord::default() };
    for (column, value) in COLUMNS.iter().zip(&mut row.0) {
        if !(column.read)(&mut record, value) {
            record.fault.get_or_insert(column.name);
        }
    }
    record
}

pub(super) fn read_records(rows: Vec<Values>) -> impl Iterator<Item = JobRecord> {
    rows.into_iter().map(|mut row| read_record(&mut row))
}

/// Columns of a job, to be written.
pub(super) fn cells_of<'a>(record: &'a JobRecord, columns: &[Column]) -> Vec<Cell<'a>> {
    columns.iter().map(|column| (column.write)(record)).collect()
}

/// A parameter of a statement. `Debug` hides the value, because a driver may log it.
#[derive(Clone)]
pub(in crate::store) enum Cell<'a> {
    Int(Option<i64>),
    Flag(bool),
    Text(Option<Cow<'a, str>>),
    Json(String),
    Bytes(&'a [u8]),
}

impl fmt::Debug for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

pub(super) fn int(int: impl Into<i64>) -> Cell<'static> {
    Cell::Int(Some(int.into()))
}

pub(in crate::store) fn text(text: &str) -> Cell<'_> {
    Cell::Text(Some(text.into()))
}

pub(super) fn time(time: impl Into<Option<Timestamp>>) -> Cell<'static> {
    Cell::Int(time.into().map(Timestamp::as_millis))
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts, numbers and a map with text keys are JSON")
}

/// A row of one cell for each item.
pub(super) fn rows_of<'a, T>(items: &[T], cell: impl Fn(&T) -> Cell<'a>) -> Vec<Vec<Cell<'a>>> {
    items.iter().map(|item| vec![cell(item)]).collect()
}

/// A value of a result row.
#[derive(Debug)]
pub(in crate::store) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
    /// Of a type that no column has, or a text that is not UTF-8.
    Unreadable,
}

/// `None` means that the value is of another sort.
impl Value {
    pub(super) fn number<T: TryFrom<i64>>(&self) -> Option<T> {
        if let Self::Int(int) = self { T::try_from(*int).ok() } else { None }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        self.number::<u8>().map(|number| number == 1)
    }

    pub(super) fn time(&self) -> Option<Timestamp> {
        self.number().map(Timestamp::from_millis)
    }

    fn any_time(&self) -> Option<Option<Timestamp>> {
        self.optional(Self::time)
    }

    /// An element by its position.
    fn one_of<T: Copy>(&self, all: &[T]) -> Option<T> {
        all.get(self.number::<usize>()?).copied()
    }

    fn text(&mut self) -> Option<String> {
        if let Self::Text(text) = self { Some(mem::take(text)) } else { None }
    }

    pub(super) fn json<T: DeserializeOwned>(&self) -> Option<T> {
        if let Self::Text(text) = self { serde_json::from_str(text).ok() } else { None }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        if let Self::Bytes(bytes) = self { Some(mem::take(bytes)) } else { None }
    }

    /// A value that may be null.
    fn optional<T>(&self, read: impl FnOnce(&Self) -> Option<T>) -> Option<Option<T>> {
        if let Self::Null = self { Some(None) } else { read(self).map(Some) }
    }
}

/// The values of a row. Reading a text or bytes takes the value, and leaves it empty.
pub(in crate::store) struct Values(pub(in crate::store) Vec<Value>);

impl Values {
    /// A number that is never null.
    pub(in crate::store) fn number<T: TryFrom<i64>>(&self, column: usize) -> Result<T, StoreError> {
        let unknown = || StoreError::Database("a row has a value that this program does not know".to_owned());
        self.0[column].number().ok_or_else(unknown)
    }

    /// A text; empty if null.
    pub(in crate::store) fn text(&mut self, column: usize) -> String {
        self.0[column].text().unwrap_or_default()
    }

    /// Bytes; empty if null.
    pub(in crate::store) fn bytes(&mut self, column: usize) -> Vec<u8> {
        self.0[column].bytes().unwrap_or_default()
    }
}

/// The first number of each row.
pub(super) fn numbers(rows: &[Values]) -> Result<Vec<i64>, StoreError> {
    rows.iter().map(|row| row.number(0)).collect()
}

/// The fields of a job that never change and that no query selects by, as JSON in one column. Fields with their default
/// are left out, which makes most rows short. An unknown field means damage, and not a newer version, so it is refused.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    content_type: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    limit_key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_timeout: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue_timeout: Option<Duration>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<RetryPolicy>,
    /// Retention of a result and of a dead letter, in seconds.
    retain: (u64, u64),
}

impl Spec {
    fn of(request: &NewJob) -> Self {
        let job = &request.job;
        Self {
            content_type: job.content_type.clone(),
            limit_key: job.limit_key.clone(),
            request_id: request.request_id.clone(),
            timeout: job.timeout,
            run_timeout: job.run_timeout,
            queue_timeout: job.queue_timeout,
            labels: job.labels.clone(),
            retry: Some(request.policy.retry).filter(|retry| *retry != RetryPolicy::default()),
            retain: (request.policy.retain_for.as_secs(), request.policy.retain_dead_for.as_secs()),
        }
    }

    /// Sets these fields of a job.
    fn read(value: &Value, request: &mut NewJob) -> bool {
        let Some(spec) = value.json() else { return false };
        let Self { content_type, limit_key, request_id, timeout, run_timeout, queue_timeout, labels, retry, retain } =
            spec;
        request.request_id = request_id;
        request.policy = KindPolicy {
            retry: retry.unwrap_or_default(),
            retain_for: Duration::from_secs(retain.0),
            retain_dead_for: Duration::from_secs(retain.1),
            ..request.policy
        };
        let job = &mut request.job;
        (job.content_type, job.limit_key, job.labels) = (content_type, limit_key, labels);
        (job.timeout, job.run_timeout, job.queue_timeout) = (timeout, run_timeout, queue_timeout);
        true
    }
}
