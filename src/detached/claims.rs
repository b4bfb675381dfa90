//! What each pool has room for.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::time::Instant;

use crate::{
    pool::{Pool, Pools},
    store::Claimed,
};

/// Most jobs that are taken for a pool beyond its free workers.
const MAX_AHEAD: usize = 256;

/// Jobs that were taken from the store, by pool.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pools: HashMap<Arc<str>, PoolClaims>,
    /// Kinds that a pool refused, and until when none are taken.
    refused: HashMap<String, Instant>,
}

#[derive(Debug, Default)]
struct PoolClaims {
    /// Jobs that have not begun.
    waiting: usize,
    /// Jobs that ended since the last claim.
    ended: usize,
    /// Jobs that are taken beyond the free workers.
    ahead: usize,
    /// Whether no job waits in the store, as far as is known.
    is_clear: bool,
}

impl Claims {
    /// How many jobs of each kind the pools have room for. The kinds of a pool share its room.
    pub(super) fn room(&mut self, pools: &Pools, now: Instant) -> BTreeMap<String, usize> {
        self.refused.retain(|_, until| *until > now);
        let mut room = BTreeMap::new();
        for pool in pools.all().iter().filter(|pool| pool.is_serving()) {
            let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
            let free = (pool.free_workers() + claims.ahead.max(1)).saturating_sub(claims.waiting);
            let kinds: Vec<_> = pool.kind_names().filter(|(_, kind)| !self.refused.contains_key(&***kind)).collect();
            if free > 0 && !kinds.is_empty() {
                let each = free.div_ceil(kinds.len());
                room.extend(kinds.into_iter().map(|(_, kind)| (kind.to_string(), each)));
            }
        }
        room
    }

    /// Keeps a free worker for a new job of a kind, unless others go first.
    pub(super) fn reserve(&mut self, pool: &Pool, kind: &str) -> bool {
        let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
        let is_free = pool.is_serving() && pool.free_workers() > claims.waiting && !self.refused.contains_key(kind);
        claims.is_clear &= is_free;
        claims.waiting += usize::from(claims.is_clear);
        claims.is_clear
    }

    /// The store has given what it has. Short jobs need more look-ahead: twice as many as end while it is asked.
    pub(super) fn claimed(&mut self, pools: &Pools, room: &BTreeMap<String, usize>, jobs: &[Claimed]) {
        let is_served = |kind: &str| {
            let given = jobs.iter().filter(|job| job.request.job.kind == kind).count();
            room.get(kind).is_some_and(|room| given < *room)
        };
        for pool in pools.all() {
            let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
            claims.is_clear = pool.kind_names().all(|(_, kind)| is_served(kind));
            let recent = std::mem::take(&mut claims.ended);
            claims.ahead = (2 * recent).max(claims.ahead / 2).clamp(1, MAX_AHEAD);
        }
    }

    pub(super) fn taken(&mut self, pool: &Arc<str>) {
        self.pools.entry(Arc::clone(pool)).or_default().waiting += 1;
    }

    /// A job has begun, or is given back.
    pub(super) fn left(&mut self, pool: &Arc<str>) {
        self.pools.entry(Arc::clone(pool)).or_default().waiting -= 1;
    }

    pub(super) fn ended(&mut self, pool: &Arc<str>) {
        self.pools.entry(Arc::clone(pool)).or_default().ended += 1;
    }

    /// Takes no jobs of a kind until then.
    pub(super) fn refuse(&mut self, kind: &str, until: Instant) {
        self.refused.insert(kind.to_owned(), until);
    }
}
