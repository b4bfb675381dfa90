//! The second step of a job's life: takes jobs from the store while there is room for them, and starts them.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{Inner, Starter};
use crate::store::{Claimed, StoreError};

/// Time between two claims without a notification: other replicas' jobs may not be announced.
pub(super) const CLAIM_INTERVAL: Duration = Duration::from_secs(1);

impl Inner {
    /// Takes jobs while there is room for them, and starts each in its own task, until it is stopped.
    pub(super) async fn dispatch(self: &Arc<Self>, starter: Starter) {
        // It has its own deadlines: other events, however many, do not postpone a look.
        let mut looks = interval(CLAIM_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_cancelled() {
            let jobs = self.claim().await;
            let is_idle = jobs.is_empty();
            for job in jobs {
                let kind = &job.request.job.kind;
                let pool = self.pools.all().iter().find(|pool| pool.kind(kind).is_some());
                let pool = pool.map_or_else(|| Arc::from(&*job.request.pool), |pool| Arc::clone(pool.name()));
                if !self.leases.lease(&job.token) {
                    continue;
                }
                let reservation = self.claims.lock().take(self, starter.clone(), &pool, &job.request);
                reservation.start(job);
            }
            let may_have_jobs = tokio::select! {
                biased;
                () = self.stop.cancelled() => false,
                _ = looks.tick() => {
                    self.give_back_unknown().await;
                    self.look_at_suspended().await;
                    true
                }
                () = self.store.wakes().ready(), if is_idle => true,
                () = self.freed.notified(), if is_idle => false,
                // Lets the new jobs' tasks run before the next claim.
                () = yield_now(), if !is_idle => false,
            };
            if may_have_jobs {
                self.claims.lock().may_wait();
            }
        }
    }

    async fn claim(&self) -> Vec<Claimed> {
        let Some(session) = self.session().await.filter(|_| self.may_take()) else { return Vec::new() };
        let room = self.claims.lock().room(&self.pools, session, Instant::now());
        let Some(room) = room else { return Vec::new() };
        match self.note(self.store.claim(room.clone()).await) {
            Ok(jobs) => {
                self.claims.lock().claimed(&self.pools, &room, &jobs, Instant::now());
                return jobs;
            }
            Err(StoreError::SessionLost) => self.lose(session),
            Err(_) => self.doubt(),
        }
        Vec::new()
    }
}
