//! What callers, operators and schedules do with jobs.

use std::slice;

use super::{Engine, Rows, Select};
use crate::store::{
    Action, BATCH, Change, Filter, Fired, JobRecord, JobState, Overlap, Page, StoreError, Submission, Submitted, Tick,
};

/// The ended states, as in [`Filter::state_bits`].
const ENDED: i64 = 0b1111_0000;

impl<R: Rows> Engine<R> {
    pub(in crate::store) fn change(&mut self, ids: &[String], action: Action) -> Result<Vec<Change>, StoreError> {
        ids.iter()
            .map(|id| match self.rows.find(&[id])?.pop() {
                None => Ok(Change::NotFound),
                Some(record) if action == Action::Cancel => self.cancel(record),
                Some(record) if !record.state.is_ended() => Ok(Change::WrongState(record.state)),
                Some(record) if action == Action::Retry => self.retry(record),
                Some(record) => self.remove(&[record]).map(|()| Change::Done),
            })
            .collect()
    }

    fn cancel(&mut self, mut record: JobRecord) -> Result<Change, StoreError> {
        let change = record.cancel(self.now);
        self.changes.cancels |= change == Change::Requested;
        match change {
            Change::Done => self.keep(vec![record])?,
            Change::Requested => self.rows.save(&[record])?,
            _ => {}
        }
        Ok(change)
    }

    fn retry(&mut self, mut record: JobRecord) -> Result<Change, StoreError> {
        if !self.bounds.allow(self.rows.size(), 0) {
            return Ok(Change::Full);
        }
        self.rows.resize(1, -(record.output_bytes as i64));
        self.rows.remove_output(&record)?;
        record.revive(self.now);
        self.enter(&mut record)?;
        self.keep(vec![record])?;
        Ok(Change::Done)
    }

    pub(super) fn remove(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        let bytes: u64 = records.iter().map(|record| record.payload_bytes + record.output_bytes).sum();
        self.rows.resize(0, -(bytes as i64));
        self.rows.remove(records)
    }

    pub(in crate::store) fn purge(&mut self, filter: &Filter) -> Result<usize, StoreError> {
        let which = Select::Matching { filter, states: filter.state_bits() & ENDED, before: i64::MAX };
        let records = self.rows.select(which, BATCH)?;
        self.remove(&records)?;
        Ok(records.len())
    }

    pub(in crate::store) fn fire(&mut self, ticks: &[Tick]) -> Result<Vec<Fired>, StoreError> {
        ticks.iter().map(|tick| self.fire_one(tick)).collect()
    }

    fn fire_one(&mut self, tick: &Tick) -> Result<Fired, StoreError> {
        let last = self.rows.schedule(&tick.schedule)?;
        if last.as_ref().is_some_and(|(last, _)| *last >= tick.at) {
            return Ok(Fired::Already);
        }
        if last.is_none() && tick.is_missed {
            self.rows.set_schedule(&tick.schedule, tick.at, "")?;
            return Ok(Fired::Skipped);
        }
        if let (Some((_, run)), Overlap::Skip) = (&last, tick.overlap)
            && self.rows.find(&[run])?.iter().any(|record| !record.state.is_ended())
        {
            self.rows.set_schedule(&tick.schedule, tick.at, run)?;
            return Ok(Fired::Skipped);
        }
        let submission = Submission { jobs: vec![tick.job.clone()], room: None };
        if let [Submitted::Conflict | Submitted::Full] = self.submit(slice::from_ref(&&submission))?[..] {
            return Ok(Fired::Refused);
        }
        self.rows.set_schedule(&tick.schedule, tick.at, &tick.job.id)?;
        Ok(Fired::Created)
    }
}

impl Filter {
    /// The states as bits, at the position of each.
    pub(in crate::store) fn state_bits(&self) -> i64 {
        let states = if self.states.is_empty() { JobState::ALL.as_slice() } else { &self.states };
        states.iter().fold(0, |bits, state| bits | 1 << *state as u8)
    }
}

impl Page {
    /// Row before which the jobs of the page with this token were accepted.
    pub(in crate::store) fn start(token: Option<&str>) -> Result<i64, StoreError> {
        token.map_or(Ok(i64::MAX), |token| token.parse().map_err(|_| StoreError::InvalidPageToken))
    }

    pub(in crate::store) fn new(jobs: Vec<JobRecord>, limit: usize) -> Self {
        let next = jobs.last().filter(|_| jobs.len() == limit).map(|job| job.row.to_string());
        Self { jobs, next }
    }
}
