//! What time does to jobs: leases end, starts come, jobs expire, retention ends.

use std::collections::HashSet;

use super::{Engine, Rows, Select};
use crate::store::{BATCH, JobRecord, JobState, SessionId, StoreError, Ticked, Timestamp, Token};

impl<R: Rows> Engine<R> {
    pub(in crate::store) fn tick(&mut self, end_leases: bool) -> Result<Ticked, StoreError> {
        let returned = if end_leases { self.end_leases(self.now)? } else { 0 };
        let mut old = self.rows.select(Select::Expired(self.now), BATCH)?;
        for record in &mut old {
            record.end(JobState::Expired, self.now);
        }
        let expired = old.len();
        self.keep(old)?;
        let promoted = self.promote()?;
        let past = self.rows.select(Select::Purgeable(self.now), BATCH)?;
        self.remove(&past)?;
        let removed = past.len();
        let more = [expired, promoted, removed].contains(&BATCH);
        Ok(Ticked { promoted, returned, expired, removed, more })
    }

    /// Makes jobs ready whose start has come.
    fn promote(&mut self) -> Result<usize, StoreError> {
        let due = self.rows.select(Select::Due(self.now), BATCH)?;
        let promoted = due.len();
        let mut batch = Vec::new();
        for mut record in due {
            let needs_key = record.needs_key();
            self.enter(&mut record)?;
            // The next job of the same key must find it held.
            if needs_key { self.keep(vec![record])? } else { batch.push(record) }
        }
        self.keep(batch)?;
        Ok(promoted)
    }

    /// Takes back the jobs of sessions whose lease has ended at a time.
    pub(in crate::store) fn end_leases(&mut self, at: Timestamp) -> Result<usize, StoreError> {
        let mut returned = 0;
        for session in self.rows.remove_sessions(at)? {
            let records = self.rows.select(Select::Leased(session), usize::MAX)?;
            returned += records.len();
            self.take_back(records)?;
        }
        Ok(returned)
    }

    pub(in crate::store) fn release(&mut self, session: SessionId, held: &[Token]) -> Result<(), StoreError> {
        self.rows.session(session)?.ok_or(StoreError::SessionLost)?;
        let held: HashSet<_> = held.iter().collect();
        let mut records = self.rows.select(Select::Leased(session), usize::MAX)?;
        records.retain(|record| record.token().is_none_or(|token| !held.contains(&token)));
        self.take_back(records)
    }

    fn take_back(&mut self, mut records: Vec<JobRecord>) -> Result<(), StoreError> {
        for record in &mut records {
            record.lose_lease(self.now);
        }
        self.changes.returned |= !records.is_empty();
        self.keep(records)
    }
}
