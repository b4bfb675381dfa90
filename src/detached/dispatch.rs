//! Takes jobs from the store, and keeps their ends there.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::Inner;
use crate::store::{BATCH, Claimed, Room, Settle, StoreError};

/// Time between two looks for jobs that nothing announced, such as those of another replica.
const LOOK: Duration = Duration::from_secs(1);
/// Times between two tries of a store that fails.
const TRY_AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

impl Inner {
    /// Takes jobs while there is room for them, and starts each in a task of its own, until it is stopped.
    pub(super) async fn dispatch(self: &Arc<Self>, ends: mpsc::Sender<Settle>) {
        while !self.stop.is_cancelled() {
            let jobs = self.claim().await;
            let is_idle = jobs.is_empty();
            for job in jobs {
                let kind = &job.request.job.kind;
                let pool = self.pools.all().iter().find(|pool| pool.kind(kind).is_some());
                let pool = pool.map_or_else(|| Arc::from(&*job.request.pool), |pool| Arc::clone(pool.name()));
                self.claims.lock().taken(&pool, kind, job.request.job.payload.len());
                self.held.lock().insert(job.token.clone());
                self.start(job, pool, &ends);
            }
            if is_idle {
                let may_have_jobs = tokio::select! {
                    () = self.stop.cancelled() => false,
                    () = self.freed.notified() => false,
                    () = self.store.wakes().ready() => true,
                    () = sleep(LOOK) => true,
                };
                if may_have_jobs {
                    self.claims.lock().look();
                }
            } else {
                // The jobs are polled before the next claim.
                tokio::task::yield_now().await;
            }
        }
    }

    async fn claim(&self) -> Vec<Claimed> {
        let Some(session) = self.session().await else { return Vec::new() };
        let room = self.claims.lock().room(&self.pools, session, Instant::now());
        let Some(room) = room else { return Vec::new() };
        match self.note(self.claim_for(room.clone()).await) {
            Ok(jobs) => {
                self.claims.lock().claimed(&self.pools, &room, &jobs, Instant::now());
                jobs
            }
            Err(StoreError::SessionLost) => {
                self.lose(session);
                Vec::new()
            }
            Err(_) => {
                self.may_have_more.store(true, Relaxed);
                Vec::new()
            }
        }
    }

    /// Claims, once what an earlier claim may have leased without an answer is given back.
    async fn claim_for(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        if self.may_have_more.load(Relaxed) {
            let held = self.held.lock().iter().cloned().collect();
            self.store.release(room.session, held).await?;
            self.may_have_more.store(false, Relaxed);
        }
        self.store.claim(room).await
    }

    /// Runs a job that is held, and for which there is room in its pool.
    pub(super) fn start(self: &Arc<Self>, job: Claimed, pool: Arc<str>, ends: &mpsc::Sender<Settle>) {
        let (this, ends) = (Arc::clone(self), ends.clone());
        let run = async move {
            let end = this.run_one(job, pool).await;
            // It is read until the last sender is gone.
            let _ = ends.send(end).await;
        };
        if let Some(runtime) = self.runtime.get() {
            self.tasks.spawn_on(run, runtime);
        }
    }

    /// Keeps the ends of jobs in batches: as many as came while the last ones were kept. A store that fails is asked
    /// again until it answers.
    pub(super) async fn keep_ends(&self, mut ends: mpsc::Receiver<Settle>) {
        let mut batch = Vec::new();
        while ends.recv_many(&mut batch, BATCH).await > 0 {
            let [mut pause, longest] = TRY_AGAIN;
            while let Err(error) = self.note(self.store.settle(batch.clone()).await) {
                if error == StoreError::Closed {
                    return;
                }
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
            let mut held = self.held.lock();
            for end in batch.drain(..) {
                held.remove(&end.token);
            }
        }
    }
}
