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

/// Runs in a transaction, maybe a second time in another one. Fails only if the transaction must not be kept.
type Run<C> = Box<dyn FnMut(&mut Engine<SqlRows<C>>) -> Result<(), StoreError> + Send>;
/// Answers a caller, once the transaction is kept or given up.
type Finish = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// An operation that waits for its commit.
pub(super) enum Operation<C> {
    Submit(Submission, Answer<Vec<Submitted>>),
    Settle(Vec<Settle>, Answer<Vec<Option<JobState>>>),
    Other {
        /// Whether it may change jobs that have ordering keys.
        needs_keys: bool,
        run: Run<C>,
        finish: Finish,
    },
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
            match self.run_group(group) {
                Ok(()) => {}
                // It would be the same for each, and each would wait for it.
                Err((group, error @ StoreError::Unavailable(_))) => fail(group, error),
                // One operation must not fail for another's fault.
                Err((group, _)) => group.into_iter().for_each(|operation| {
                    if let Err((group, error)) = self.run_group(vec![operation]) {
                        fail(group, error);
                    }
                }),
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
            Ok(answers) => {
                let changes = mem::take(&mut self.engine.changes);
                self.wakes.announce(&changes);
                self.engine.rows.0.publish(&changes);
                finish(group, &Ok(()), answers);
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
        let now = engine.rows.0.now()?;
        engine.start(now)?;
        if group.iter().any(Operation::needs_keys) {
            engine.rows.0.lock_keys()?;
        }
        let (mut submissions, mut ends) = (Vec::new(), Vec::new());
        let mut others = Vec::new();
        for operation in group {
            match operation {
                Operation::Submit(submission, _) => submissions.push(&*submission),
                Operation::Settle(settles, _) => ends.extend(settles.iter()),
                Operation::Other { run, .. } => others.push(run),
            }
        }
        // What ends makes room for what comes.
        let settled = if ends.is_empty() { Vec::new() } else { engine.settle(&ends)? };
        let submitted = if submissions.is_empty() { Vec::new() } else { engine.submit(&submissions)? };
        others.into_iter().try_for_each(|run| run(engine))?;
        engine.rows.0.commit()?;
        Ok((submitted.into_iter(), settled.into_iter()))
    }
}

impl<C> Operation<C> {
    fn needs_keys(&self) -> bool {
        match self {
            Self::Submit(submission, _) => submission.jobs.iter().any(|job| job.is_keyed()),
            Self::Settle(ends, _) => ends.iter().any(|end| end.token.is_keyed),
            Self::Other { needs_keys, .. } => *needs_keys,
        }
    }
}

impl<C: Connection> Operation<C> {
    /// A function, whose answer is kept until its transaction is.
    pub(super) fn of<T: Send + 'static>(
        needs_keys: bool,
        mut function: impl FnMut(&mut Engine<SqlRows<C>>) -> Result<T, StoreError> + Send + 'static,
        caller: Answer<T>,
    ) -> Self {
        let value = Arc::new(Mutex::new(None));
        let kept_value = value.clone();
        let run = move |engine: &mut Engine<SqlRows<C>>| {
            *value.lock() = Some(match function(engine) {
                // An answer, found before anything was written.
                Err(StoreError::SessionLost) => Err(StoreError::SessionLost),
                value => Ok(value?),
            });
            Ok(())
        };
        let finish = move |kept: Result<(), StoreError>| {
            let value = kept.and_then(|()| kept_value.lock().take().unwrap_or(Err(StoreError::Closed)));
            // The caller may have left.
            let _ = caller.send(value);
        };
        Self::Other { needs_keys, run: Box::new(run), finish: Box::new(finish) }
    }
}

fn fail<C>(group: Vec<Operation<C>>, error: StoreError) {
    finish(group, &Err(error), (Vec::new().into_iter(), Vec::new().into_iter()));
}

/// Answers the callers of a group: each takes what is next of its sort.
fn finish<C>(group: Vec<Operation<C>>, kept: &Result<(), StoreError>, (mut submitted, mut settled): Answers) {
    for operation in group {
        let kept = kept.clone();
        match operation {
            Operation::Submit(submission, caller) => {
                let _ = caller.send(kept.map(|()| submitted.by_ref().take(submission.jobs.len()).collect()));
            }
            Operation::Settle(ends, caller) => {
                let _ = caller.send(kept.map(|()| settled.by_ref().take(ends.len()).collect()));
            }
            Operation::Other { finish, .. } => finish(kept),
        }
    }
}
