//! The second step of a job's life, beside `dispatch`: counts the capacity of each pool for detached jobs, and reserves
//! it for those that were taken from the store.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tokio::time::Instant;

use super::{Inner, Starter};
use crate::{
    pool::{Pool, Pools},
    store::{Claimed, NewJob, Room, SessionId},
};

/// Maximum number of jobs that are taken for a pool beyond its free workers.
const MAX_AHEAD: usize = 1024;
/// Maximum payload bytes of the taken jobs of a kind that have not begun, and of one claim. The last job may exceed it.
const MAX_BYTES: usize = 64 << 20;

/// Jobs that were taken from the store, by pool.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pools: HashMap<Arc<str>, PoolClaims>,
    /// Kinds that a pool refused, and the time until which no jobs of them are taken.
    refused: HashMap<String, Instant>,
}

#[derive(Debug, Default)]
struct PoolClaims {
    /// Jobs that have not begun, by kind. A kind at its limit must not use up the room of others.
    waiting: HashMap<String, Waiting>,
    /// Jobs that ended since the store last answered a claim.
    ended: usize,
    /// When the last claim was sent.
    asked_at: Option<Instant>,
    /// When the last answer came; before the first one, when the first claim was sent.
    answered_at: Option<Instant>,
    /// Number of jobs that may be taken beyond the free workers.
    ahead: usize,
    /// Kinds of which no job is known to wait in the store. The store is not asked for them.
    clear: HashSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: usize,
    /// Bytes of their payloads.
    bytes: usize,
}

impl PoolClaims {
    /// The pool's room for jobs of one kind, if `kinds` kinds share it.
    fn room(&self, pool: &Pool, kind: &str, kinds: usize) -> usize {
        let share = (pool.free_workers() + self.ahead.max(1)).div_ceil(kinds);
        match self.waiting.get(kind) {
            Some(waiting) if waiting.bytes >= MAX_BYTES => 0,
            Some(waiting) => share.saturating_sub(waiting.jobs),
            None => share,
        }
    }
}

impl Claims {
    /// The pools' room for each kind. Kinds of one pool that may have waiting jobs share its room. `None` if there is
    /// room for no waiting job.
    pub(super) fn room(&mut self, pools: &Pools, session: SessionId, now: Instant) -> Option<Room> {
        self.refused.retain(|_, until| *until > now);
        let mut kinds = BTreeMap::new();
        for pool in pools.all().iter().filter(|pool| pool.is_serving()) {
            let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
            let may_wait = |kind: &str| !claims.clear.contains(kind) && !self.refused.contains_key(kind);
            let waiting: Vec<_> = pool.kind_names().filter(|(_, kind)| may_wait(kind)).collect();
            let room = |kind: &str| claims.room(pool, kind, waiting.len());
            let rooms = waiting.iter().map(|(_, kind)| (kind.to_string(), room(kind))).filter(|(_, room)| *room > 0);
            let rooms: Vec<_> = rooms.collect();
            if !rooms.is_empty() {
                claims.asked_at = Some(now);
                claims.answered_at.get_or_insert(now);
                kinds.extend(rooms);
            }
        }
        (!kinds.is_empty()).then_some(Room { session, kinds, bytes: MAX_BYTES })
    }

    /// Whether a new job of a kind may start at once: its pool has room, and no other job goes first.
    pub(super) fn may_start(&mut self, pool: &Pool, kind: &str) -> bool {
        let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
        let is_first = pool.kind_names().all(|(_, kind)| claims.clear.contains(&**kind));
        let has_room = claims.room(pool, kind, 1) > 0 && pool.is_serving() && !self.refused.contains_key(kind);
        if !(is_first && has_room) {
            claims.clear.remove(kind);
        }
        is_first && has_room
    }

