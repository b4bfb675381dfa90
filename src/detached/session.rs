//! The session of this process at the store: its lease, the jobs that must be cancelled, and the leases that the store
//! made, but whose answer was lost.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;

use super::Inner;
use crate::store::{SessionId, StoreError};

/// Time after which the store takes back the jobs of a session whose lease is not extended.
pub(super) const LEASE: Duration = Duration::from_secs(30);
/// Time between two extensions of the lease.
pub(super) const BEAT: Duration = Duration::from_secs(5);

impl Inner {
    /// The session, opened on first use; `None` if the store fails.
    pub(super) async fn session(&self) -> Option<SessionId> {
        if let Some(known) = self.leases.session() {
            return Some(known);
        }
        let opened = self.note(self.store.open_session(LEASE).await).ok()?;
        self.leases.open(opened);
        Some(opened)
    }

    /// The lease of a session has ended, so other processes may run its jobs. Stops those that run here.
    pub(super) fn lose(&self, lost: SessionId) {
        // Two operations may both report the same lost session.
        let Some(jobs) = self.leases.lose(lost) else { return };
        warn!("the lease of detached jobs has ended; this server stops them, and they run again");
        self.cancel(jobs);
        self.freed.notify_one();
    }

    /// Extends the lease, and stops the jobs that must be cancelled.
    pub(super) async fn extend_lease(&self) {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = beats.tick() => {}
                () = self.store.wakes().cancels() => {}
            }
            let Some(session) = self.leases.session() else { continue };
            match self.note(self.store.extend_lease(session).await) {
                Ok(cancelled) => self.cancel(self.leases.cancel(cancelled)),
                Err(StoreError::SessionLost) => self.lose(session),
                // The next attempt may still be in time.
                Err(_) => {}
            }
        }
    }

    /// Gives back the leases that the store made for operations without an answer.
    ///
    /// This is safe: a submission is noted before the store is asked for its lease, and no claim is in progress while
    /// this runs. So a lease that is not noted belongs to no run. It is given back by its token, which is void if the
    /// lease has ended meanwhile.
    pub(super) async fn give_back_unknown(&self) {
        // Set when an operation failed with an unknown effect.
        if self.doubt_until.lock().is_none_or(|until| until < Instant::now()) {
            return;
        }
        let Some(session) = self.session().await else { return };
        let Ok(leased) = self.note(self.store.leased(session).await) else { return };
        let unknown = self.leases.unknown(leased);
        if unknown.is_empty() {
            return;
        }
        if self.note(self.store.release(session, unknown).await) == Err(StoreError::SessionLost) {
            self.lose(session);
        }
    }
}
