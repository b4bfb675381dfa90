//! Creates jobs, in batches of many callers.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use super::Engine;
use crate::store::{
    JobRecord, JobState, NewJob, SessionId, StoreError, Submission, Submitted,
    job::owned,
    sql::{Connection, open_group},
};

/// State of a batch while its records are prepared.
#[derive(Default)]
struct Batch<'a> {
    /// Whether each session still has its lease.
    sessions: HashMap<SessionId, bool>,
    /// Whether a kind has no ready job before the new ones.
    free_kinds: HashMap<&'a str, bool>,
    ids: HashSet<&'a str>,
    /// The ordering keys that are held, each with its tenant.
    held: HashSet<(String, String)>,
    /// Jobs that may still become ready, by kind and limit key.
    slots: HashMap<(String, String), usize>,
    /// The groups that jobs name, with their row, their tenant, and whether they are closed.
    groups: HashMap<&'a str, Option<(i64, String, bool)>>,
    records: Vec<JobRecord>,
    /// One for each job, in order.
    plans: Vec<Plan>,
}

impl Batch<'_> {
    /// Gives a new job its keys, as far as they are free. Returns whether it has all.
    fn take_keys(&mut self, record: &mut JobRecord) -> bool {
        let is_held = record.request.ordering_key().is_some_and(|key| !self.held.insert(owned(key)));
        if !record.take_key(is_held) {
            return false;
        }
        let free = record.request.limit_key().and_then(|key| self.slots.get_mut(&owned(key)));
        free.is_none_or(|free| {
            let is_free = *free > 0;
            *free = free.saturating_sub(1);
            is_free
        })
    }
}

/// What is to be done with a job.
enum Plan {
    /// Insert its record, which has this row.
    Insert(i64),
    /// Find the job that has its id.
    Find,
    /// Refuse it, because it does not fit, or cannot join its group.
    Refuse(Submitted),
}

impl<C: Connection> Engine<C> {
    /// Creates the jobs of many callers. Returns one result per job, in order.
    pub(in crate::store) fn submit(&mut self, submissions: &[&Submission]) -> Result<Vec<Submitted>, StoreError> {
        let mut batch = Batch::default();
        let jobs = || submissions.iter().flat_map(|submission| &submission.jobs);
        // Only new jobs may take ordering keys.
        let keyed: Vec<_> = jobs().filter(|job| job.is_keyed()).collect();
        let ids: Vec<_> = keyed.iter().map(|job| job.id.as_str()).collect();
        let old = self.rows.look_at(&ids)?;
        batch.ids.extend(ids.iter().filter(|id| old.iter().any(|record| record.request.id == **id)));
        batch.held.extend(self.rows.held_keys(&keyed.iter().filter_map(|job| job.ordering_key()).collect())?);
        let free = self.free_slots(&keyed.iter().filter_map(|job| job.limit_key()).map(owned).collect())?;
        batch.slots.extend(free.into_iter().map(|(slots, free)| ((slots.kind, slots.key), free)));
        let mut numbers = self.rows.numbers(jobs().count())?.into_iter();
        for submission in submissions {
            for (job, row) in submission.jobs.iter().zip(&mut numbers) {
                let plan = self.plan(&mut batch, job, row, submission.session)?;
                batch.plans.push(plan);
            }
        }
        self.insert(batch, jobs())
    }