    /// The store has answered a claim. Short jobs need more look-ahead: twice as many jobs as end during a claim.
    pub(super) fn claimed(&mut self, pools: &Pools, room: &Room, jobs: &[Claimed], now: Instant) {
        let is_cut = jobs.iter().map(|job| job.request.job.payload.len()).sum::<usize>() >= room.bytes;
        let given = |kind: &str| jobs.iter().filter(|job| job.request.job.kind == kind).count();
        for pool in
            pools.all().iter().filter(|pool| pool.kind_names().any(|(_, kind)| room.kinds.contains_key(&**kind)))
        {
            let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
            for (_, kind) in pool.kind_names() {
                if !is_cut && room.kinds.get(&**kind).is_some_and(|asked| given(kind) < *asked) {
                    claims.clear.insert(Arc::clone(kind));
                }
            }
            let [asked, before] = [claims.asked_at, claims.answered_at].map(|at| at.unwrap_or(now));
            let part = (now - asked).as_secs_f64() / (now - before).as_secs_f64().max(f64::MIN_POSITIVE);
            let ends = (mem::take(&mut claims.ended) as f64 * part).round() as usize;
            claims.answered_at = Some(now);
            claims.ahead = (2 * ends).max(claims.ahead / 2).clamp(1, MAX_AHEAD);
        }
    }

    /// Jobs may wait in the store.
    pub(super) fn may_wait(&mut self) {
        self.pools.values_mut().for_each(|claims| claims.clear.clear());
    }

    /// Reserves capacity for a job, even if there is none.
    pub(super) fn take(&mut self, inner: &Arc<Inner>, starter: Starter, pool: &Arc<str>, job: &NewJob) -> Reservation {
        let (kind, bytes) = (job.job.kind.clone(), job.job.payload.len());
        let waiting = &mut self.pools.entry(Arc::clone(pool)).or_default().waiting;
        let waiting = waiting.entry(kind.clone()).or_default();
        waiting.jobs += 1;
        waiting.bytes += bytes;
        Reservation { inner: Arc::clone(inner), starter, pool: Arc::clone(pool), kind, bytes, has_begun: false }
    }

    /// The job of a reservation started or was dropped.
    fn left(&mut self, reservation: &Reservation) {
        let waiting =
            self.pools.get_mut(&reservation.pool).and_then(|claims| claims.waiting.get_mut(&reservation.kind));
        if let Some(waiting) = waiting {
            waiting.jobs -= 1;
            waiting.bytes -= reservation.bytes;
        }
    }

    /// Until when no jobs of a kind are taken, because its pool refused one.
    pub(super) fn refused_until(&self, kind: &str) -> Option<Instant> {
        self.refused.get(kind).copied().filter(|until| *until > Instant::now())
    }

    /// Takes no jobs of a kind until `until`.
    pub(super) fn refuse(&mut self, kind: &str, until: Instant) {
        self.refused.insert(kind.to_owned(), until);
        self.may_wait();
    }
}

/// The capacity that a claimed job takes from its pool, counted until it is dropped.
pub(super) struct Reservation {
    pub(super) inner: Arc<Inner>,
    starter: Starter,
    pub(super) pool: Arc<str>,
    kind: String,
    /// Bytes of the payload.
    bytes: usize,
    has_begun: bool,
}

impl Reservation {
    /// Runs the job in its own task, and sends its result to be stored.
    pub(super) fn start(self, job: Claimed) {
        let (inner, tasks) = (Arc::clone(&self.inner), self.inner.tasks.clone());
        let Starter { runtime, ends } = self.starter.clone();
        let run = async move {
            let end = self.run(job).await;
            inner.unstored.fetch_add(end.output_bytes(), Relaxed);
            // The receiver reads until the last sender is gone.
            let _ = ends.send(end).await;
        };
        tasks.spawn_on(run, &runtime);
    }

    /// The job no longer waits.
    pub(super) fn begin(&mut self) {
        if !mem::replace(&mut self.has_begun, true) {
            self.inner.claims.lock().left(self);
            self.inner.freed.notify_one();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut claims = self.inner.claims.lock();
        if self.has_begun {
            claims.pools.entry(Arc::clone(&self.pool)).or_default().ended += 1;
        } else {
            claims.left(self);
        }
        drop(claims);
        self.inner.freed.notify_one();
    }
}
