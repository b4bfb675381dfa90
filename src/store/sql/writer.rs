//! The writer of a store: operations wait for it, and share the transactions.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tracing::error;

use super::Connection;
use crate::store::{JobState, Settle, StoreError, Submission, Submitted, Wakes, engine::Engine};

/// Maximum number of operations of one transaction.
const MAX_GROUP: usize = 1024;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// When an operation runs within its group, in this order.
pub(super) enum Turn {
    /// It extends a lease, which must not end before.
    Lease,
    Any,
    /// It may change jobs that have ordering keys, or end leases. The jobs have these ids, as far as its caller knows.
    Keys(Vec<String>),
}

impl Turn {
    fn order(&self) -> usize {
        match self {
            Self::Lease => 0,
            Self::Any => 1,
            Self::Keys(_) => 2,
        }
    }
}

/// An operation that waits for its commit.
pub(super) enum Operation<C> {
    Submit(Submission, Answer<Vec<Submitted>>),
    Settle(Vec<Settle>, Answer<Vec<Option<JobState>>>),
    Other(Turn, Box<dyn Call<C>>),
}

/// An operation of which each call is on its own.
pub(super) trait Call<C>: Send {
    /// Runs in a transaction, and possibly a second time in another one. An error means that the transaction must be
    /// rolled back.
    fn run(&mut self, engine: &mut Engine<C>) -> Result<(), StoreError>;
    /// Answers the caller, once the transaction is committed or rolled back.
    fn answer(self: Box<Self>, kept: Result<(), StoreError>);
}

/// A call of a function.
pub(super) struct Asked<F, T> {
    pub(super) function: F,
    pub(super) value: Option<T>,
    pub(super) caller: Answer<T>,
}

impl<C, T: Send, F: FnMut(&mut Engine<C>) -> Result<T, StoreError> + Send> Call<C> for Asked<F, T> {
    fn run(&mut self, engine: &mut Engine<C>) -> Result<(), StoreError> {
        self.value = Some((self.function)(engine)?);
        Ok(())
    }

    fn answer(self: Box<Self>, kept: Result<(), StoreError>) {
        let Self { value, caller, .. } = *self;
        // The caller may have left.
        let _ = caller.send(kept.and_then(|()| value.ok_or(StoreError::Closed)));
    }
}

/// Runs the waiting operations in one transaction, and answers them after the commit, so that all of them share one
/// flush.
pub(super) struct Writer<C> {
    pub(super) engine: Engine<C>,
    pub(super) wakes: Arc<Wakes>,
}

/// Results of the submissions and of the settlements of a group, each in order.
type Answers = (std::vec::IntoIter<Submitted>, std::vec::IntoIter<Option<JobState>>);

impl<C: Connection> Writer<C> {
    /// Runs until all senders are gone. Of several threads, only one waits for operations at a time.
    pub(super) fn run(mut self, operations: &Mutex<mpsc::Receiver<Operation<C>>>) {
        let next_group = || {
            let mut operations = operations.lock();
            let mut group = vec![operations.blocking_recv()?];
            while group.len() < MAX_GROUP
                && let Ok(next) = operations.try_recv()
            {
                group.push(next);
            }
            Some(group)
        };
        while let Some(group) = next_group() {
            self.serve(group);
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
        let needs_keys = ends.iter().any(|end| end.token.is_keyed);
        self.transact(needs_keys, |engine| engine.settle(&ends.iter().collect::<Vec<_>>()))
    }

    /// Runs a group in one transaction.
    fn run_group(&mut self, group: &mut [Operation<C>]) -> Result<Answers, StoreError> {
        let needs_keys = group.iter().any(Operation::needs_keys);
        self.transact(needs_keys, |engine| {
            let (mut submissions, mut ends) = (Vec::new(), Vec::new());
            let (mut others, mut named) = (Vec::new(), Vec::new());
            for operation in group {
                match operation {
                    Operation::Submit(submission, _) => submissions.push(&*submission),
                    Operation::Settle(settles, _) => ends.extend(settles.iter()),
                    Operation::Other(turn, call) => {
                        others.push((turn.order(), call));
                        if let Turn::Keys(ids) = turn {
                            named.extend(ids.iter().map(String::as_str));
                        }
                    }
                }
            }
            if !named.is_empty() {
                // All at once, in the order of their rows, and before an insertion: so no two servers wait for each
                // other.
                named.extend(ends.iter().map(|end| end.token.id.as_str()));
                engine.rows.lock_jobs(&named)?;
            }
            // Ended jobs make room for new ones.
            let settled = if ends.is_empty() { Vec::new() } else { engine.settle(&ends)? };
            let submitted = if submissions.is_empty() { Vec::new() } else { engine.submit(&submissions)? };
            others.sort_by_key(|(order, _)| *order);
            others.into_iter().try_for_each(|(_, call)| call.run(engine))?;
            Ok((submitted.into_iter(), settled.into_iter()))
        })
    }

    fn transact<T>(
        &mut self,
        needs_keys: bool,
        run: impl FnOnce(&mut Engine<C>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let engine = &mut self.engine;
        let attempt = || {
            engine.begin()?;
            if needs_keys {
                engine.rows.lock_keys()?;
            }
            let answer = run(engine)?;
            Ok((answer, engine.commit()?))
        };
        match attempt() {
            Ok((answer, changes)) => {
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
    fn needs_keys(&self) -> bool {
        match self {
            Self::Submit(submission, _) => submission.jobs.iter().any(|job| job.is_keyed()),
            Self::Settle(ends, _) => ends.iter().any(|end| end.token.is_keyed),
            Self::Other(turn, _) => matches!(turn, Turn::Keys(_)),
        }
    }
}

/// Answers the callers of a group: each takes the next result of its sort.
fn answer<C>(group: Vec<Operation<C>>, answers: Result<Answers, StoreError>) {
    let (kept, (mut submitted, mut settled)) = match answers {
        Ok(answers) => (Ok(()), answers),
        Err(error) => (Err(error), Answers::default()),
    };
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
            Operation::Other(_, call) => call.answer(kept),
        }
    }
}
