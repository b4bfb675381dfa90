//! Limits of kinds and of limit keys: concurrency and rate. The token bucket of a rate is in `limit/key.rs`.

mod hold;
#[cfg(test)]
#[path = "tests/invariants/limit.rs"]
mod invariants;
mod key;
mod share;

use std::{collections::BTreeSet, mem, num::NonZeroU32};

use rustc_hash::FxHashMap;
use slab::Slab;
use tokio::time::Instant;

use super::{
    Host,
    entry::{Entry, EntryStage, KeyLimiterId, KindQueueId},
    list::Link,
};
use crate::model::{KindId, KindLimits, Limit, Limiter};
use key::{KeyLimiter, Used};
pub(super) use key::{LimitWait, TIE};

/// The kind queue of the kinds without limits.
pub(super) const UNLIMITED: KindQueueId = KindQueueId(0);

const ALL: [Limiter; 3] = [Limiter::Concurrency, Limiter::Rate, Limiter::Hold];
const PER_KEY: [Limiter; 3] = [Limiter::KeyConcurrency, Limiter::KeyRate, Limiter::KeyHold];

/// The limits of kinds and limit keys, and their use. Each kind with a limit has its own kind queue; the others share
/// one, which has no limits.
#[derive(Default)]
pub(super) struct Limits {
    /// By kind.
    queue_of: Vec<KindQueueId>,
    /// By kind queue.
    kind_limiters: Vec<KindLimiter>,
    key_limiters: Slab<KeyLimiter>,
    /// Key limiters whose next job only waits for a token, by the time of the token.
    waiting_for_token: BTreeSet<(Instant, KeyLimiterId)>,
    /// Key limiters without a job whose bucket is not full, or that are held, by the time when they are neither. They
    /// are removed then.
    idle: BTreeSet<(Instant, KeyLimiterId)>,
    /// Key limiters with a job that have changed, so that a job may pass.
    changed: BTreeSet<KeyLimiterId>,
    /// Servers that divide limits; `None` while others are not known.
    servers: Option<NonZeroU32>,
}

#[derive(Default)]
struct KindLimiter {
    /// The kind; of no use for those without limits.
    kind: KindId,
    /// Those of all servers that divide them.
    whole: KindLimits,
    limits: KindLimits,
    used: Used,
    by_key: FxHashMap<Box<str>, KeyLimiterId>,
}

/// The limits of one kind, and their use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStats {
    /// The limits.
    pub limits: KindLimits,
    /// Running jobs.
    pub running: u32,
    /// Jobs that are queued.
    pub queued: usize,
    /// Limit keys in use: those with a job, and those whose bucket is not full again.
    pub keys: usize,
}

impl Limits {
    /// No kinds.
    pub(super) fn new() -> Self {
        Self { kind_limiters: vec![KindLimiter::default()], ..Self::default() }
    }

    /// Sets the limits of all kinds; those of known kinds do not change.
    pub(super) fn extend(&mut self, kinds: &[KindLimits]) {
        for (kind, limits) in kinds.iter().enumerate().skip(self.queue_of.len()) {
            if !limits.is_set() {
                self.queue_of.push(UNLIMITED);
                continue;
            }
            self.queue_of.push(KindQueueId(self.kind_limiters.len()));
            let part = limits.part_of(self.servers.unwrap_or(NonZeroU32::MIN));
            let new = KindLimiter { kind: KindId(kind), whole: *limits, limits: part, ..KindLimiter::default() };
            self.kind_limiters.push(new);
        }
    }

    /// Whether some kind has no limits.
    pub(super) fn has_others(&self) -> bool {
        self.kind_limiters.len() <= self.queue_of.len()
    }

    /// Number of kinds.
    pub(super) fn kinds(&self) -> usize {
        self.queue_of.len()
    }

    /// The kind queues; the open one comes first.
    pub(super) fn kind_queues(&self) -> impl Iterator<Item = KindQueueId> + use<> {
        (0..self.kind_limiters.len()).map(KindQueueId)
    }

    pub(super) fn kind_queue(&self, kind: KindId) -> KindQueueId {
        self.queue_of.get(kind.0).copied().unwrap_or(UNLIMITED)
    }

    /// Whether the kind's limits allow a job of the kind queue to start.
    pub(super) fn is_open(&self, kind_queue: KindQueueId, now: Instant) -> bool {
        let limited = &self.kind_limiters[kind_queue.0];
        limited.used.has_place(limited.limits.all, 1) && limited.used.has_token(limited.limits.all, 1, now)
    }

