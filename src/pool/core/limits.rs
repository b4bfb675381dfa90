#[cfg(test)]
mod invariants;

use std::collections::{BTreeSet, BinaryHeap};

use rustc_hash::FxHashMap;
use slab::Slab;
use tokio::time::Instant;

use super::gate::{Ahead, Due, Gate, LimitWait, Used};
use crate::model::{KindLimits, Limit, Limiter};

/// The lane of the kinds without limits.
pub(super) const OPEN: usize = 0;

const ALL: [Limiter; 2] = [Limiter::Concurrency, Limiter::Rate];
const PER_KEY: [Limiter; 2] = [Limiter::KeyConcurrency, Limiter::KeyRate];

/// The limits of kinds and of their limit keys, and what is used of them. Each kind with a limit has a lane of its own in
/// the queues; without any, all of this is empty.
#[derive(Default)]
pub(super) struct Limits {
    /// By kind.
    lane_of: Vec<usize>,
    /// By lane, without the open one.
    lanes: Vec<LaneLimit>,
    gates: Slab<Gate>,
    /// Gates that hold a job only until a token comes, by when.
    asleep: BTreeSet<(Instant, usize)>,
    /// Gates without a job whose bucket is not full, by when it is: until then they are remembered.
    idle: BTreeSet<(Instant, usize)>,
    /// Gates that hold a job, changed, and may let it through.
    stirred: BTreeSet<usize>,
}

struct LaneLimit {
    kind: usize,
    limits: KindLimits,
    used: Used,
    by_key: FxHashMap<Box<str>, usize>,
}

/// What is seen of the limits of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitUse {
    pub(crate) kind: usize,
    pub(crate) limits: KindLimits,
    pub(crate) running: u32,
    pub(crate) queued: usize,
    pub(crate) keys: usize,
}

impl Limits {
    /// Takes the limits of all kinds, of which those that it has stay as they are.
    pub(super) fn extend(&mut self, kinds: &[KindLimits]) {
        for (kind, limits) in kinds.iter().enumerate().skip(self.lane_of.len()) {
            if limits.is_set() {
                let lane = LaneLimit { kind, limits: *limits, used: Used::default(), by_key: FxHashMap::default() };
                self.lanes.push(lane);
            }
            self.lane_of.push(if limits.is_set() { self.lanes.len() } else { OPEN });
        }
    }

    /// Whether some kind has no limits.
    pub(super) fn has_others(&self) -> bool {
        self.lanes.len() < self.lane_of.len()
    }