    /// Whether a session may lease a new job of a kind: not if others are ready, or may run elsewhere under a limit.
    fn may_lease<'a>(&mut self, batch: &mut Batch<'a>, session: SessionId, kind: &'a str) -> Result<bool, StoreError> {
        if let Entry::Vacant(entry) = batch.sessions.entry(session) {
            entry.insert(self.rows.session(session)?.is_some());
        }
        if self.limit_of_all(kind).is_some() || self.rate_of_all(kind).is_some() {
            return Ok(false);
        }
        if let Entry::Vacant(entry) = batch.free_kinds.entry(kind) {
            entry.insert(self.ready(session, kind, 1)?.is_empty());
        }
        Ok(batch.sessions[&session] && batch.free_kinds[kind])
    }

    /// Row of the group that a job joins, or why it cannot. Another server may close the group until the commit.
    fn group_of<'a>(
        &mut self,
        batch: &mut Batch<'a>,
        job: &'a NewJob,
    ) -> Result<Result<Option<i64>, Submitted>, StoreError> {
        if job.group.is_empty() {
            return Ok(Ok(None));
        }
        if let Entry::Vacant(entry) = batch.groups.entry(&job.group) {
            entry.insert(open_group(&mut self.rows, &job.group)?);
        }
        Ok(match &batch.groups[&*job.group] {
            Some((row, tenant, false)) if *tenant == job.job.tenant => Ok(Some(*row)),
            Some((_, tenant, true)) if *tenant == job.job.tenant => Err(Submitted::GroupClosed),
            _ => Err(Submitted::NoGroup),
        })
    }

    /// Plans what to do with a job. Its record joins the batch if the job fits, and its id is not there yet.
    fn plan<'a>(
        &mut self,
        batch: &mut Batch<'a>,
        job: &'a NewJob,
        row: i64,
        session: Option<SessionId>,
    ) -> Result<Plan, StoreError> {
        let bytes = job.job.payload.len() as u64;
        if let Some(full) = self.refusal(&job.job.tenant, bytes)? {
            return Ok(Plan::Refuse(Submitted::Full(full)));
        }
        let member_of = match self.group_of(batch, job)? {
            Ok(row) => row,
            Err(refusal) => return Ok(Plan::Refuse(refusal)),
        };
        if !batch.ids.insert(&job.id) {
            return Ok(Plan::Find);
        }
        let mut record = JobRecord { member_of, ..JobRecord::new(job.clone(), self.now, row) };
        if record.due_at <= self.now {
            let may_run = batch.take_keys(&mut record);
            record.enter(may_run, row);
        }
        self.resize(&record, 1, bytes as i64);
        if record.state == JobState::Ready {
            if let Some(session) = session
                && !record.is_expired(self.now)
                && self.may_lease(batch, session, &job.job.kind)?
            {
                record.lease(session, self.now);
                self.take_token(&record);
            } else {
                record.place = self.place(&record)?;
            }
        }
        batch.records.push(record);
        Ok(Plan::Insert(row))
    }

    fn insert<'a>(
        &mut self,
        Batch { records, plans, groups, .. }: Batch<'a>,
        jobs: impl Iterator<Item = &'a NewJob>,
    ) -> Result<Vec<Submitted>, StoreError> {
        let added: HashSet<i64> = self.rows.insert(&records)?.into_iter().collect();
        let mut new = HashMap::new();
        for record in records {
            if added.contains(&record.row) {
                self.changes.ready |= record.state == JobState::Ready;
                let row = record.row;
                new.insert(row, record.claimed().map_or(Submitted::Created, |job| Submitted::Leased(Box::new(job))));
            } else if record.request.is_keyed() {
                // Another transaction took the id, and later jobs of the batch depend on this one. The batch runs
                // again.
                return Err(StoreError::Conflict);
            } else {
                self.resize(&record, -1, -(record.payload_bytes as i64));
            }
        }
        let planned: Vec<_> = jobs.zip(plans).collect();
        let others = planned.iter().filter(|(_, plan)| !matches!(plan, Plan::Insert(row) if added.contains(row)));
        let ids: Vec<_> = others.map(|(job, _)| job.id.as_str()).collect();
        let found = self.rows.look_at(&ids)?;
        let joined = |old: &JobRecord, group: &str| match groups.get(group) {
            Some(Some((row, ..))) => old.member_of == Some(*row),
            _ => true,
        };
        let answers = planned.into_iter().map(|(job, plan)| {
            if let Plan::Insert(row) = plan
                && let Some(answer) = new.remove(&row)
            {
                return Ok(answer);
            }
            let old = found.iter().find(|record| record.request.id == job.id);
            match (old, plan) {
                (Some(old), _) if old.digest == job.digest() && joined(old, &job.group) => {
                    Ok(Submitted::Existing(Box::new(old.clone())))
                }
                // A later job of the batch with this id fitted.
                (Some(old), Plan::Refuse(why)) if added.contains(&old.row) => Ok(why),
                (Some(_), _) => Ok(Submitted::Conflict),
                (None, Plan::Refuse(why)) => Ok(why),
                // Another transaction had the id, and has removed its job. The batch runs again.
                (None, _) => Err(StoreError::Conflict),
            }
        });
        answers.collect()
    }
}
