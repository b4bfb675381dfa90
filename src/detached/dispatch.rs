//! Connects this process to the store: takes jobs, stores their results, extends the lease, and calls the maintenance.

use std::{
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tracing::{info, warn};

use super::{Inner, Starter};
use crate::store::{BATCH, Claimed, SessionId, Settle, StoreError};

/// Time between two claims without a notification: other replicas' jobs may not be announced.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest and longest time between two attempts if the store fails.
const RETRY_PAUSE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Time after which the store takes back the jobs of a session whose lease is not extended.
const LEASE: Duration = Duration::from_secs(30);
const BEAT: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);
/// Time between two lines about removed jobs.
const TELL_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes of output that are stored at a time. The last result may exceed it.
const MAX_SETTLED: usize = 16 << 20;
/// Pause between two counts of the jobs, as a multiple of the time that a count takes.
const COUNT_PAUSE: u32 = 50;

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

    /// Gives back the leases that the store made for operations without an answer.
    ///
    /// A submission is noted before the store is asked for its lease, and a claim ends before this begins. So a job that is
    /// leased and not known afterwards has no run. It is given back by its token, which is void if its lease has ended
    /// meanwhile.
    async fn give_back_unknown(&self) {
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

    /// Stores results in batches: a batch has all results that arrived while the previous one was stored, up to a bound
    /// of bytes. An outage is waited out.
    pub(super) async fn keep_ends(&self, mut ends: mpsc::Receiver<Settle>) {
        let mut waiting = Vec::new();
        while ends.recv_many(&mut waiting, BATCH).await > 0 {
            while !waiting.is_empty() {
                let batch: Vec<_> = waiting.drain(..batch_length(&waiting)).collect();
                if self.keep(&batch).await == Err(StoreError::Closed) {
                    return;
                }
                for end in batch {
                    self.unstored.fetch_sub(end.output_bytes(), Relaxed);
                    self.leases.remove(&end.token);
                }
                self.freed.notify_one();
            }
        }
    }

    async fn keep(&self, batch: &[Settle]) -> Result<(), StoreError> {
        let [mut pause, longest] = RETRY_PAUSE;
        loop {
            let settled = self.note(self.store.settle(batch.to_vec()).await);
            self.is_keeping.store(settled.as_ref().is_err_and(StoreError::is_outage), Relaxed);
            match settled {
                Ok(_) => return Ok(()),
                Err(error) if error.is_outage() && error != StoreError::Closed => {}
                Err(error) => {
                    warn!(count = batch.len(), cause = %error, "results were not stored; their jobs run again");
                    self.doubt();
                    return Err(error);
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

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

    /// Calls the maintenance of the store, and counts its jobs.
    pub(super) async fn tick(&self) {
        let (mut count_at, mut reached_since) = (Instant::now(), None);
        let (mut removed, mut tell_at) = (0, Instant::now());
        loop {
            // After an outage, the owners of jobs also get time to reach the store.
            let end_leases = reached_since.is_some_and(|since: Instant| since.elapsed() >= LEASE);
            let asked = Instant::now();
            let ticked = self.note(self.store.tick(end_leases).await);
            removed += ticked.as_ref().map_or(0, |ticked| ticked.removed);
            if removed > 0 && tell_at <= asked {
                info!(count = mem::take(&mut removed), "jobs were removed at the end of their retention");
                tell_at = asked + TELL_INTERVAL;
            }
            let is_reached = ticked.is_ok() && asked.elapsed() < BEAT;
            reached_since = if is_reached { reached_since.or_else(|| Some(Instant::now())) } else { None };
            self.fire().await;
            self.probe().await;
            let begin = Instant::now();
            if begin >= count_at {
                let counted = self.note(self.store.depths().await);
                if counted.is_ok() {
                    count_at = Instant::now() + begin.elapsed() * COUNT_PAUSE;
                }
                // Old numbers would look like those of a store that answers.
                *self.depths.lock() = counted.ok();
            }
            if !ticked.is_ok_and(|ticked| ticked.more) {
                sleep(TICK).await;
            }
        }
    }
}

/// Number of results of the next batch, at least one.
fn batch_length(ends: &[Settle]) -> usize {
    let mut bytes = 0;
    let fits = |end: &&Settle| {
        let has_room = bytes < MAX_SETTLED;
        bytes += end.output_bytes();
        has_room
    };
    ends.iter().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Job, Output, Reason},
        store::{NewJob, Next},
    };

    #[test]
    fn a_batch_of_results_is_bounded_by_bytes_and_has_at_least_one() {
        let end = |bytes: usize| {
            let token = NewJob::new("a", "p", Job::new("k", "")).token(1, 1, SessionId::default());
            let next = Next::Succeeded(Output::new(vec![0; bytes]));
            Settle { token, worker: String::new(), reason: Reason::Completed, code: 0, message: String::new(), next }
        };
        for (outputs, expected) in [
            (&[MAX_SETTLED + 1, 1][..], 1),
            (&[MAX_SETTLED / 2, MAX_SETTLED / 2, 1], 2),
            (&[1, MAX_SETTLED, 1], 2),
            (&[0, 0, 0], 3),
        ] {
            let ends: Vec<_> = outputs.iter().copied().map(end).collect();
            assert_eq!(batch_length(&ends), expected, "{outputs:?}");
        }
    }
}
