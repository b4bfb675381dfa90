//! What each pool has room for.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use tokio::time::Instant;

use crate::{
    pool::{Pool, Pools},
    store::{Claimed, Room, SessionId},
};

/// Most jobs that are taken for a pool beyond its free workers.
const MAX_AHEAD: usize = 1024;
/// Payloads of the jobs of a kind that are taken and have not begun, and of one claim; the last job may exceed it.
const MAX_BYTES: usize = 64 << 20;

/// Jobs that were taken from the store, by pool.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pools: HashMap<Arc<str>, PoolClaims>,
    /// Kinds that a pool refused, and until when none are taken.
    refused: HashMap<String, Instant>,
}

#[derive(Debug, Default)]
struct PoolClaims {
    /// Jobs that have not begun, by kind: those of a kind that is at its limit must not take the room of others.
    waiting: HashMap<String, Waiting>,
    /// Jobs that ended since the store last answered.
    ended: usize,
    /// When it was asked, and when it answered before.
    asked: Option<(Instant, Instant)>,
    /// Jobs that are taken beyond the free workers.
    ahead: usize,
    /// Kinds of which no job waits in the store, as far as is known. It is not asked for them.
    clear: HashSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: usize,
    /// Size of their payloads.
    bytes: usize,
}

impl PoolClaims {
    /// Jobs that the pool has room for, if those of `kinds` share it.
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
    /// How many jobs of each kind the pools have room for. The kinds of a pool of which jobs may wait share its room.
    /// `None` if no job waits for which there is room.
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
                claims.asked = Some((now, claims.asked.map_or(now, |(_, answered)| answered)));
                kinds.extend(rooms);
            }
        }
        (!kinds.is_empty()).then_some(Room { session, kinds, bytes: MAX_BYTES })
    }

    /// Keeps a place for a new job of a kind, unless others go first.
    pub(super) fn reserve(&mut self, pool: &Pool, kind: &str, bytes: usize) -> bool {
        let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
        let has_room = claims.room(pool, kind, 1) > 0;
        let is_first = pool.kind_names().all(|(_, kind)| claims.clear.contains(&**kind));
        let is_reserved = is_first && has_room && pool.is_serving() && !self.refused.contains_key(kind);
        if is_reserved {
            self.taken(pool.name(), kind, bytes);
        } else {
            claims.clear.remove(kind);
        }
        is_reserved
    }

    /// The store has given what it has. Short jobs need more look-ahead: twice as many as end while it is asked.
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
            let (asked, before) = claims.asked.unwrap_or((now, now));
            let part = (now - asked).as_secs_f64() / (now - before).as_secs_f64().max(f64::MIN_POSITIVE);
            let ends = (std::mem::take(&mut claims.ended) as f64 * part).round() as usize;
            claims.asked = Some((now, now));
            claims.ahead = (2 * ends).max(claims.ahead / 2).clamp(1, MAX_AHEAD);
        }
    }

    /// Jobs may wait in the store.
    pub(super) fn look(&mut self) {
        self.pools.values_mut().for_each(|claims| claims.clear.clear());
    }

    pub(super) fn taken(&mut self, pool: &Arc<str>, kind: &str, bytes: usize) {
        let waiting = &mut self.pools.entry(Arc::clone(pool)).or_default().waiting;
        let waiting = waiting.entry(kind.to_owned()).or_default();
        waiting.jobs += 1;
        waiting.bytes += bytes;
    }

    /// A job has begun, or is given back.
    pub(super) fn left(&mut self, pool: &Arc<str>, kind: &str, bytes: usize) {
        let waiting = self.pools.get_mut(pool).and_then(|claims| claims.waiting.get_mut(kind));
        if let Some(waiting) = waiting {
            waiting.jobs -= 1;
            waiting.bytes -= bytes;
        }
    }

    pub(super) fn ended(&mut self, pool: &Arc<str>) {
        self.pools.entry(Arc::clone(pool)).or_default().ended += 1;
    }

    /// Takes no jobs of a kind until then.
    pub(super) fn refuse(&mut self, kind: &str, until: Instant) {
        self.refused.insert(kind.to_owned(), until);
        self.look();
    }
}
