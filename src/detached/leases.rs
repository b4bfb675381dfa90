//! The leases of this process: what each job does that the store leased to it. Each lease has one entry, from before the
//! store is asked for it until its result is stored.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::LostRun;
use crate::{
    model::{Attempt, JobId, Replay},
    pool::LostWhile,
    store::{SessionId, Token},
};

#[derive(Default)]
pub(super) struct Leases(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// In the order of the ids.
    leases: BTreeMap<Token, Lease>,
    /// What the store last called cancelled. A claim whose answer is on its way may have leased some of them.
    cancelled: BTreeSet<Token>,
    /// Runs that a drain stopped.
    given_back: Vec<LostRun>,
}

struct Lease {
    stage: Stage,
    /// Whether the job must be cancelled. A job that is not in a pool yet is cancelled when it is.
    is_cancelled: bool,
}

/// What the job of a lease does.
pub(super) enum Stage {
    /// A submission asks the store for the lease.
    Asked,
    /// The job is leased, and not in a pool.
    Leased,
    /// The job is in a pool.
    Runs(Run),
    /// The run has ended. Its end is not stored yet; the result is `None` if the job is only given back.
    Ended(Option<LostRun>),
}

/// The run of a job in a pool.
pub(super) struct Run {
    pub(super) job: JobId,
    pub(super) attempt: Arc<Attempt>,
    pub(super) lost: LostRun,
}

impl Leases {
    /// Adds the entry of a submission. Returns `false` if the lease has an entry, so that the submission must not ask
    /// for it.
    pub(super) fn ask(&self, token: &Token) -> bool {
        match self.0.lock().leases.entry(token.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Lease::new(Stage::Asked));
                true
            }
        }
    }

    /// Removes the entry of a submission, unless the store has leased the job by a claim meanwhile.
    pub(super) fn ask_no_more(&self, token: &Token) {
        if let Entry::Occupied(entry) = self.0.lock().leases.entry(token.clone())
            && matches!(entry.get().stage, Stage::Asked)
        {
            entry.remove();
        }
    }

    /// The store has leased the job.
    pub(super) fn lease(&self, token: &Token) {
        let Entries { leases, cancelled, .. } = &mut *self.0.lock();
        let lease = leases.entry(token.clone()).or_insert_with(|| Lease::new(Stage::Leased));
        lease.stage = Stage::Leased;
        lease.is_cancelled |= cancelled.contains(token);
    }

    /// Changes the stage of a leased job. Returns the job of the pool that must be cancelled.
    pub(super) fn set(&self, token: &Token, stage: Stage) -> Option<JobId> {
        let mut entries = self.0.lock();
        let lease = entries.leases.get_mut(token)?;
        lease.stage = stage;
        lease.job().filter(|_| lease.is_cancelled)
    }

    pub(super) fn remove(&self, token: &Token) {
        self.0.lock().leases.remove(token);
    }

    /// Those of `leased` without an entry. They get one, so that no submission asks for the same lease before they are
    /// given back.
    pub(super) fn add_unknown(&self, leased: Vec<Token>) -> Vec<Token> {
        leased.into_iter().filter(|token| self.ask(token)).collect()
    }

    /// Marks all leases that the store calls cancelled, also those that it has leased by an operation without an answer
    /// yet. Returns their jobs that are in a pool.
    pub(super) fn cancel(&self, cancelled: Vec<Token>) -> Vec<JobId> {
        let mut entries = self.0.lock();
        let jobs = cancelled.iter().filter_map(|token| entries.leases.get_mut(token)?.cancel()).collect();
        entries.cancelled = cancelled.into_iter().collect();
        jobs
    }

    /// Marks all leases of a session as cancelled. Returns their jobs that are in a pool.
    pub(super) fn lose(&self, session: SessionId) -> Vec<JobId> {
        let mut entries = self.0.lock();
        let lost = entries.leases.iter_mut().filter(|(token, _)| token.session == session);
        lost.filter_map(|(_, lease)| lease.cancel()).collect()
    }

    /// The run of a job: the number of its attempt, and its events.
    pub(super) fn watch(&self, id: &str) -> Option<(u32, watch::Receiver<Replay>)> {
        let entries = self.0.lock();
        let own = entries.leases.range(Token::first(id)..).take_while(|(token, _)| token.id == id);
        own.filter_map(|(_, lease)| lease.run()).last().map(|run| (run.attempt.token.number, run.attempt.watch()))
    }

    /// A drain has stopped the run, and its job goes back to the store.
    pub(super) fn give_back(&self, run: LostRun) {
        self.0.lock().given_back.push(run);
    }

    /// The runs that a drain stopped.
    pub(super) fn given_back(&self) -> Vec<LostRun> {
        self.0.lock().given_back.clone()
    }

    /// The jobs that run, or whose result is not stored.
    pub(super) fn unfinished(&self) -> Vec<LostRun> {
        let lost = |lease: &Lease| match &lease.stage {
            Stage::Runs(run) => Some(run.lost.clone()),
            Stage::Ended(result) => result.clone().map(|lost| LostRun { lost_while: LostWhile::Storing, ..lost }),
            Stage::Asked | Stage::Leased => None,
        };
        self.0.lock().leases.values().filter_map(lost).collect()
    }
}

impl Lease {
    fn new(stage: Stage) -> Self {
        Self { stage, is_cancelled: false }
    }

    fn run(&self) -> Option<&Run> {
        if let Stage::Runs(run) = &self.stage { Some(run) } else { None }
    }

    fn job(&self) -> Option<JobId> {
        self.run().map(|run| run.job)
    }

    fn cancel(&mut self) -> Option<JobId> {
        self.is_cancelled = true;
        self.job()
    }
}
