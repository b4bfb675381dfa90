//! Cancels, retries and removes jobs, and gives back the jobs of a session.

use super::Engine;
use crate::store::{
    Action, Change, Filter, JobName, JobRecord, JobState, SessionId, StoreError, Token, sql::Connection,
};

impl<C: Connection> Engine<C> {
    pub(in crate::store) fn change(&mut self, jobs: &[JobName], action: Action) -> Result<Vec<Change>, StoreError> {
        jobs.iter()
            .map(|job| match self.find(&[&job.id])?.pop().filter(|record| job.is(record)) {
                None => Ok(Change::NotFound),
                Some(record) if action == Action::Cancel => self.cancel(record),
                Some(record) if !record.state.is_ended() => Ok(Change::WrongState(record.state)),
                Some(record) if action == Action::Delete => self.remove(&[record.row]).map(|_| Change::Done),
                Some(record) if record.fault.is_some() => Ok(Change::WrongState(record.state)),
                Some(record) => self.retry(record),
            })
            .collect()
    }

    fn cancel(&mut self, mut record: JobRecord) -> Result<Change, StoreError> {
        let change = record.cancel(self.now);
        self.changes.cancels |= change == Change::Requested;
        match change {
            Change::Done => self.save_changed(vec![record])?,
            Change::Requested => self.save(&[record])?,
            _ => {}
        }
        Ok(change)
    }

    fn retry(&mut self, mut record: JobRecord) -> Result<Change, StoreError> {
        if let Some(full) = self.refusal(&record.request.job.tenant, 0)? {
            return Ok(Change::Full(full));
        }
        self.resize(&record, 1, -(record.output_bytes as i64));
        self.rows.remove_output(&record)?;
        record.revive(self.now);
        self.enter(&mut record)?;
        self.save_changed(vec![record])?;
        Ok(Change::Done)
    }

    /// Removes those of the jobs that have ended, and returns their number.
    pub(in crate::store) fn remove(&mut self, rows: &[i64]) -> Result<usize, StoreError> {
        let removed = self.rows.remove(rows)?;
        for (tenant, bytes) in &removed {
            self.added.add(tenant, 0, -bytes);
        }
        Ok(removed.len())
    }

    pub(in crate::store) fn release(&mut self, session: SessionId, tokens: &[Token]) -> Result<(), StoreError> {
        self.rows.session(session)?.ok_or(StoreError::SessionLost)?;
        let ids: Vec<_> = tokens.iter().map(|token| token.id.as_str()).collect();
        let mut records = self.find(&ids)?;
        records.retain(|record| record.token().is_some_and(|token| tokens.contains(&token)));
        for record in &mut records {
            record.release(self.now);
        }
        self.changes.returned |= !records.is_empty();
        self.save_changed(records)
    }
}

impl Filter {
    /// The states as bits: bit number is position in [`JobState::ALL`].
    pub(in crate::store) fn state_bits(&self) -> i64 {
        let states = if self.states.is_empty() { JobState::ALL.as_slice() } else { &self.states };
        states.iter().fold(0, |bits, state| bits | 1 << *state as u8)
    }
}
