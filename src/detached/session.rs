//! The session of this process at the store: its lease, its cancellations, and the passing of time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Inner;
use crate::store::{SessionId, StoreError};

/// Time without a beat after which the store takes the jobs of the session back.
const LEASE: Duration = Duration::from_secs(30);
const BEAT: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);
/// Time between two counts of the jobs, as a multiple of what a count takes.
const COUNT_PAUSE: u32 = 50;

impl Inner {
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

    /// The lease of a session has ended: others may run its jobs. Those that run here are stopped.
    pub(super) fn lose(&self, lost: SessionId) {
        // A beat and a claim may both find it lost: a session that was opened meanwhile goes on.
        if self.session.lock().take_if(|known| *known == lost).is_none() {
            return;
        }
        tracing::warn!("the lease of detached jobs has ended: they are stopped here, and run again");
        self.cancel(|token| token.session == lost);
        self.freed.notify_one();
    }

    /// Extends the lease, and stops the jobs that are to be cancelled.
    pub(super) async fn beat(&self) {
        loop {
            tokio::select! {
                () = sleep(BEAT) => {}
                () = self.store.wakes().cancels() => {}
            }
            let known = *self.session.lock();
            let Some(session) = known else { continue };
            match self.note(self.store.beat(session).await) {
                Ok(cancelled) => self.cancel(|token| cancelled.contains(token)),
                Err(StoreError::SessionLost) => self.lose(session),
                // The next beat may be in time.
                Err(_) => {}
            }
        }
    }

    /// Tells the store that time passes, and counts its jobs.
    pub(super) async fn tick(&self) {
        let (mut count_at, mut reached_since) = (Instant::now(), None);
        loop {
            // After an outage, the owners of jobs get the time to reach the store, too.
            let end_leases = reached_since.is_some_and(|since: Instant| since.elapsed() >= LEASE);
            let asked = Instant::now();
            let ticked = self.note(self.store.tick(end_leases).await);
            let is_reached = ticked.is_ok() && asked.elapsed() < BEAT;
            reached_since = if is_reached { reached_since.or_else(|| Some(Instant::now())) } else { None };
            // One that fails is tried again with the next tick.
            let _ = self.fire().await;
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