    /// Whether the key's limits allow a job to start, and no other job of the key is before it.
    pub(super) fn is_key_open(&self, kind_queue: KindQueueId, key: &str, now: Instant) -> bool {
        let limited = &self.kind_limiters[kind_queue.0];
        self.find(limited, key).is_none_or(|key_limiter| {
            let key_limiter = &self.key_limiters[key_limiter.0];
            key_limiter.throttled.is_empty() && key_limiter.admits(limited.limits.per_key, now)
        })
    }

    /// Adds a job to the key limiter of its key, which is created for the first one. `None` if its kind has no limits
    /// per key.
    pub(super) fn join(&mut self, kind_queue: KindQueueId, key: &str, now: Instant) -> Option<KeyLimiterId> {
        let limits = self.kind_limiters[kind_queue.0].limits;
        if !limits.per_key.is_set() {
            return None;
        }
        self.forget(now);
        let limited = &mut self.kind_limiters[kind_queue.0];
        let is_new = !limited.by_key.contains_key(key);
        let key = if is_new && limited.by_key.len() >= limits.keys { "" } else { key };
        let key_limiter = match limited.by_key.get(key) {
            Some(key_limiter) => *key_limiter,
            None => {
                let new = KeyLimiter { kind_queue, key: key.into(), ..KeyLimiter::default() };
                let key_limiter = KeyLimiterId(self.key_limiters.insert(new));
                limited.by_key.insert(key.into(), key_limiter);
                key_limiter
            }
        };
        let found = &mut self.key_limiters[key_limiter.0];
        if found.jobs == 0
            && let Some(idle_at) = found.used.idle_at()
        {
            self.idle.remove(&(idle_at, key_limiter));
        }
        found.jobs += 1;
        Some(key_limiter)
    }

