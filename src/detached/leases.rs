//! The leases of this process: which step of its life each job has reached that the store leased to the session. Each
//! lease has one entry, from the answer of the store until its result is stored.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem,
};

use parking_lot::Mutex;

use super::LostRun;
use crate::{
    handler::Context,
    model::JobId,
    pool::LostWhile,
    store::{SessionId, Token},
};

#[derive(Default)]
pub(super) struct Leases(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// `None` before the first session, and after a lost one.
    session: Option<SessionId>,
    /// Ids of the jobs whose submissions ask the store for a lease.
    asked: HashSet<String>,
    /// In the order of the ids.
    leases: BTreeMap<Token, Lease>,
    /// What the store last called cancelled. An operation whose answer is on its way may have leased some of them.
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
    /// The job is leased, and not in a pool.
    Leased,
    /// The job is in a pool.
    Runs(Run),
    /// The run has ended. Its end is not stored yet; the result is `None` if the job is only given back.
    Ended(Option<LostRun>),
}

/// The run of a job in a pool.
pub(super) struct Run {
    pub(super) cx: Context,
    pub(super) lost: LostRun,
}

impl Leases {
    /// The session, unless it is lost.
    pub(super) fn session(&self) -> Option<SessionId> {
        self.0.lock().session
    }

    /// The store has opened a session.
    pub(super) fn open(&self, session: SessionId) {
        self.0.lock().session = Some(session);
    }

    /// A submission of this job is to ask for a lease. Returns `false` if another one does, so that this one must not.
    pub(super) fn ask(&self, id: &str) -> bool {
        self.0.lock().asked.insert(id.to_owned())
    }

    /// The submission has its answer, or will not get it.
    pub(super) fn ask_no_more(&self, id: &str) {
        self.0.lock().asked.remove(id);
    }

    /// The store has leased the job. Returns `false` if the session was lost meanwhile, so that the store has taken the
    /// job back.
    pub(super) fn lease(&self, token: &Token) -> bool {
        let Entries { session, leases, cancelled, .. } = &mut *self.0.lock();
        let is_held = *session == Some(token.session);
        if is_held {
            leases.insert(token.clone(), Lease { stage: Stage::Leased, is_cancelled: cancelled.contains(token) });
        }
        is_held
    }

    /// Changes the stage of a leased job. Returns the job of the pool that must be cancelled.
    pub(super) fn set(&self, token: &Token, stage: Stage) -> Option<JobId> {
        let mut entries = self.0.lock();
        let lease = entries.leases.get_mut(token)?;
        let last = mem::replace(&mut lease.stage, stage);
        let cancelled = lease.job().filter(|_| lease.is_cancelled);
        // The last clone of a context ends a span, which runs code of a subscriber.
        drop(entries);
        drop(last);
        cancelled
    }

    pub(super) fn remove(&self, token: &Token) {
        self.0.lock().leases.remove(token);
    }

    /// Those of `leased` that have no entry, and that no submission asks for.
    pub(super) fn unknown(&self, leased: Vec<Token>) -> Vec<Token> {
        let Entries { asked, leases, .. } = &*self.0.lock();
        leased.into_iter().filter(|token| !leases.contains_key(token) && !asked.contains(&token.id)).collect()
    }

    /// Marks all leases that the store calls cancelled, also those that it has leased by an operation without an answer
    /// yet. Returns their jobs that are in a pool.
    pub(super) fn cancel(&self, cancelled: Vec<Token>) -> Vec<JobId> {
        let mut entries = self.0.lock();
        let jobs = cancelled.iter().filter_map(|token| entries.leases.get_mut(token)?.cancel()).collect();
        entries.cancelled = cancelled.into_iter().collect();
        jobs
    }

    /// Marks all leases of the lost session as cancelled. Returns their jobs that are in a pool; `None` if it was lost
    /// before.
    pub(super) fn lose(&self, lost: SessionId) -> Option<Vec<JobId>> {
        let Entries { session, leases, .. } = &mut *self.0.lock();
        session.take_if(|known| *known == lost)?;
        let own = leases.iter_mut().filter(|(token, _)| token.session == lost);
        Some(own.filter_map(|(_, lease)| lease.cancel()).collect())
    }

    /// The last run of a job in a pool.
    pub(super) fn run_of(&self, id: &str) -> Option<Context> {
        self.0.lock().of(id).filter_map(Lease::run).last().map(|run| run.cx.clone())
    }

    /// Whether a run of the job has ended, and its end is not stored yet.
    pub(super) fn is_unstored(&self, id: &str) -> bool {
        self.0.lock().of(id).any(|lease| matches!(lease.stage, Stage::Ended(_)))
    }

    /// A drain has stopped the run, and its job goes back to the store. The receipt of the drain lists it.
    pub(super) fn list_in_receipt(&self, run: LostRun) {
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
            Stage::Leased => None,
        };
        self.0.lock().leases.values().filter_map(lost).collect()
    }
}

impl Entries {
    /// The leases of a job.
    fn of(&self, id: &str) -> impl Iterator<Item = &Lease> {
        self.leases.range(Token::first(id)..).take_while(move |(token, _)| token.id == id).map(|(_, lease)| lease)
    }
}

impl Lease {
    fn run(&self) -> Option<&Run> {
        if let Stage::Runs(run) = &self.stage { Some(run) } else { None }
    }

    fn job(&self) -> Option<JobId> {
        self.run().map(|run| run.cx.job())
    }

    fn cancel(&mut self) -> Option<JobId> {
        self.is_cancelled = true;
        self.job()
    }
}
