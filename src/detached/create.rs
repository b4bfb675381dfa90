//! Creates jobs. One for which its pool has room, and before which no other waits, is leased as it is created.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::sync::mpsc;

use super::{Detached, Inner};
use crate::store::{Claimed, NewJob, Room, Settle, StoreError, Submission, Submitted, Token};

impl Detached {
    /// Creates a job, and answers when it is durable.
    ///
    /// # Errors
    /// Those of [`JobStore::submit`](crate::store::JobStore::submit).
    pub async fn create(&self, job: NewJob) -> Result<Option<Submitted>, StoreError> {
        let mut reserved = Reserved::new(&self.0, &job);
        let room = reserved.as_ref().map(|reserved| {
            let kinds = [(job.job.kind.clone(), 1)].into();
            Room { session: reserved.token.session, kinds, bytes: usize::MAX }
        });
        let answers = self.store().submit(Submission { jobs: vec![job], room }).await?;
        let mut answer = answers.into_iter().next();
        if let Some(reserved) = &mut reserved {
            reserved.outcome = Outcome::Unused;
            if let Some(Submitted::Leased(claimed)) = answer {
                answer = Some(Submitted::Created);
                reserved.start(*claimed);
            }
        }
        Ok(answer)
    }
}

/// A place in a pool that is kept for a job while that is created.
struct Reserved {
    inner: Arc<Inner>,
    pool: Arc<str>,
    kind: String,
    /// Size of the payload.
    bytes: usize,
    /// That of the job, if it is leased.
    token: Token,
    ends: mpsc::Sender<Settle>,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The store did not answer: there may be a lease.
    Unknown,
    Unused,
    Started,
}

impl Reserved {
    /// `None` if the job has to wait in the store, or if no more jobs are started.
    fn new(inner: &Arc<Inner>, job: &NewJob) -> Option<Self> {
        let session = (*inner.session.lock())?;
        let ends = inner.ends.lock().clone()?;
        let pool = inner.pools.get(&job.pool).filter(|_| !inner.stop.is_cancelled())?;
        let token = job.first_token(session);
        let (kind, bytes) = (job.job.kind.clone(), job.job.payload.len());
        // A job with this id may run here already.
        if inner.held.lock().contains(&token) || !inner.claims.lock().reserve(pool, &kind, bytes) {
            return None;
        }
        inner.held.lock().insert(token.clone());
        let (inner, pool) = (Arc::clone(inner), Arc::clone(pool.name()));
        Some(Self { inner, pool, kind, bytes, token, ends, outcome: Outcome::Unknown })
    }

    fn start(&mut self, claimed: Claimed) {
        self.outcome = Outcome::Started;
        self.inner.start(claimed, Arc::clone(&self.pool), &self.ends);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.outcome == Outcome::Started {
            return;
        }
        self.inner.held.lock().remove(&self.token);
        if self.outcome == Outcome::Unknown {
            self.inner.may_have_more.store(true, Relaxed);
        }
        self.inner.claims.lock().left(&self.pool, &self.kind, self.bytes);
        self.inner.freed.notify_one();
    }
}
