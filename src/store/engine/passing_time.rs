//! The passing of time: schedules fire, start times come, jobs expire, retention ends, and so do the leases of lost
//! servers.

use std::time::Duration;

use tracing::warn;

use super::{Engine, LastTick};
use crate::store::{
    BATCH, Fired, JobRecord, JobState, Overlap, StoreError, Submission, Submitted, Tick, Ticked, Timestamp,
    sql::{Connection, Select},
};

/// How far the clocks of servers that share a store may be apart.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

impl<C: Connection> Engine<C> {
    /// Applies the passing of time, a batch of each sort.
    pub(in crate::store) fn tick(&mut self, end_leases: bool) -> Result<Ticked, StoreError> {
        let returned = if end_leases && self.rows.ends_leases() { self.end_leases(self.now)? } else { 0 };
        let mut old = self.select(Select::expired(self.now), BATCH)?;
        for record in &mut old {
            record.end(JobState::Expired, self.now);
        }
        let expired = old.len();
        self.save_changed(old)?;
        let promoted = self.promote()?;
        self.shared.ticked(self.now);
        let more_keys = self.search()?;
        self.look_at_keys()?;
        let (past, more_past) = self.rows.removable(Select::purgeable(self.now), BATCH)?;
        let removed = self.remove(&past)?;
        self.finds_due = true;
        let more = more_past || more_keys || [expired, promoted].contains(&BATCH);
        Ok(Ticked { promoted, returned, expired, removed, more })
    }

    /// Makes jobs ready whose start time has come.
    fn promote(&mut self) -> Result<usize, StoreError> {
        let due = self.select(Select::due(self.now), BATCH)?;
        let promoted = due.len();
        self.start(due)?;
        Ok(promoted)
    }

    /// Makes jobs ready that are due, as far as their keys let them.
    pub(super) fn start(&mut self, due: Vec<JobRecord>) -> Result<(), StoreError> {
        let mut batch = Vec::new();
        for mut record in due {
            let needs_key = record.request.is_keyed();
            self.enter(&mut record)?;
            // A later job with the same key must find the key held, or one place less.
            if needs_key { self.save_changed(vec![record])? } else { batch.push(record) }
        }
        self.save_changed(batch)
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
}
