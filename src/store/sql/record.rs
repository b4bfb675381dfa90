//! A job as a row, in both databases.

use std::{borrow::Cow, collections::BTreeMap, fmt, mem};

use crate::{
    model::{Criticality, Job},
    store::{Depth, JobRecord, JobState, SessionId, StoreError, Timestamp, spec::Spec},
};

/// The columns of a job with their types, in the order in which they are read and written: its row, what changes, and
/// from [`FIXED`] on what does not.
pub(super) const COLUMNS: [(&str, &str); 27] = [
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
pub(super) const FIXED: usize = 17;

/// A parameter of a statement. A driver may log it: `Debug` shows nothing of it.
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

/// A value that was read.
#[derive(Debug)]
pub(in crate::store) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// The values of a row. Each is read once.
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

    /// Empty if it is null.
    pub(in crate::store) fn text(&mut self, column: usize) -> String {
        if let Value::Text(text) = &mut self.0[column] { mem::take(text) } else { String::new() }
    }

    /// Empty if it is null.
    pub(super) fn bytes(&mut self, column: usize) -> Vec<u8> {
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

/// The row and what changes.
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
        Cell::Flag(record.cancel_requested),
        Cell::int(record.output_bytes as i64),
        Cell::text(&record.output_type),
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

/// A job, without its payload.
pub(super) fn read_record(row: &mut Values) -> Result<JobRecord, StoreError> {
    let mut job = Job::new(row.text(19), "");
    job.tenant = row.text(20);
    job.ordering_key = row.text(21);
    job.criticality = *of_index(&Criticality::BY_IMPORTANCE, row.number(22)?)?;
    let spec: Spec = serde_json::from_str(&row.text(26)).map_err(|_| unreadable())?;
    let mut request = spec.complete(row.text(17), row.text(18), job);
    request.expire_at = row.time(5);
    let attempts = row.text(16);
    let attempts = if attempts.is_empty() { Ok(Vec::new()) } else { serde_json::from_str(&attempts) };
    Ok(JobRecord {
        request,
        state: *of_index(&JobState::ALL, row.number(1)?)?,
        created_at: row.time(23).unwrap_or_default(),
        due_at: row.time(4).unwrap_or_default(),
        started_at: row.time(6),
        ended_at: row.time(7),
        attempts: attempts.map_err(|_| unreadable())?,
        starts: row.number(10)?,
        failures: row.number(11)?,
        crashes: row.number(12)?,
        cancel_requested: row.int(13) == Some(1),
        payload_bytes: row.number(25)?,
        output_bytes: row.number(14)?,
        output_type: row.text(15),
        row: row.number(0)?,
        place: row.number(2)?,
        holds_key: row.int(3) == Some(1),
        session: row.int(9).map(SessionId),
        digest: row.bytes(24).try_into().map_err(|_| unreadable())?,
    })
}

/// Adds kind, state, number of jobs, and when the first of them was due.
pub(super) fn read_depth(
    depths: &mut BTreeMap<String, Depth>,
    row: &mut Values,
    now: Timestamp,
) -> Result<(), StoreError> {
    let state = *of_index(&JobState::ALL, row.number(1)?)?;
    let depth = depths.entry(row.text(0)).or_default();
    depth.add(state, row.number(2)?);
    if state == JobState::Ready {
        depth.oldest_ready = row.time(3).map(|due| now.since(due));
    }
    Ok(())
}

fn of_index<T>(all: &[T], index: usize) -> Result<&T, StoreError> {
    all.get(index).ok_or_else(unreadable)
}

fn unreadable() -> StoreError {
    StoreError::Database("a row has a value that this program does not know".to_owned())
}
