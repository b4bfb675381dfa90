//! The writer of a store: operations wait for it, and share the transactions.

use std::{collections::BTreeSet, mem, sync::Arc, vec};

use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::error;

use super::Connection;
use crate::{
    model::Durations,
    store::{JobState, NewJob, Settle, StoreError, Submission, Submitted, Wakes, engine::Engine},
};

/// Maximum number of operations of one transaction.
const MAX_GROUP: usize = 1024;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// Runs in a transaction, and if that is rolled back, possibly again in another one. An error rolls the transaction
/// back.
pub(super) type Run<C> = Box<dyn FnMut(&mut Engine<C>) -> Result<(), StoreError> + Send>;

/// When an operation runs within its group, in this order.
pub(super) enum Turn {
    /// It extends a lease. An operation of the same group may end leases.
    Lease,
    Any,
    /// It may change jobs that have any keys, or end leases. The ids are those of its jobs, as far as known.
    Keys(Vec<String>),
}

/// An operation that waits for its commit.
pub(super) enum Operation<C> {
    Submit(Submission, Answer<Vec<Submitted>>),
    Settle(Vec<Settle>, Answer<Vec<Option<JobState>>>),
    Other(Turn, Run<C>, Answer<()>),
}

/// Runs the waiting operations in one transaction, and answers them after the commit. So they share one flush.
pub(super) struct Writer<C> {
    pub(super) engine: Engine<C>,
    pub(super) wakes: Arc<Wakes>,
    pub(super) commits: Arc<Mutex<Durations>>,
}

/// The results of a group, in order.
#[derive(Default)]
struct Answers {
    submitted: vec::IntoIter<Submitted>,
    settled: vec::IntoIter<Option<JobState>>,
}

impl<C: Connection> Writer<C> {
    /// Runs until all senders are gone. Of several threads, only one waits for operations at a time.
    pub(super) fn run(mut self, operations: &Mutex<mpsc::Receiver<Operation<C>>>) {
        let mut group = Vec::new();
        while operations.lock().blocking_recv_many(&mut group, MAX_GROUP) > 0 {
            self.serve(mem::take(&mut group));
        }
    }

    fn serve(&mut self, mut group: Vec<Operation<C>>) {
        match self.run_group(&mut group) {
            // An operation must not fail because of another one, so each is retried alone. Without a database, each
            // retry would wait for it.
            Err(error) if !matches!(error, StoreError::Unavailable(_)) => {
                group.into_iter().for_each(|operation| self.serve_alone(operation));
            }
            answers => answer(group, answers),
        }
    }

    fn serve_alone(&mut self, operation: Operation<C>) {
        if let Operation::Settle(ends, caller) = operation {
            // The caller may have left.
            let _ = caller.send(self.settle(ends));
        } else {
            let mut alone = vec![operation];
            let answers = self.run_group(&mut alone);
            answer(alone, answers);
        }
    }

    /// Stores ends in one transaction. If the database refuses that, divides them, until only the refused end is left:
    /// its job fails.
    fn settle(&mut self, mut ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        let error = match self.settle_together(&ends) {
            Err(error) if !error.is_outage() => error,
            answers => return answers,
        };
        if ends.len() > 1 {
            let rest = ends.split_off(ends.len() / 2);
            let mut states = self.settle(ends)?;
            states.extend(self.settle(rest)?);
            return Ok(states);
        }
        let refused: Vec<_> = ends.iter().map(|end| end.refused(&error)).collect();
        error!(job = refused.first().map(|end| &*end.token.id), cause = %error, "the store refuses a result; the job fails");
        match self.settle_together(&refused) {
            Err(error) if !error.is_outage() => Ok(vec![None; refused.len()]),
            answers => answers,
        }
    }

    fn settle_together(&mut self, ends: &[Settle]) -> Result<Vec<Option<JobState>>, StoreError> {
        let keys = ends.iter().flat_map(|end| end.token.keys.clone()).collect();
        self.transact(Some(keys), |engine| engine.settle(&ends.iter().collect::<Vec<_>>()))
    }

