//! Cancels, retries and removes jobs, and gives back the jobs of a session.

use std::collections::HashMap;

use super::Engine;
use crate::store::{Action, Change, JobName, JobRecord, SessionId, StoreError, Token, sql::Connection};

impl<C: Connection> Engine<C> {
    pub(in crate::store) fn change(&mut self, jobs: &[JobName], action: Action) -> Result<Vec<Change>, StoreError> {
        let ids: Vec<_> = jobs.iter().map(|job| job.id.as_str()).collect();
        let found = self.find(&ids)?.into_iter().map(|record| (record.request.id.clone(), record));
        let mut found: HashMap<_, _> = found.collect();
        let (mut changed, mut removed, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            let mut record = found.remove(&job.id);
            let is_keyed = record.as_ref().is_some_and(|record| record.request.is_keyed());
            if is_keyed {
                // The change before may have given it its key, or have taken that.
                record = self.find(&[&job.id])?.pop();
            }
            let Some(mut record) = record.filter(|record| job.is(record)) else {
                changes.push(Change::NotFound);
                continue;
            };
            let change = match action {
                Action::Cancel => record.cancel(self.now),
                Action::CloseGroup => {
                    self.groups.entry(record.row).or_default().closes = true;
                    changes.push(Change::Done);
                    continue;
                }
                _ if !record.state.is_ended() => Change::WrongState(record.state),
                Action::Delete => {
                    removed.push(record.row);
                    Change::Done
                }
                Action::Retry if record.fault.is_some() => Change::WrongState(record.state),
                Action::Retry => self.retry(&mut record)?,
            };
            changes.push(change);
            self.changes.cancels |= change == Change::Requested;
            if action == Action::Delete || !matches!(change, Change::Done | Change::Requested) {
                continue;
            }
            if is_keyed { self.save_changed(vec![record])? } else { changed.push(record) }
        }
        self.remove(&removed)?;
        self.save_changed(changed)?;
        Ok(changes)
    }

    fn retry(&mut self, record: &mut JobRecord) -> Result<Change, StoreError> {
        if let Some(full) = self.refusal(&record.request.job.tenant, 0)? {
            return Ok(Change::Full(full));
        }
        self.resize(record, 1, -(record.output_bytes as i64));
        if record.output_bytes > 0 {
            self.rows.remove_output(record)?;
        }
        record.revive(self.now);
        self.enter(record)?;
        Ok(Change::Done)
    }

    /// Removes those of the jobs that have ended, and returns their number.
    pub(in crate::store) fn remove(&mut self, rows: &[i64]) -> Result<usize, StoreError> {
        let removed = self.rows.remove(rows)?;
        for job in &removed {
            self.added.add(&job.tenant, 0, -job.bytes);
            self.groups.entry(job.row).or_default().removes = true;
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
