//! Lists, cancels, retries and purges jobs, fires schedules, expires jobs, and takes back jobs of ended leases.

use std::time::Duration;

use tracing::warn;

use super::{Engine, LastTick};
use crate::store::{
    Action, BATCH, Change, Filter, Fired, JobName, JobRecord, JobState, Overlap, SessionId, StoreError, Submission,
    Submitted, Tick, Ticked, Timestamp, Token,
    sql::{Connection, Select},
};

/// How far the clocks of servers that share a store may be apart.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

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

    pub(in crate::store) fn fire(&mut self, tick: &Tick) -> Result<Fired, StoreError> {
        let last = self.rows.schedule(&tick.schedule)?;
        let is_ahead = last.as_ref().is_some_and(|last| last.at > tick.now.plus(CLOCKS_DIFFER));
        if is_ahead {
            let schedule = &tick.schedule;
            warn!(schedule, "the last tick of a schedule is in the future, so a clock was wrong; it ticks anew");
        }
        let is_new = last.as_ref().is_none_or(|last| last.pattern != tick.pattern);
        let is_past = last.as_ref().is_some_and(|last| last.at >= tick.at);
        let must_not_fire = is_new && tick.is_missed;
        if is_past && !is_ahead && !must_not_fire {
            return Ok(Fired::Already);
        }
        let mut run = last.map_or_else(String::new, |last| last.run);
        let must_not_overlap =
            tick.overlap == Overlap::Skip && self.rows.look_at(&[&run])?.iter().any(|record| !record.state.is_ended());
        let fired = if must_not_fire || must_not_overlap {
            Fired::Skipped
        } else {
            run.clone_from(&tick.job.id);
            let submission = Submission { jobs: vec![tick.job.clone()], session: None };
            match self.submit(&[&submission])?[..] {
                [Submitted::Conflict | Submitted::Full(_)] => return Ok(Fired::Refused),
                [Submitted::Existing(_)] => Fired::Already,
                _ => Fired::Created,
            }
        };
        let last = LastTick { at: tick.at, pattern: tick.pattern.clone(), run };
        self.rows.set_schedule(&tick.schedule, &last)?;
        Ok(fired)
    }

    /// Applies the passing of time: leases end, start times come, jobs expire, retention ends.
    pub(in crate::store) fn tick(&mut self, end_leases: bool) -> Result<Ticked, StoreError> {
        let returned = if end_leases && self.rows.ends_leases() { self.end_leases(self.now)? } else { 0 };
        let mut old = self.select(Select::expired(self.now), BATCH)?;
        for record in &mut old {
            record.end(JobState::Expired, self.now);
        }
        let expired = old.len();
        self.save_changed(old)?;
        let promoted = self.promote()?;
        let (past, more_past) = self.rows.removable(Select::purgeable(self.now), BATCH)?;
        let removed = self.remove(&past)?;
        let more = more_past || [expired, promoted].contains(&BATCH);
        Ok(Ticked { promoted, returned, expired, removed, more })
    }

    /// Makes jobs ready whose start time has come.
    fn promote(&mut self) -> Result<usize, StoreError> {
        let due = self.select(Select::due(self.now), BATCH)?;
        let promoted = due.len();
        let mut batch = Vec::new();
        for mut record in due {
            let needs_key = record.needs_key();
            self.enter(&mut record)?;
            // A later job with the same key must find the key held.
            if needs_key { self.save_changed(vec![record])? } else { batch.push(record) }
        }
        self.save_changed(batch)?;
        Ok(promoted)
    }

    /// Takes back the jobs of sessions whose lease has ended at time `at`.
    pub(in crate::store) fn end_leases(&mut self, at: Timestamp) -> Result<usize, StoreError> {
        let mut returned = 0;
        for session in self.rows.remove_sessions(at)? {
            let mut records = self.select(Select::leased(session), usize::MAX)?;
            returned += records.len();
            for record in &mut records {
                record.lose_lease(self.now);
                if record.state == JobState::Failed {
                    let job = &record.request.id;
                    warn!(job, "the lease of a job was lost several times in a row; it is a dead letter");
                }
            }
            self.changes.returned |= !records.is_empty();
            self.save_changed(records)?;
        }
        Ok(returned)
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
