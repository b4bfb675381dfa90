//! A thread that writes. It takes the operations that wait, runs them in one transaction, and answers them when that is
//! kept: all of them share the cost of one flush.

use std::{mem, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::rows::{Connection, SqlRows};
use crate::store::{JobState, Settle, StoreError, Submission, Submitted, Wakes, engine::Engine};

/// Most operations of one transaction.
const MAX_GROUP: usize = 1024;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// An operation that waits for its commit.
pub(super) enum Operation<C> {
    Submit(Submission, Answer<Vec<Submitted>>),
    Settle(Vec<Settle>, Answer<Vec<Option<JobState>>>),
    Other(Box<dyn Act<C>>),
}

/// Any other operation.
pub(super) trait Act<C>: Send {
    /// Whether it may change jobs that have ordering keys.
    fn needs_keys(&self) -> bool;
    /// Runs it in a transaction, maybe a second time in another one. Fails only if the transaction must not be kept.
    fn run(&mut self, engine: &mut Engine<SqlRows<C>>) -> Result<(), StoreError>;
    /// Answers its caller, once the transaction is kept or given up.
    fn answer(self: Box<Self>, kept: Result<(), StoreError>);
}

/// A function as an operation.
pub(super) struct Call<F, T> {
    pub(super) needs_keys: bool,
    pub(super) function: F,
    pub(super) value: Option<Result<T, StoreError>>,
    pub(super) caller: Answer<T>,
}

impl<C, F, T> Act<C> for Call<F, T>
where
    F: FnMut(&mut Engine<SqlRows<C>>) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn needs_keys(&self) -> bool {
        self.needs_keys
    }

    fn run(&mut self, engine: &mut Engine<SqlRows<C>>) -> Result<(), StoreError> {
        self.value = Some(match (self.function)(engine) {
            // An answer, found before anything was written.
            Err(StoreError::SessionLost) => Err(StoreError::SessionLost),
            value => Ok(value?),
        });
        Ok(())
    }

    fn answer(self: Box<Self>, kept: Result<(), StoreError>) {
        let Self { value, caller, .. } = *self;
        // The caller may have left.
        let _ = caller.send(kept.and_then(|()| value.unwrap_or(Err(StoreError::Closed))));
    }
}

/// What a thread that writes owns.
pub(super) struct Writer<C> {
    pub(super) engine: Engine<SqlRows<C>>,
    pub(super) operations: Arc<Mutex<mpsc::Receiver<Operation<C>>>>,
    pub(super) wakes: Arc<Wakes>,
}

/// Answers to the submissions and the settlements of a group, each in order.
type Answers = (std::vec::IntoIter<Submitted>, std::vec::IntoIter<Option<JobState>>);

impl<C: Connection> Writer<C> {
    /// Runs until no sender is left.
    pub(super) fn run(mut self) {
        while let Some(group) = self.next_group() {
            if let Err((group, _)) = self.run_group(group) {
                // One operation must not fail for another's fault.
                for operation in group {
                    if let Err((group, error)) = self.run_group(vec![operation]) {
                        group.into_iter().for_each(|operation| operation.fail(&error));
                    }
                }
            }
        }
    }

    /// The operations that wait, once there is one. Of several threads, one waits at a time.
    fn next_group(&self) -> Option<Vec<Operation<C>>> {
        let mut operations = self.operations.lock();
        let mut group = vec![operations.blocking_recv()?];
        while group.len() < MAX_GROUP
            && let Ok(next) = operations.try_recv()
        {
            group.push(next);
        }
        Some(group)
    }

    /// Runs a group in one transaction, and answers it if that is kept.
    fn run_group(&mut self, mut group: Vec<Operation<C>>) -> Result<(), (Vec<Operation<C>>, StoreError)> {
        match self.transact(&mut group) {
            Ok((mut submitted, mut settled)) => {
                let changes = mem::take(&mut self.engine.changes);
                self.wakes.announce(&changes);
                self.engine.rows.0.publish(&changes);
                for operation in group {
                    operation.answer(&mut submitted, &mut settled);
                }
                Ok(())
            }
            Err(error) => {
                mem::take(&mut self.engine.changes);
                self.engine.rows.0.roll_back();
                Err((group, error))
            }
        }
    }

    fn transact(&mut self, group: &mut [Operation<C>]) -> Result<Answers, StoreError> {
        let engine = &mut self.engine;
        engine.rows.0.begin()?;
        engine.now = engine.rows.0.now()?;
        if group.iter().any(Operation::needs_keys) {
            engine.rows.0.lock_keys()?;
        }
        let (mut submissions, mut ends) = (Vec::new(), Vec::new());
        let mut others = Vec::new();
        for operation in group {
            match operation {
                Operation::Submit(submission, _) => submissions.push(&*submission),
                Operation::Settle(settles, _) => ends.extend(settles.iter()),
                Operation::Other(act) => others.push(act),
            }
        }
        // What ends makes room for what comes.
        let settled = if ends.is_empty() { Vec::new() } else { engine.settle(&ends)? };
        let submitted = if submissions.is_empty() { Vec::new() } else { engine.submit(&submissions)? };
        others.into_iter().try_for_each(|act| act.run(engine))?;
        engine.rows.0.commit()?;
        Ok((submitted.into_iter(), settled.into_iter()))
    }
}

impl<C> Operation<C> {
    fn needs_keys(&self) -> bool {
        match self {
            Self::Submit(submission, _) => submission.jobs.iter().any(|job| job.is_keyed()),
            Self::Settle(ends, _) => ends.iter().any(|end| end.token.is_keyed),
            Self::Other(act) => act.needs_keys(),
        }
    }

    /// Answers with what is next of each sort. The caller may have left.
    fn answer(
        self,
        submitted: &mut impl Iterator<Item = Submitted>,
        settled: &mut impl Iterator<Item = Option<JobState>>,
    ) {
        match self {
            Self::Submit(submission, caller) => {
                let _ = caller.send(Ok(submitted.take(submission.jobs.len()).collect()));
            }
            Self::Settle(ends, caller) => {
                let _ = caller.send(Ok(settled.take(ends.len()).collect()));
            }
            Self::Other(act) => act.answer(Ok(())),
        }
    }

    fn fail(self, error: &StoreError) {
        match self {
            Self::Submit(_, caller) => {
                let _ = caller.send(Err(error.clone()));
            }
            Self::Settle(_, caller) => {
                let _ = caller.send(Err(error.clone()));
            }
            Self::Other(act) => act.answer(Err(error.clone())),
        }
    }
}