    /// Number of lanes besides the open one.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    pub(super) fn lane(&self, kind: usize) -> usize {
        self.lane_of.get(kind).copied().unwrap_or(OPEN)
    }

    /// Whether a job of the lane may start, as far as its kind goes.
    pub(super) fn is_open(&self, lane: usize, now: Instant) -> bool {
        let Some(limited) = self.limited(lane) else { return true };
        limited.used.has_place(limited.limits.all, 1) && limited.used.has_token(limited.limits.all, 1, now)
    }

    /// Whether a job with that key may start, as far as its key goes: no other one of the key is before it.
    pub(super) fn is_key_open(&self, lane: usize, key: &str, now: Instant) -> bool {
        let Some(limited) = self.limited(lane) else { return true };
        let Some(gate) = self.find(limited, key) else { return true };
        gate.held.is_empty() && gate.admits(limited.limits.per_key, now)
    }

    /// A job joins the gate of its key, which is made where it is the first; `None` where its kind has no limits per
    /// key.
    pub(super) fn join(&mut self, lane: usize, key: &str, now: Instant) -> Option<usize> {
        let limits = self.limited(lane)?.limits;
        if !limits.per_key.is_set() {
            return None;
        }
        self.forget(now);
        let limited = &mut self.lanes[lane - 1];
        let is_new = !limited.by_key.contains_key(key);
        let key = if is_new && limited.by_key.len() >= limits.keys { "" } else { key };
        let gate = match limited.by_key.get(key) {
            Some(gate) => *gate,
            None => {
                let gate = self.gates.insert(Gate::new(lane, key));
                limited.by_key.insert(key.into(), gate);
                gate
            }
        };
        let found = &mut self.gates[gate];
        if found.jobs == 0
            && let Some(full_at) = found.used.bucket.full_at()
        {
            self.idle.remove(&(full_at, gate));
        }
        found.jobs += 1;
        Some(gate)
    }

    /// A job that joined is queued.
    pub(super) fn queue(&mut self, gate: Option<usize>) {
        if let Some(gate) = gate {
            self.gates[gate].queued += 1;
        }
    }

    /// A job that joined is queued no more; where it was let through, the gate may let another one.
    pub(super) fn unqueue(&mut self, gate: Option<usize>, was_ready: bool) {
        let Some(gate) = gate else { return };
        self.gates[gate].queued -= 1;
        self.gates[gate].ready -= u32::from(was_ready);
        self.stir(gate);
    }

    /// A job starts.
    pub(super) fn start(&mut self, lane: usize, gate: Option<usize>, now: Instant) {
        let Some(limited) = lane.checked_sub(1).map(|lane| &mut self.lanes[lane]) else { return };
        limited.used.start(limited.limits.all, now);
        if let Some(gate) = gate {
            self.gates[gate].used.start(limited.limits.per_key, now);
        }
    }

    /// A job that started gave its worker back.
    pub(super) fn end(&mut self, lane: usize, gate: Option<usize>) {
        let Some(limited) = lane.checked_sub(1).map(|lane| &mut self.lanes[lane]) else { return };
        limited.used.running -= 1;
        if let Some(gate) = gate {
            self.gates[gate].used.running -= 1;
            self.stir(gate);
        }
    }

    /// A job is over.
    pub(super) fn quit(&mut self, gate: Option<usize>) {
        let Some(gate) = gate else { return };
        let found = &mut self.gates[gate];
        found.jobs -= 1;
        if found.jobs > 0 {
            return;
        }
        match found.used.bucket.full_at() {
            Some(full_at) => drop(self.idle.insert((full_at, gate))),
            None => self.remove(gate),
        }
    }

    pub(super) fn gate_mut(&mut self, gate: usize) -> &mut Gate {
        &mut self.gates[gate]
    }

    /// The gate may let a job through, or must be told when it will. One that holds none waits for nothing.
    pub(super) fn stir(&mut self, gate: usize) {
        let found = &mut self.gates[gate];
        if !found.held.is_empty() {
            self.stirred.insert(gate);
            return;
        }
        self.stirred.remove(&gate);
        if let Some(at) = found.asleep.take() {
            self.asleep.remove(&(at, gate));
        }
    }

    /// The gates that may let a job through, by their first job in the order of `age`.
    pub(super) fn due(&mut self, now: Instant, age: impl Fn(usize) -> u64) -> BinaryHeap<Due> {
        while let Some((at, gate)) = self.asleep.first().copied()
            && at <= now
        {
            self.asleep.pop_first();
            self.gates[gate].asleep = None;
            self.stir(gate);
        }
        let stirred = std::mem::take(&mut self.stirred).into_iter();
        let first = |gate: usize| self.gates[gate].held.head().map(|head| Due { age: age(head), gate });
        stirred.filter_map(first).collect()
    }

    /// Whether nothing is due.
    pub(super) fn is_calm(&self, now: Instant) -> bool {
        self.stirred.is_empty() && self.asleep.first().is_none_or(|(at, _)| *at > now)
    }

    /// Lets a job of a due gate through, or notes when it will be. Returns whether it did; the job must then leave
    /// [`Gate::held`].
    pub(super) fn let_through(&mut self, gate: usize, now: Instant) -> bool {
        let limit = self.lanes[self.gates[gate].lane - 1].limits.per_key;
        let found = &mut self.gates[gate];
        if let Some(at) = found.asleep.take() {
            self.asleep.remove(&(at, gate));
        }
        if found.admits(limit, now) {
            found.ready += 1;
            return true;
        }
        // Beyond the burst, only a start can help, which stirs.
        let wakes = limit.rate.filter(|rate| found.ready < rate.burst.get());
        if let Some(rate) = wakes.filter(|_| found.used.has_place(limit, found.ready + 1)) {
            found.asleep = found.used.bucket.when(rate, found.ready + 1);
            self.asleep.extend(found.asleep.map(|at| (at, gate)));
        }
        false
    }

    /// When time alone lets a held or a ready job go on; `has_ready` says of a lane whether it has a ready one.
    pub(super) fn wake_at(&self, has_ready: impl Fn(usize) -> bool) -> Option<Instant> {
        let lanes = self.lanes.iter().enumerate().filter_map(|(index, limited)| {
            let rate = limited.limits.all.rate?;
            let waits = limited.used.has_place(limited.limits.all, 1) && has_ready(index + 1);
            limited.used.bucket.when(rate, 1).filter(|_| waits)
        });
        lanes.chain(self.asleep.first().map(|(at, _)| *at)).min()
    }

    /// When time alone lets a job start that comes first of its kind and its key.
    pub(super) fn opens_at(&self, lane: usize, key: &str) -> Option<Instant> {
        let limited = self.limited(lane)?;
        let all = limited.limits.all;
        let kind_opens = all.rate.and_then(|rate| limited.used.bucket.when(rate, 1));
        let Some(gate) = self.find(limited, key) else {
            return kind_opens.filter(|_| limited.used.has_place(all, 1));
        };
        let (per_key, more) = (limited.limits.per_key, gate.ready + 1);
        let has_place = limited.used.has_place(all, 1) && gate.used.has_place(per_key, more) && gate.held.is_empty();
        let rate = per_key.rate.filter(|rate| more <= rate.burst.get());
        let is_within_burst = rate.is_some() || per_key.rate.is_none();
        let key_opens = rate.and_then(|rate| gate.used.bucket.when(rate, more));
        kind_opens.max(key_opens).filter(|_| has_place && is_within_burst)
    }

    /// Expected wait of a job behind others, each of which takes `service` seconds.
    pub(super) fn wait(&self, lane: usize, key: &str, ahead: Ahead, service: f64, now: Instant) -> LimitWait {
        let Some(limited) = self.limited(lane) else { return LimitWait::NONE };
        let wait = limited.used.wait(LimitWait::NONE, limited.limits.all, ALL, (ahead.in_lane, service), now);
        let Some(gate) = self.find(limited, key) else { return wait };
        gate.used.wait(wait, limited.limits.per_key, PER_KEY, (gate.before(ahead), service), now)
    }

    /// The same of one that is queued, behind so many of its lane and of its gate.
    pub(super) fn wait_of_queued(
        &self,
        lane: usize,
        gate: Option<usize>,
        [in_lane, at_gate]: [f64; 2],
        service: f64,
        now: Instant,
    ) -> LimitWait {
        let Some(limited) = self.limited(lane) else { return LimitWait::NONE };
        let wait = limited.used.wait(LimitWait::NONE, limited.limits.all, ALL, (in_lane, service), now);
        let Some(gate) = gate.map(|gate| &self.gates[gate]) else { return wait };
        gate.used.wait(wait, limited.limits.per_key, PER_KEY, (at_gate, service), now)
    }

    /// Seconds of one worker that the lane may take in a second, where its jobs take `service` seconds.
    pub(super) fn pace(&self, lane: usize, service: f64) -> f64 {
        let Some(Limit { concurrency, rate }) = self.limited(lane).map(|limited| limited.limits.all) else {
            return f64::INFINITY;
        };
        let most = concurrency.map_or(f64::INFINITY, |most| f64::from(most.get()));
        rate.map_or(most, |rate| most.min(service / rate.interval.as_secs_f64()))
    }

    /// The longest time that `by` takes for one job, where it is a rate.
    pub(super) fn interval(&self, lane: usize, by: Option<Limiter>) -> f64 {
        let Some(limited) = self.limited(lane) else { return 0.0 };
        let rate = match by {
            Some(Limiter::Rate) => limited.limits.all.rate,
            Some(Limiter::KeyRate) => limited.limits.per_key.rate,
            Some(Limiter::Concurrency | Limiter::KeyConcurrency) | None => None,
        };
        rate.map_or(0.0, |rate| rate.interval.as_secs_f64())
    }

    /// Kind of a lane that has limits.
    pub(super) fn kind(&self, lane: usize) -> usize {
        self.lanes[lane - 1].kind
    }

    /// The first limit that is set, for those who have to name one.
    pub(super) fn any(&self, lane: usize) -> Limiter {
        match self.limited(lane).map(|limited| limited.limits) {
            Some(KindLimits { all: Limit { concurrency: Some(_), .. }, .. }) => Limiter::Concurrency,
            Some(KindLimits { all: Limit { rate: Some(_), .. }, .. }) => Limiter::Rate,
            Some(KindLimits { per_key: Limit { concurrency: Some(_), .. }, .. }) => Limiter::KeyConcurrency,
            _ => Limiter::KeyRate,
        }
    }

    /// Which limit a ready job of the lane waits for.
    pub(super) fn closed_by(&self, lane: usize, now: Instant) -> Option<Limiter> {
        let limited = self.limited(lane)?;
        if !limited.used.has_place(limited.limits.all, 1) {
            return Some(Limiter::Concurrency);
        }
        (!limited.used.has_token(limited.limits.all, 1, now)).then_some(Limiter::Rate)
    }

    /// Which limit per key a held job waits for.
    pub(super) fn held_by(&self, gate: usize) -> Limiter {
        let gate = &self.gates[gate];
        let limit = self.lanes[gate.lane - 1].limits.per_key;
        if gate.used.has_place(limit, gate.ready + 1) { Limiter::KeyRate } else { Limiter::KeyConcurrency }
    }

    /// What is used of each limit; `queued` counts the queued jobs of a lane.
    pub(super) fn uses(&self, queued: impl Fn(usize) -> usize) -> Vec<LimitUse> {
        let view = |(index, limited): (usize, &LaneLimit)| LimitUse {
            kind: limited.kind,
            limits: limited.limits,
            running: limited.used.running,
            queued: queued(index + 1),
            keys: limited.by_key.len(),
        };
        self.lanes.iter().enumerate().map(view).collect()
    }

    fn limited(&self, lane: usize) -> Option<&LaneLimit> {
        lane.checked_sub(1).map(|lane| &self.lanes[lane])
    }

    /// The gate that a job with that key would join.
    fn find(&self, limited: &LaneLimit, key: &str) -> Option<&Gate> {
        let is_full = limited.by_key.len() >= limited.limits.keys;
        let gate = limited.by_key.get(key).or_else(|| limited.by_key.get("").filter(|_| is_full));
        gate.map(|gate| &self.gates[*gate])
    }

    /// Lets go of the idle keys whose bucket is full again: they are as new.
    fn forget(&mut self, now: Instant) {
        while let Some((at, gate)) = self.idle.first().copied()
            && at <= now
        {
            self.idle.pop_first();
            self.remove(gate);
        }
    }

    fn remove(&mut self, gate: usize) {
        let Gate { lane, key, .. } = self.gates.remove(gate);
        self.lanes[lane - 1].by_key.remove(&key);
    }
}
