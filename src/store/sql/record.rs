//! A job as a row, in both databases.

use std::{borrow::Cow, collections::BTreeMap};

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
    ("spec", "text"),
];
/// First of the columns that never change.
pub(super) const FIXED: usize = 17;

/// A parameter of a statement.
#[derive(Debug, Clone)]
pub(in crate::store) enum Cell<'a> {
    Int(Option<i64>),
    Flag(bool),
    Text(Option<Cow<'a, str>>),
    Bytes(&'a [u8]),
}

/// Cells of a row that was read.
pub(in crate::store) trait Cells {
    fn int(&self, column: usize) -> Result<Option<i64>, StoreError>;
    fn flag(&self, column: usize) -> Result<bool, StoreError>;
    fn text(&self, column: usize) -> Result<Option<String>, StoreError>;
    fn bytes(&self, column: usize) -> Result<Vec<u8>, StoreError>;
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
pub(super) fn read_record(row: &dyn Cells) -> Result<JobRecord, StoreError> {
    let mut job = Job::new(word(row, 19)?, "");
    job.tenant = word(row, 20)?;
    job.ordering_key = word(row, 21)?;
    job.criticality = *of_index(&Criticality::BY_IMPORTANCE, number(row, 22)?)?;
    let spec: Spec = serde_json::from_str(&word(row, 26)?).map_err(|_| unreadable())?;
    let mut request = spec.complete(word(row, 17)?, word(row, 18)?, job);
    request.expire_at = time(row, 5)?;
    let attempts = row.text(16)?.map(|text| serde_json::from_str(&text).map_err(|_| unreadable()));
    Ok(JobRecord {
        request,
        state: *of_index(&JobState::ALL, number(row, 1)?)?,
        created_at: time(row, 23)?.unwrap_or_default(),
        due_at: time(row, 4)?.unwrap_or_default(),
        started_at: time(row, 6)?,
        ended_at: time(row, 7)?,
        attempts: attempts.transpose()?.unwrap_or_default(),
        starts: number(row, 10)?,
        failures: number(row, 11)?,
        crashes: number(row, 12)?,
        cancel_requested: row.flag(13)?,
        payload_bytes: number(row, 25)?,
        output_bytes: number(row, 14)?,
        output_type: word(row, 15)?,
        row: number(row, 0)?,
        place: number(row, 2)?,
        holds_key: row.flag(3)?,
        session: row.int(9)?.map(SessionId),
        digest: row.bytes(24)?.try_into().map_err(|_| unreadable())?,
    })
}

/// Adds kind, state, number of jobs, and when the first of them was due.
pub(super) fn read_depth(
    depths: &mut BTreeMap<String, Depth>,
    row: &dyn Cells,
    now: Timestamp,
) -> Result<(), StoreError> {
    let state = *of_index(&JobState::ALL, number(row, 1)?)?;
    let depth = depths.entry(word(row, 0)?).or_default();
    depth.add(state, number(row, 2)?);
    if state == JobState::Ready {
        depth.oldest_ready = time(row, 3)?.map(|due| now.since(due));
    }
    Ok(())
}

/// A number that is never null.
pub(in crate::store) fn number<T: TryFrom<i64>>(row: &dyn Cells, column: usize) -> Result<T, StoreError> {
    row.int(column)?.and_then(|int| T::try_from(int).ok()).ok_or_else(unreadable)
}

fn time(row: &dyn Cells, column: usize) -> Result<Option<Timestamp>, StoreError> {
    Ok(row.int(column)?.map(Timestamp::from_millis))
}

pub(super) fn word(row: &dyn Cells, column: usize) -> Result<String, StoreError> {
    Ok(row.text(column)?.unwrap_or_default())
}

fn of_index<T>(all: &[T], index: usize) -> Result<&T, StoreError> {
    all.get(index).ok_or_else(unreadable)
}

fn unreadable() -> StoreError {
    StoreError::Database("a row has a value that this program does not know".to_owned())
}
