//! A job as a row, for both databases.

use std::{borrow::Cow, collections::BTreeMap, fmt, mem, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    model::{Criticality, Job, Labels, Output},
    store::{Depth, JobRecord, JobState, KindPolicy, NewJob, RetryPolicy, SessionId, Start, StoreError, Timestamp},
};

/// The columns of a job and their types, in the order of reading and writing: the row number, the columns that change,
/// and from [`FIXED`] on those that never change.
pub(in crate::store) const COLUMNS: [(&str, &str); 28] = [
    ("row", "bigint"),
    ("state", "bigint"),
    ("place", "bigint"),
    ("holds_key", "boolean"),
    ("due_at", "bigint"),
    ("expire_at", "bigint"),
    ("started_at", "bigint"),
    ("ended_at", "bigint"),
    ("purge_at", "bigint"),
    ("session", "bigint"),
    ("starts", "bigint"),
    ("failures", "bigint"),
    ("crashes", "bigint"),
    ("losses", "bigint"),
    ("cancel_requested", "boolean"),
    ("output_bytes", "bigint"),
    ("output_type", "text"),
    ("attempts", "text"),
    ("id", "text"),
    ("pool", "text"),
    ("kind", "text"),
    ("tenant", "text"),
    ("ordering_key", "text"),
    ("rank", "bigint"),
    ("created_at", "bigint"),
    ("digest", "bytea"),
    ("payload_bytes", "bigint"),
    ("spec", "json"),
];
/// First of the columns that never change.
pub(super) const FIXED: usize = 18;

/// A parameter of a statement. `Debug` hides the value, because a driver may log it.
#[derive(Clone)]
pub(in crate::store) enum Cell<'a> {
    Int(Option<i64>),
    Flag(bool),
    Text(Option<Cow<'a, str>>),
    Bytes(&'a [u8]),
}

impl fmt::Debug for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
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

/// The values of a row. Each can be taken once.
pub(in crate::store) struct Values(pub(in crate::store) Vec<Value>);

impl Values {
    pub(in crate::store) fn int(&self, column: usize) -> Option<i64> {
        if let Value::Int(int) = self.0[column] { Some(int) } else { None }
    }

    /// A number that is never null.
    pub(in crate::store) fn number<T: TryFrom<i64>>(&self, column: usize) -> Result<T, StoreError> {
        self.int(column).and_then(|int| T::try_from(int).ok()).ok_or_else(unreadable)
    }

    pub(super) fn time(&self, column: usize) -> Option<Timestamp> {
        self.int(column).map(Timestamp::from_millis)
    }

    /// A text; empty if null.
    pub(in crate::store) fn text(&mut self, column: usize) -> String {
        if let Value::Text(text) = &mut self.0[column] { mem::take(text) } else { String::new() }
    }

    /// Bytes; empty if null.
    pub(in crate::store) fn bytes(&mut self, column: usize) -> Vec<u8> {
        if let Value::Bytes(bytes) = &mut self.0[column] { mem::take(bytes) } else { Vec::new() }
    }
}

impl<'a> Cell<'a> {
    pub(super) fn int(int: i64) -> Self {
        Self::Int(Some(int))
    }

    pub(super) fn text(text: &'a str) -> Self {
        Self::Text(Some(Cow::Borrowed(text)))
    }

    pub(super) fn time(time: Option<Timestamp>) -> Self {
        Self::Int(time.map(Timestamp::as_millis))
    }
}

/// The row number and the columns that change.
pub(super) fn changing_cells(record: &JobRecord) -> Vec<Cell<'_>> {
    let attempts = || serde_json::to_string(&record.attempts).expect("numbers and texts are JSON");
    let attempts = (!record.attempts.is_empty()).then(attempts);
    vec![
        Cell::int(record.row),
        Cell::int(record.state as i64),
        Cell::int(record.place),
        Cell::Flag(record.holds_key),
        Cell::time(Some(record.due_at)),
        Cell::time(record.request.expire_at),
        Cell::time(record.started_at),
        Cell::time(record.ended_at),
        Cell::time(record.purge_at()),
        Cell::Int(record.session.map(|session| session.0)),
        Cell::int(record.starts.into()),
        Cell::int(record.failures.into()),
        Cell::int(record.crashes.into()),
        Cell::int(record.losses.into()),
        Cell::Flag(record.cancel_requested),
        Cell::int(record.output_bytes as i64),
        Cell::text(&record.output.content_type),
        Cell::Text(attempts.map(Cow::Owned)),
    ]
}

/// All columns.
pub(super) fn all_cells(record: &JobRecord) -> Vec<Cell<'_>> {
    let (request, job) = (&record.request, &record.request.job);
    let mut cells = changing_cells(record);
    cells.extend([
        Cell::text(&request.id),
        Cell::text(&request.pool),
        Cell::text(&job.kind),
        Cell::text(&job.tenant),
        Cell::text(&job.ordering_key),
        Cell::int(job.criticality.rank() as i64),
        Cell::time(Some(record.created_at)),
        Cell::Bytes(&record.digest),
        Cell::int(record.payload_bytes as i64),
        Cell::Text(Some(Cow::Owned(Spec::text_of(request)))),
    ]);
    cells
}

