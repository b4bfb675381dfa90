//! The first step of a job's life: stores it. If its pool has room and no other job waits, the store also leases it at
//! once, and it starts without waiting.

use std::sync::Arc;

use super::{Inner, claims::Reservation};
use crate::store::{NewJob, SessionId, StoreError, Submission, Submitted};

impl Inner {
    pub(super) async fn submit(self: &Arc<Self>, job: NewJob) -> Result<Submitted, StoreError> {
        let mut lease = LeaseRequest::new(self, &job);
        let session = lease.as_ref().map(|lease| lease.session);
        let answers = self.note(self.store.submit(Submission { jobs: vec![job], session }).await)?;
        let answer = answers.into_iter().next().ok_or(StoreError::Closed)?;
        let Some(lease) = &mut lease else { return Ok(answer) };
        lease.is_answered = true;
        match (answer, lease.reservation.take()) {
            (Submitted::Leased(job), Some(reservation)) => {
                if self.leases.lease(&job.token) {
                    reservation.start(*job);
                }
                Ok(Submitted::Created)
            }
            (answer, _) => Ok(answer),
        }
    }
}

/// A request for the lease of a new job. If it is dropped without an answer of the store, there may be a lease, and the
/// session looks for it.
struct LeaseRequest {
    job: String,
    session: SessionId,
    inner: Arc<Inner>,
    /// Taken when the job starts.
    reservation: Option<Reservation>,
    /// Whether the store has answered.
    is_answered: bool,
}

impl LeaseRequest {
    /// `None` if the job must wait in the store, or if no more jobs may start.
    fn new(inner: &Arc<Inner>, job: &NewJob) -> Option<Self> {
        let session = inner.leases.session()?;
        let starter = inner.starter.lock().clone()?;
        let pool = inner.pools.get(&job.pool).filter(|_| inner.may_take())?;
        let reservation = {
            let mut claims = inner.claims.lock();
            claims.may_start(pool, &job.job.kind).then(|| claims.take(inner, starter, pool.name(), job))?
        };
        if !inner.leases.ask(&job.id) {
            return None;
        }
        let (job, inner) = (job.id.clone(), Arc::clone(inner));
        Some(Self { job, session, inner, reservation: Some(reservation), is_answered: false })
    }
}

impl Drop for LeaseRequest {
    fn drop(&mut self) {
        self.inner.leases.ask_no_more(&self.job);
        if !self.is_answered {
            self.inner.doubt();
        }
    }
}