    /// Runs a group in one transaction.
    fn run_group(&mut self, group: &mut [Operation<C>]) -> Result<Answers, StoreError> {
        let keys = group.iter().map(Operation::keys).collect::<Option<Vec<_>>>();
        let keys = keys.map(|keys| keys.into_iter().flatten().collect());
        self.transact(keys, |engine| {
            let (mut submissions, mut ends) = (Vec::new(), Vec::new());
            let (mut others, mut named) = (Vec::new(), Vec::new());
            for operation in &mut *group {
                match operation {
                    Operation::Submit(submission, _) => submissions.push(&*submission),
                    Operation::Settle(settles, _) => ends.extend(settles.iter()),
                    Operation::Other(turn, run, _) => {
                        let turn = &*turn;
                        others.push((turn, run));
                        if let Turn::Keys(ids) = turn {
                            named.extend(ids.iter().map(String::as_str));
                        }
                    }
                }
            }
            if !named.is_empty() || !(ends.is_empty() || submissions.is_empty()) {
                // All at once, in the order of their rows, and before an insertion, which waits for jobs that have its
                // ids: so no two servers wait for each other.
                named.extend(ends.iter().map(|end| end.token.id.as_str()));
                named.extend(submissions.iter().flat_map(|submission| &submission.jobs).map(|job| job.id.as_str()));
                engine.rows.lock_jobs(&named)?;
            }
            // Ended jobs make room for new ones.
            let settled = engine.settle(&ends)?;
            let submitted = if submissions.is_empty() { Vec::new() } else { engine.submit(&submissions)? };
            others.sort_by_key(|(turn, _)| match turn {
                Turn::Lease => 0,
                Turn::Any => 1,
                Turn::Keys(_) => 2,
            });
            others.into_iter().try_for_each(|(_, run)| run(engine))?;
            Ok(Answers { submitted: submitted.into_iter(), settled: settled.into_iter() })
        })
    }

    /// Runs a transaction that locks these keys, or all. If it meets others that are locked, it runs again with all.
    fn transact<T>(
        &mut self,
        keys: Option<BTreeSet<String>>,
        mut run: impl FnMut(&mut Engine<C>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.attempt(keys, &mut run) {
            Err(StoreError::Conflict) => self.attempt(None, &mut run),
            answer => answer,
        }
    }

    fn attempt<T>(
        &mut self,
        keys: Option<BTreeSet<String>>,
        run: impl FnOnce(&mut Engine<C>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (engine, begun) = (&mut self.engine, Instant::now());
        let attempt = || {
            engine.begin(keys)?;
            let answer = run(engine)?;
            Ok((answer, engine.commit()?))
        };
        match attempt() {
            Ok((answer, changes)) => {
                self.commits.lock().add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), 1);
                self.wakes.announce(&changes);
                self.engine.rows.publish(&changes);
                Ok(answer)
            }
            Err(error) => {
                self.engine.roll_back();
                Err(error)
            }
        }
    }
}

impl<C: Connection> Operation<C> {
    /// Names of the keys that it changes; `None` for any.
    fn keys(&self) -> Option<Vec<String>> {
        match self {
            Self::Submit(submission, _) => Some(submission.jobs.iter().flat_map(NewJob::keys).collect()),
            Self::Settle(ends, _) => Some(ends.iter().flat_map(|end| end.token.keys.clone()).collect()),
            Self::Other(Turn::Keys(_), ..) => None,
            Self::Other(..) => Some(Vec::new()),
        }
    }
}

/// Answers the callers of a group: each takes the next result of its sort.
fn answer<C>(group: Vec<Operation<C>>, answers: Result<Answers, StoreError>) {
    let kept = answers.as_ref().map(|_| ()).map_err(StoreError::clone);
    let Answers { mut submitted, mut settled } = answers.unwrap_or_default();
    for operation in group {
        let kept = kept.clone();
        // A caller may have left.
        match operation {
            Operation::Submit(submission, caller) => {
                let _ = caller.send(kept.map(|()| submitted.by_ref().take(submission.jobs.len()).collect()));
            }
            Operation::Settle(ends, caller) => {
                let _ = caller.send(kept.map(|()| settled.by_ref().take(ends.len()).collect()));
            }
            Operation::Other(.., caller) => {
                let _ = caller.send(kept);
            }
        }
    }
}
