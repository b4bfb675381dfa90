//! Creation of jobs, in batches of many callers.

use std::collections::{HashMap, HashSet};

use super::{Engine, Rows};
use crate::store::{JobRecord, JobState, NewJob, SessionId, StoreError, Submission, Submitted};

/// What is known of a batch while its records are made.
#[derive(Default)]
struct Batch<'a> {
    /// Jobs that a session may still lease, by kind.
    room: HashMap<(SessionId, &'a str), usize>,
    ids: HashSet<&'a str>,
    keys: HashSet<(&'a str, &'a str)>,
    records: Vec<JobRecord>,
}

impl<R: Rows> Engine<R> {
    /// Creates the jobs of many callers. The answers are in the order of all jobs.
    pub(in crate::store) fn submit(&mut self, submissions: &[&Submission]) -> Result<Vec<Submitted>, StoreError> {
        let mut batch = Batch { room: self.room(submissions)?, ..Batch::default() };
        let count = submissions.iter().map(|submission| submission.jobs.len()).sum();
        let mut numbers = self.rows.numbers(count)?.into_iter();
        // Only a job that is new may take its key.
        let jobs = || submissions.iter().flat_map(|submission| &submission.jobs);
        let keyed: Vec<_> = jobs().filter(|job| job.is_keyed()).map(|job| job.id.as_str()).collect();
        let old = if keyed.is_empty() { Vec::new() } else { self.rows.find(&keyed)? };
        batch.ids.extend(keyed.iter().filter(|id| old.iter().any(|record| record.request.id == **id)));
        for submission in submissions {
            let session = submission.room.as_ref().map(|room| room.session);
            for job in &submission.jobs {
                let row = numbers.next().ok_or_else(|| StoreError::Database("numbers are missing".to_owned()))?;
                self.prepare(&mut batch, job, session, row)?;
            }
        }
        self.insert(batch.records, jobs())
    }

    /// Jobs of a kind that are ready go first: then there is no room for new ones.
    fn room<'a>(&mut self, submissions: &[&'a Submission]) -> Result<HashMap<(SessionId, &'a str), usize>, StoreError> {
        let mut left = HashMap::new();
        for room in submissions.iter().filter_map(|submission| submission.room.as_ref()) {
            let is_open = self.rows.session(room.session)?.is_some();
            for (kind, &count) in room.kinds.iter().filter(|_| is_open) {
                if count > 0 && self.ready(kind, 1)?.is_empty() {
                    *left.entry((room.session, kind.as_str())).or_default() += count;
                }
            }
        }
        Ok(left)
    }

    /// Makes the record of a job that fits and whose id is not in the batch.
    fn prepare<'a>(
        &mut self,
        batch: &mut Batch<'a>,
        job: &'a NewJob,
        session: Option<SessionId>,
        row: i64,
    ) -> Result<(), StoreError> {
        let bytes = job.job.payload.len() as u64;
        if !self.bounds.allow(self.rows.size(), bytes) || !batch.ids.insert(&job.id) {
            return Ok(());
        }
        let mut record = JobRecord::new(job.clone(), self.now, row);
        if record.due_at <= self.now {
            let key = (job.pool.as_str(), job.job.ordering_key.as_str());
            let is_held = job.is_keyed() && (batch.keys.contains(&key) || self.rows.is_key_held(key.0, key.1)?);
            record.enter(is_held, row);
            batch.keys.extend(record.holds_key.then_some(key));
        }
        let room = session.and_then(|session| batch.room.get_mut(&(session, job.job.kind.as_str())));
        if let (Some(session), Some(room)) = (session, room)
            && *room > 0
            && record.state == JobState::Ready
            && !record.is_expired(self.now)
        {
            *room -= 1;
            record.lease(session, self.now);
        }
        self.rows.resize(1, bytes as i64);
        batch.records.push(record);
        Ok(())
    }

    fn insert<'a>(
        &mut self,
        records: Vec<JobRecord>,
        jobs: impl Iterator<Item = &'a NewJob> + Clone,
    ) -> Result<Vec<Submitted>, StoreError> {
        let added: HashSet<i64> = self.rows.insert(&records)?.into_iter().collect();
        let mut new = HashMap::new();
        for record in records {
            if added.contains(&record.row) {
                self.changes.ready |= record.state == JobState::Ready;
                new.insert(record.request.id.clone(), record);
            } else if record.holds_key {
                // Its id was taken meanwhile, and later jobs count on it. The batch is run again.
                return Err(StoreError::Database("the id of a job was taken at the same time".to_owned()));
            } else {
                self.rows.resize(-1, -(record.payload_bytes as i64));
            }
        }
        let mut answers: Vec<Option<Submitted>> = jobs
            .clone()
            .map(|job| {
                let record = new.remove(&job.id)?;
                Some(record.claimed().map_or(Submitted::Created, |claimed| Submitted::Leased(Box::new(claimed))))
            })
            .collect();
        let others: Vec<_> = jobs.zip(&mut answers).filter(|(_, answer)| answer.is_none()).collect();
        let ids: Vec<_> = others.iter().map(|(job, _)| job.id.as_str()).collect();
        let found = if ids.is_empty() { Vec::new() } else { self.rows.find(&ids)? };
        for (job, answer) in others {
            *answer = Some(match found.iter().find(|record| record.request.id == job.id) {
                Some(old) if old.digest == job.digest() => Submitted::Existing(Box::new(old.clone())),
                Some(_) => Submitted::Conflict,
                None => Submitted::Full,
            });
        }
        Ok(answers.into_iter().flatten().collect())
    }
}
