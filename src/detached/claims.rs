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
/// Payloads of jobs that are taken and have not begun; the last job may exceed it.
const MAX_BYTES: usize = 64 << 20;

/// Jobs that were taken from the store, by pool.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pools: HashMap<Arc<str>, PoolClaims>,
    /// Kinds that a pool refused, and until when none are taken.
    refused: HashMap<String, Instant>,
    /// Payloads of the jobs that have not begun.
    bytes: usize,
}

#[derive(Debug, Default)]
struct PoolClaims {
    /// Jobs that have not begun.
    waiting: usize,
    /// Jobs that ended since the store last answered.
    ended: usize,
    /// When it was asked, and when it answered before.
    asked: Option<(Instant, Instant)>,
    /// Jobs that are taken beyond the free workers.
    ahead: usize,
    /// Kinds of which no job waits in the store, as far as is known. It is not asked for them.
    clear: HashSet<Arc<str>>,
}

impl PoolClaims {
    fn room(&self, pool: &Pool) -> usize {
        (pool.free_workers() + self.ahead.max(1)).saturating_sub(self.waiting)
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
            let room = claims.room(pool);
            if room > 0 && !waiting.is_empty() {
                claims.asked = Some((now, claims.asked.map_or(now, |(_, answered)| answered)));
                let each = room.div_ceil(waiting.len());
                kinds.extend(waiting.into_iter().map(|(_, kind)| (kind.to_string(), each)));
            }
        }
        let bytes = MAX_BYTES.saturating_sub(self.bytes);
        (bytes > 0 && !kinds.is_empty()).then_some(Room { session, kinds, bytes })
    }

    /// Keeps a place for a new job of a kind, unless others go first.
    pub(super) fn reserve(&mut self, pool: &Pool, kind: &str, bytes: usize) -> bool {
        let claims = self.pools.entry(Arc::clone(pool.name())).or_default();
        let has_room = self.bytes < MAX_BYTES && claims.room(pool) > 0;
        let is_first = pool.kind_names().all(|(_, kind)| claims.clear.contains(&**kind));
        let is_reserved = is_first && has_room && pool.is_serving() && !self.refused.contains_key(kind);
        if is_reserved {
            self.taken(pool.name(), bytes);
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

    pub(super) fn taken(&mut self, pool: &Arc<str>, bytes: usize) {
        self.pools.entry(Arc::clone(pool)).or_default().waiting += 1;
        self.bytes += bytes;
    }

    /// A job has begun, or is given back.
    pub(super) fn left(&mut self, pool: &Arc<str>, bytes: usize) {
        self.pools.entry(Arc::clone(pool)).or_default().waiting -= 1;
        self.bytes -= bytes;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        handler::{Context, Handler, Kind},
        model::{HandlerError, Job, Output},
        store::{Bounds, JobStore as _, MemoryStore, NewJob, Submission},
    };

    struct Echo;

    impl Handler for Echo {
        async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
            Ok(Output::new(job.payload))
        }
    }

    #[tokio::test]
    async fn a_backlog_of_one_kind_soon_gets_all_the_room_of_its_pool() {
        let kinds = ["a", "b", "c", "d"].map(|name| Kind::new(name, || Echo));
        let pool = kinds.into_iter().fold(Pool::builder("pool"), crate::pool::PoolBuilder::kind).build();
        let (name, pools) = (Arc::clone(pool.name()), Pools::new(vec![pool]));
        let store = MemoryStore::new(Bounds::default(), crate::detached::wall_clock());
        let jobs = (0..2000).map(|number| NewJob::new(format!("{number}"), "pool", Job::new("a", ""))).collect();
        store.submit(Submission { jobs, room: None }).await.expect("a place");
        let session = store.open_session(Duration::from_secs(9)).await.expect("a session");
        let (mut claims, mut left, mut rounds, mut now) = (Claims::default(), 2000, 0, Instant::now());
        while left > 0 {
            let room = claims.room(&pools, session, now).expect("room for the jobs that are left");
            let jobs = store.claim(room.clone()).await.expect("jobs");
            now += Duration::from_millis(1);
            claims.claimed(&pools, &room, &jobs, now);
            // All of them are so short that they end before the store is asked again.
            jobs.iter().for_each(|_| claims.ended(&name));
            left -= jobs.len();
            rounds += 1;
        }
        assert!(rounds < 20, "{rounds} rounds");
        let rest = claims.room(&pools, session, now);
        assert!(rest.is_none_or(|rest| rest.kinds.keys().eq(["a"])), "the others have no jobs");
    }
}