/// Reads a job, without its payload and the bytes of its output. A value that cannot be read becomes a default, and
/// [`JobRecord::fault`] says so.
pub(in crate::store) fn read_record(row: &mut Values) -> JobRecord {
    let mut row = Fields { row, fault: None };
    let mut job = Job::new(row.text(20), "");
    job.tenant = row.text(21);
    job.ordering_key = row.text(22);
    job.criticality = row.one_of(23, &Criticality::BY_IMPORTANCE);
    let mut request = row.json::<Spec>(27).complete(row.text(18), row.text(19), job);
    request.expire_at = row.time(5);
    JobRecord {
        request,
        state: row.one_of(1, &JobState::ALL),
        created_at: row.time(24).unwrap_or_default(),
        due_at: row.time(4).unwrap_or_default(),
        started_at: row.time(6),
        ended_at: row.time(7),
        attempts: row.json(17),
        starts: row.number(10),
        failures: row.number(11),
        crashes: row.number(12),
        losses: row.number(13),
        cancel_requested: row.number::<u8>(14) == 1,
        payload_bytes: row.number(26),
        output_bytes: row.number(15),
        output: Output { bytes: Bytes::new(), content_type: row.text(16) },
        row: row.number(0),
        place: row.number(2),
        holds_key: row.number::<u8>(3) == 1,
        session: row.time(9).map(|session| SessionId(session.as_millis())),
        digest: row.read(25, [0; 32], |value| match value {
            Value::Bytes(bytes) => mem::take(bytes).try_into().ok(),
            _ => None,
        }),
        fault: row.fault,
    }
}

/// The columns of a job's row. Remembers the first one that cannot be read.
struct Fields<'a> {
    row: &'a mut Values,
    fault: Option<&'static str>,
}

impl Fields<'_> {
    fn read<T>(&mut self, column: usize, default: T, read: impl FnOnce(&mut Value) -> Option<T>) -> T {
        read(&mut self.row.0[column]).unwrap_or_else(|| {
            self.fault.get_or_insert(COLUMNS[column].0);
            default
        })
    }

    fn number<T: TryFrom<i64> + Default>(&mut self, column: usize) -> T {
        self.read(column, T::default(), |value| match value {
            Value::Int(int) => T::try_from(*int).ok(),
            _ => None,
        })
    }

    fn time(&mut self, column: usize) -> Option<Timestamp> {
        self.read(column, None, |value| match value {
            Value::Int(int) => Some(Some(Timestamp::from_millis(*int))),
            Value::Null => Some(None),
            _ => None,
        })
    }

    fn text(&mut self, column: usize) -> String {
        self.read(column, String::new(), |value| match value {
            Value::Text(text) => Some(mem::take(text)),
            _ => None,
        })
    }

    /// An element by its position; the last one if there is none.
    fn one_of<T: Copy>(&mut self, column: usize, all: &[T]) -> T {
        self.read(column, all[all.len() - 1], |value| match value {
            Value::Int(int) => all.get(usize::try_from(*int).ok()?).copied(),
            _ => None,
        })
    }

    fn json<T: DeserializeOwned + Default>(&mut self, column: usize) -> T {
        self.read(column, T::default(), |value| match value {
            Value::Text(text) => serde_json::from_str(text).ok(),
            Value::Null => Some(T::default()),
            _ => None,
        })
    }
}

/// Adds a row of kind, state, number of jobs, and earliest due time.
pub(super) fn read_depth(
    depths: &mut BTreeMap<String, Depth>,
    row: &mut Values,
    now: Timestamp,
) -> Result<(), StoreError> {
    let state = *JobState::ALL.get(row.number::<usize>(1)?).ok_or_else(unreadable)?;
    let depth = depths.entry(row.text(0)).or_default();
    depth.add(state, row.number(2)?);
    if state == JobState::Ready {
        depth.oldest_ready = row.time(3).map(|due| now.since(due));
    }
    Ok(())
}

/// The fields of a job that never change and that no query selects by, as JSON in one column. Fields with their default
/// are left out, which makes most rows short. A field of another name is one whose name was damaged.
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

impl Default for Spec {
    /// The fields of a job that cannot be read.
    fn default() -> Self {
        Self::of(&NewJob::new("", "", Job::new("", "")))
    }
}

impl Spec {
    fn text_of(request: &NewJob) -> String {
        serde_json::to_string(&Self::of(request)).expect("texts, numbers and a map with text keys are JSON")
    }

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

    /// Builds the job from these fields and those of the other columns.
    fn complete(self, id: String, pool: String, job: Job) -> NewJob {
        let Self { content_type, limit_key, request_id, timeout, run_timeout, queue_timeout, labels, retry, retain } =
            self;
        NewJob {
            id,
            pool,
            job: Job { content_type, limit_key, timeout, run_timeout, queue_timeout, labels, ..job },
            request_id,
            start: Start::Now,
            expire_at: None,
            policy: KindPolicy {
                retry: retry.unwrap_or_default(),
                retain_for: Duration::from_secs(retain.0),
                retain_dead_for: Duration::from_secs(retain.1),
            },
        }
    }
}

fn unreadable() -> StoreError {
    StoreError::Database("a row has a value that this program does not know".to_owned())
}
