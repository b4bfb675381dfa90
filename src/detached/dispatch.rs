//! Connects this process to the store: takes jobs, stores their results, extends the lease, and calls the maintenance.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::warn;

use super::{Inner, Starter};
use crate::store::{BATCH, Claimed, Room, SessionId, Settle, StoreError};

/// Time between two claims without a notification: other replicas' jobs may not be announced.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest and longest time between two attempts if the store fails.
const RETRY_PAUSE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Time after which the store takes back the jobs of a session whose lease is not extended.
const LEASE: Duration = Duration::from_secs(30);
const BEAT: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);
/// Pause between two counts of the jobs, as a multiple of the time that a count takes.
const COUNT_PAUSE: u32 = 50;

impl Inner {
    /// Takes jobs while there is room for them, and starts each in its own task, until it is stopped.
    pub(super) async fn dispatch(self: &Arc<Self>, starter: Starter) {
        while !self.stop.is_cancelled() {
            let jobs = self.claim().await;
            let is_idle = jobs.is_empty();
            for job in jobs {
                let kind = &job.request.job.kind;
                let pool = self.pools.all().iter().find(|pool| pool.kind(kind).is_some());
                let pool = pool.map_or_else(|| Arc::from(&*job.request.pool), |pool| Arc::clone(pool.name()));
                self.held.lock().insert(job.token.clone(), None);
                let reservation = self.claims.lock().take(self, starter.clone(), &pool, &job.request);
                reservation.start(job);
            }
            if is_idle {
                let may_have_jobs = tokio::select! {
                    () = self.stop.cancelled() => false,
                    () = self.freed.notified() => false,
                    () = self.store.wakes().ready() => true,
                    () = sleep(CLAIM_INTERVAL) => true,
                };
                if may_have_jobs {
                    self.claims.lock().may_wait();
                }
            } else {
                // Lets the new jobs' tasks run before the next claim.
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

    /// Claims jobs. If an earlier claim failed, first gives back the jobs that it may have leased.
    async fn claim_for(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        if self.may_have_more.load(Relaxed) {
            let held = self.held.lock().keys().cloned().collect();
            self.store.release(room.session, held).await?;
            self.may_have_more.store(false, Relaxed);
        }
        self.store.claim(room).await
    }

    /// Stores results in batches: a batch has all results that arrived while the previous one was stored. Retries until
    /// the store answers.
    pub(super) async fn keep_ends(&self, mut ends: mpsc::Receiver<Settle>) {
        let mut batch = Vec::new();
        while ends.recv_many(&mut batch, BATCH).await > 0 {
            let [mut pause, longest] = RETRY_PAUSE;
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

    /// The session, opened on first use; `None` if the store fails.
    pub(super) async fn session(&self) -> Option<SessionId> {
        let known = *self.session.lock();
        if known.is_some() {
            return known;
        }
        let opened = self.note(self.store.open_session(LEASE).await).ok();
        *self.session.lock() = opened;
        opened
    }

    /// The lease of a session has ended, so other processes may run its jobs. Stops those that run here.
    pub(super) fn lose(&self, lost: SessionId) {
        // Two operations may both report the same lost session. A session that was opened meanwhile must stay.
        if self.session.lock().take_if(|known| *known == lost).is_none() {
            return;
        }
        warn!("the lease of detached jobs has ended; this server stops them, and they run again");
        self.cancel(|token| token.session == lost);
        self.freed.notify_one();
    }

    /// Extends the lease, and stops the jobs that must be cancelled.
    pub(super) async fn extend_lease(&self) {
        loop {
            tokio::select! {
                () = sleep(BEAT) => {}
                () = self.store.wakes().cancels() => {}
            }
            let known = *self.session.lock();
            let Some(session) = known else { continue };
            match self.note(self.store.extend_lease(session).await) {
                Ok(cancelled) => self.cancel(|token| cancelled.contains(token)),
                Err(StoreError::SessionLost) => self.lose(session),
                // The next attempt may still be in time.
                Err(_) => {}
            }
        }
    }

    /// Calls the maintenance of the store, and counts its jobs.
    pub(super) async fn tick(&self) {
        let (mut count_at, mut reached_since) = (Instant::now(), None);
        loop {
            // After an outage, the owners of jobs also get time to reach the store.
            let end_leases = reached_since.is_some_and(|since: Instant| since.elapsed() >= LEASE);
            let asked = Instant::now();
            let ticked = self.note(self.store.tick(end_leases).await);
            let is_reached = ticked.is_ok() && asked.elapsed() < BEAT;
            reached_since = if is_reached { reached_since.or_else(|| Some(Instant::now())) } else { None };
            self.fire().await;
            let begin = Instant::now();
            if begin >= count_at
                && let Ok(depths) = self.note(self.store.depths().await)
            {
                *self.depths.lock() = depths;
                count_at = Instant::now() + begin.elapsed() * COUNT_PAUSE;
            }
            if !ticked.is_ok_and(|ticked| ticked.more) {
                sleep(TICK).await;
            }
        }
    }
}