    /// Removes a job from the queue. If the job was ready, its key may let another one pass.
    pub(super) fn leave<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let Some(key_limiter) = entries[index].key_limiter else { return };
        match entries[index].stage {
            EntryStage::Ready => self.key_limiters[key_limiter.0].ready -= 1,
            EntryStage::Throttled => self.key_limiters[key_limiter.0].throttled.remove(entries, Link::Line, index),
            EntryStage::Waiting | EntryStage::Blocked | EntryStage::Running { .. } => {}
        }
        self.mark_changed(key_limiter);
    }

    /// A job starts.
    pub(super) fn start(&mut self, kind_queue: KindQueueId, key_limiter: Option<KeyLimiterId>, now: Instant) {
        let limited = &mut self.kind_limiters[kind_queue.0];
        limited.used.start(limited.limits.all, now);
        if let Some(key_limiter) = key_limiter {
            self.key_limiters[key_limiter.0].used.start(limited.limits.per_key, now);
        }
    }

    /// A started job gave its worker back.
    pub(super) fn end(&mut self, kind_queue: KindQueueId, key_limiter: Option<KeyLimiterId>) {
        let limited = &mut self.kind_limiters[kind_queue.0];
        limited.used.running -= 1;
        if let Some(key_limiter) = key_limiter {
            self.key_limiters[key_limiter.0].used.running -= 1;
            self.mark_changed(key_limiter);
        }
    }

    /// A job is over.
    pub(super) fn quit<H: Host>(&mut self, entry: &Entry<H>) {
        self.uncount(entry);
        let Some(key_limiter) = entry.key_limiter else { return };
        let found = &mut self.key_limiters[key_limiter.0];
        found.jobs -= 1;
        if found.jobs > 0 {
            return;
        }
        match found.used.idle_at() {
            Some(idle_at) => drop(self.idle.insert((idle_at, key_limiter))),
            None => self.remove(key_limiter),
        }
    }

    pub(super) fn key_limiter_mut(&mut self, key_limiter: KeyLimiterId) -> &mut KeyLimiter {
        &mut self.key_limiters[key_limiter.0]
    }

    /// Marks a key limiter with jobs: it may let a job pass, or needs a wake-up time. Without jobs, it needs neither.
    pub(super) fn mark_changed(&mut self, key_limiter: KeyLimiterId) {
        let found = &mut self.key_limiters[key_limiter.0];
        if !found.throttled.is_empty() {
            self.changed.insert(key_limiter);
            return;
        }
        self.changed.remove(&key_limiter);
        if let Some(at) = found.waiting_for_token.take() {
            self.waiting_for_token.remove(&(at, key_limiter));
        }
    }

    /// The key limiters that may let a job pass.
    pub(super) fn due(&mut self, now: Instant) -> BTreeSet<KeyLimiterId> {
        while let Some((at, key_limiter)) = self.waiting_for_token.first().copied()
            && at <= now
        {
            self.waiting_for_token.pop_first();
            self.key_limiters[key_limiter.0].waiting_for_token = None;
            self.mark_changed(key_limiter);
        }
        mem::take(&mut self.changed)
    }

    /// Whether nothing is due.
    pub(super) fn has_nothing_due(&self, now: Instant) -> bool {
        self.changed.is_empty() && self.waiting_for_token.first().is_none_or(|(at, _)| *at > now)
    }

    /// Lets a job of a due key limiter pass, or records when it may pass. Returns whether it passed; the caller must
    /// then remove the job from [`KeyLimiter::throttled`].
    pub(super) fn let_through(&mut self, key_limiter: KeyLimiterId, now: Instant) -> bool {
        let limit = self.kind_limiters[self.key_limiters[key_limiter.0].kind_queue.0].limits.per_key;
        let found = &mut self.key_limiters[key_limiter.0];
        if let Some(at) = found.waiting_for_token.take() {
            self.waiting_for_token.remove(&(at, key_limiter));
        }
        if found.throttled.is_empty() {
            return false;
        }
        if found.admits(limit, now) {
            found.ready += 1;
            return true;
        }
        // Beyond the burst, only a start can free a token. It marks the key limiter as changed.
        let is_within_burst = limit.rate.is_none_or(|rate| found.ready < rate.burst.get());
        if is_within_burst && found.used.has_place(limit, found.ready + 1) {
            found.waiting_for_token = found.used.opens_at(limit, found.ready + 1);
            self.waiting_for_token.extend(found.waiting_for_token.map(|at| (at, key_limiter)));
        }
        false
    }

    /// When time alone lets a throttled or a ready job continue. `has_ready` says whether a kind queue has a ready job.
    pub(super) fn wake_at(&self, has_ready: impl Fn(KindQueueId) -> bool) -> Option<Instant> {
        let kind_queues = self.kind_limiters.iter().zip(self.kind_queues()).filter_map(|(limited, kind_queue)| {
            let opens_at = limited.used.opens_at(limited.limits.all, 1)?;
            let waits = limited.used.has_place(limited.limits.all, 1) && has_ready(kind_queue);
            waits.then_some(opens_at)
        });
        kind_queues.chain(self.waiting_for_token.first().map(|(at, _)| *at)).min()
    }

    /// When time alone lets the first job of a kind and a key start.
    pub(super) fn opens_at(&self, kind_queue: KindQueueId, key: &str) -> Option<Instant> {
        let limited = &self.kind_limiters[kind_queue.0];
        let all = limited.limits.all;
        let kind_opens = limited.used.opens_at(all, 1);
        let Some(key_limiter) = self.find(limited, key).map(|key_limiter| &self.key_limiters[key_limiter.0]) else {
            return kind_opens.filter(|_| limited.used.has_place(all, 1));
        };
        let (per_key, more) = (limited.limits.per_key, key_limiter.ready + 1);
        let has_place = limited.used.has_place(all, 1)
            && key_limiter.used.has_place(per_key, more)
            && key_limiter.throttled.is_empty();
        let is_within_burst = per_key.rate.is_none_or(|rate| more <= rate.burst.get());
        let opens = || kind_opens.max(key_limiter.used.opens_at(per_key, more));
        (has_place && is_within_burst).then(opens).flatten()
    }

    /// Expected wait of a job behind other jobs of its kind and of its key, if each takes `service` seconds.
    pub(super) fn wait(
        &self,
        kind_queue: KindQueueId,
        in_kind_queue: f64,
        at_key: Option<(KeyLimiterId, usize)>,
        service: f64,
        now: Instant,
    ) -> LimitWait {
        let limited = &self.kind_limiters[kind_queue.0];
        let wait = limited.used.wait(LimitWait::NONE, limited.limits.all, ALL, (in_kind_queue, service), now);
        let Some((key_limiter, before)) = at_key else { return wait };
        self.key_limiters[key_limiter.0].used.wait(wait, limited.limits.per_key, PER_KEY, (before as f64, service), now)
    }

    /// The key limiter that a job with this key would join, and the number of jobs before it. Jobs that are blocked by
    /// ordering keys count only if this job would be blocked too.
    pub(super) fn behind(&self, kind_queue: KindQueueId, key: &str, is_free: bool) -> Option<(KeyLimiterId, usize)> {
        let key_limiter = self.find(&self.kind_limiters[kind_queue.0], key)?;
        let KeyLimiter { throttled, ready, jobs, used, .. } = &self.key_limiters[key_limiter.0];
        let before = if is_free { throttled.len() + *ready as usize } else { (jobs - used.running) as usize };
        Some((key_limiter, before))
    }

    /// The jobs of a key limiter before a queued one.
    pub(super) fn before<H: Host>(&self, entries: &Slab<Entry<H>>, index: usize) -> Option<(KeyLimiterId, usize)> {
        let key_limiter = entries[index].key_limiter?;
        let KeyLimiter { throttled, ready, .. } = &self.key_limiters[key_limiter.0];
        let before = throttled.iter(entries, Link::Line).take_while(|at| *at != index).count();
        // A ready job already has its token and its place.
        (entries[index].stage != EntryStage::Ready).then_some((key_limiter, before + *ready as usize))
    }

    /// Seconds of worker time per second that the kind queue may use, if its jobs take `service` seconds.
    pub(super) fn pace(&self, kind_queue: KindQueueId, service: f64) -> f64 {
        let Limit { concurrency, rate } = self.kind_limiters[kind_queue.0].limits.all;
        let places = |max| f64::from(self.kind_limiters[kind_queue.0].used.places(max));
        let max = concurrency.map_or(f64::INFINITY, places);
        rate.map_or(max, |rate| max.min(service / rate.interval.as_secs_f64()))
    }

    /// The longest interval between two jobs under `by`, if `by` is a rate.
    pub(super) fn interval(&self, kind_queue: KindQueueId, by: Option<Limiter>) -> f64 {
        let KindLimits { all, per_key, keys: _, share: _ } = self.kind_limiters[kind_queue.0].limits;
        let rate = match by {
            Some(Limiter::Rate) => all.rate,
            Some(Limiter::KeyRate) => per_key.rate,
            Some(Limiter::Concurrency | Limiter::KeyConcurrency | Limiter::Hold | Limiter::KeyHold) | None => None,
        };
        rate.map_or(0.0, |rate| rate.interval.as_secs_f64())
    }

    /// The kind of a kind queue with limits.
    pub(super) fn kind(&self, kind_queue: KindQueueId) -> KindId {
        self.kind_limiters[kind_queue.0].kind
    }

    /// The first limit that is set.
    pub(super) fn any(&self, kind_queue: KindQueueId) -> Limiter {
        match self.kind_limiters[kind_queue.0].limits {
            KindLimits { all: Limit { concurrency: Some(_), .. }, .. } => Limiter::Concurrency,
            KindLimits { all: Limit { rate: Some(_), .. }, .. } => Limiter::Rate,
            KindLimits { per_key: Limit { concurrency: Some(_), .. }, .. } => Limiter::KeyConcurrency,
            _ => Limiter::KeyRate,
        }
    }

    /// The limit that a ready job of the kind queue waits for.
    pub(super) fn closed_by(&self, kind_queue: KindQueueId, now: Instant) -> Option<Limiter> {
        let limited = &self.kind_limiters[kind_queue.0];
        limited.used.closed_by(limited.limits.all, 1, ALL, now)
    }

    /// The limit per key that a throttled job waits for.
    pub(super) fn throttled_by(&self, key_limiter: KeyLimiterId, now: Instant) -> Limiter {
        let key_limiter = &self.key_limiters[key_limiter.0];
        let limit = self.kind_limiters[key_limiter.kind_queue.0].limits.per_key;
        key_limiter.used.closed_by(limit, key_limiter.ready + 1, PER_KEY, now).unwrap_or(Limiter::KeyRate)
    }

    /// The use of each limit. `queued` counts the queued jobs of a kind queue.
    pub(super) fn uses(&self, queued: impl Fn(KindQueueId) -> usize) -> Vec<(KindId, LimitStats)> {
        let view = |(limited, kind_queue): (&KindLimiter, KindQueueId)| {
            let (limits, running, keys) = (limited.limits, limited.used.running, limited.by_key.len());
            (limited.kind, LimitStats { limits, running, queued: queued(kind_queue), keys })
        };
        self.kind_limiters.iter().zip(self.kind_queues()).skip(1).map(view).collect()
    }

    /// The key limiter that a job with that key would join.
    fn find(&self, limited: &KindLimiter, key: &str) -> Option<KeyLimiterId> {
        let is_full = limited.by_key.len() >= limited.limits.keys;
        limited.by_key.get(key).or_else(|| limited.by_key.get("").filter(|_| is_full)).copied()
    }

    /// Removes idle keys whose bucket is full again: they no longer differ from new ones.
    fn forget(&mut self, now: Instant) {
        while let Some((at, key_limiter)) = self.idle.first().copied()
            && at <= now
        {
            self.idle.pop_first();
            self.remove(key_limiter);
        }
    }

    fn remove(&mut self, key_limiter: KeyLimiterId) {
        let KeyLimiter { kind_queue, key, .. } = self.key_limiters.remove(key_limiter.0);
        self.kind_limiters[kind_queue.0].by_key.remove(&key);
    }
}
