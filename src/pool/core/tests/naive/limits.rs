use std::time::Duration;

use super::{super::Offer, Job, Naive, law::up_to};
use crate::model::{Limit, Limiter, Rate};

impl Naive {
    /// The open lane, or the one of a kind with limits.
    pub(super) fn lane(&self, kind: usize) -> usize {
        let before = self.limits[..kind].iter().filter(|limits| limits.is_set()).count();
        if self.limits[kind].is_set() { 1 + before } else { 0 }
    }

    /// Whether a job of the kind may start, as far as all jobs of the kind go.
    pub(super) fn kind_is_open(&self, kind: usize) -> bool {
        let limit = self.limits[kind].all;
        self.has_place(limit, kind, None, 1) && self.has_tokens(limit, kind, None, 1)
    }

    /// Whether no job of its kind or its key is before an arrival, and both may start one.
    pub(super) fn is_within_limits(&self, offer: &Offer) -> bool {
        if self.lane(offer.kind) == 0 {
            return true;
        }
        let none_ready = !self.queued.iter().any(|job| job.ready.is_some() && job.offer.kind == offer.kind);
        let none_held = self.held(offer.kind, offer.limit_key).next().is_none();
        none_ready && none_held && self.key_is_open(offer.kind, offer.limit_key) && self.kind_is_open(offer.kind)
    }

    /// Makes jobs ready as far as the limits of their keys let them. Of each key, the one that came to the gate first;
    /// of all keys, the one that arrived first.
    pub(super) fn open_gates(&mut self) {
        loop {
            let gates = (0..self.limits.len()).flat_map(|kind| (0..4).map(move |key| (kind, key)));
            let open = gates.filter(|(kind, key)| self.key_is_open(*kind, *key));
            let first = open.filter_map(|(kind, key)| self.held(kind, key).min_by_key(|job| job.at_gate));
            let Some(job) = first.map(|job| job.job).min() else { return };
            let at = self.queued.iter().position(|queued| queued.job == job).expect("a queued job");
            self.make_ready(at);
        }
    }

    /// What the limits of a kind add to the wait, and which of them.
    pub(super) fn limit_wait(&self, offer: &Offer) -> (f64, Option<Limiter>) {
        let lane = self.lane(offer.kind);
        if lane == 0 {
            return (0.0, None);
        }
        self.limit_wait_behind(offer, self.ahead_by_lines(offer))
    }

    /// Jobs of its kind before an arrival: all, or those that are free and what the lines of ordering keys do in the time
    /// that follows from all, over and over.
    fn ahead_by_lines(&self, offer: &Offer) -> f64 {
        let (lane, rank) = (self.lane(offer.kind), offer.class.rank());
        let own = self.before_own(lane, offer.tenant, rank, offer.key) + 1.0;
        let all = self.ahead(lane, rank, own);
        let service = self.service(Some(offer.kind));
        if !self.is_measured(Some(offer.kind)) || service <= 0.0 || self.queued.iter().all(Job::is_free) {
            return all;
        }
        let free = self.free_ahead(lane, rank, own);
        (0..7).fold(all, |before, _| {
            let wait = self.limit_wait_behind(offer, before).0;
            f64::min(all, free + up_to(&self.line_backlogs(rank), wait) / service)
        })
    }

    /// The longest wait for one of the limits, and that limit.
    fn limit_wait_behind(&self, offer: &Offer, before: f64) -> (f64, Option<Limiter>) {
        let same_key = |job: &&Job| job.offer.kind == offer.kind && job.offer.limit_key == offer.limit_key;
        let passes = |job: &&Job| job.is_free() || !self.key_is_free(offer.key);
        let keyed = self.queued.iter().filter(same_key).filter(passes).count() as f64;
        let limits = self.limits[offer.kind];
        let key = Some(offer.limit_key);
        let waits = [
            (self.wait_for_place(limits.all, offer.kind, None, before), Limiter::Concurrency),
            (self.wait_for_token(limits.all, offer.kind, None, before), Limiter::Rate),
            (self.wait_for_place(limits.per_key, offer.kind, key, keyed), Limiter::KeyConcurrency),
            (self.wait_for_token(limits.per_key, offer.kind, key, keyed), Limiter::KeyRate),
        ];
        waits.into_iter().fold(
            (0.0, None),
            |(most, by), (seconds, limiter)| {
                if seconds > most + 1e-9 { (seconds, Some(limiter)) } else { (most, by) }
            },
        )
    }

    /// The limit that is named where none is longer than the others.
    pub(super) fn first_limit(&self, kind: usize) -> Limiter {
        let limits = self.limits[kind];
        let all = [
            (limits.all.concurrency.is_some(), Limiter::Concurrency),
            (limits.all.rate.is_some(), Limiter::Rate),
            (limits.per_key.concurrency.is_some(), Limiter::KeyConcurrency),
            (limits.per_key.rate.is_some(), Limiter::KeyRate),
        ];
        all.into_iter().find(|(set, _)| *set).expect("a limit").1
    }

    /// Seconds from start to start, where a rate keeps jobs waiting.
    pub(super) fn interval(&self, kind: usize, limit: Option<Limiter>) -> f64 {
        let rate = match limit {
            Some(Limiter::Rate) => self.limits[kind].all.rate,
            Some(Limiter::KeyRate) => self.limits[kind].per_key.rate,
            _ => None,
        };
        rate.map_or(0.0, |rate| rate.interval.as_secs_f64())
    }

    /// Of each kind with limits, the work before an arrival, and what these let it do in a second.
    pub(super) fn limited(&self, rank: usize, own: f64) -> Vec<(f64, f64)> {
        self.limited_by(own, |lane, own| self.ahead(lane, rank, own))
    }

    pub(super) fn limited_by(&self, own: f64, ahead: impl Fn(usize, f64) -> f64) -> Vec<(f64, f64)> {
        let kinds = (0..self.limits.len()).filter(|kind| self.lane(*kind) > 0 && self.service(Some(*kind)) > 0.0);
        let of = |kind: usize| {
            let (limit, service) = (self.limits[kind].all, self.service(Some(kind)));
            let work = ahead(self.lane(kind), own / service) * service;
            let places = limit.concurrency.map_or(f64::INFINITY, |most| f64::from(most.get()));
            let starts = limit.rate.map_or(f64::INFINITY, |rate| service / rate.interval.as_secs_f64());
            (work, places.min(starts))
        };
        kinds.map(of).filter(|(work, _)| *work > 0.0).collect()
    }

    /// Whether a job waits for the limits of its key.
    pub(in super::super) fn has_held(&self) -> bool {
        self.queued.iter().any(|job| job.at_gate.is_some() && job.ready.is_none())
    }

    fn held(&self, kind: usize, key: u8) -> impl Iterator<Item = &Job> {
        let held = |job: &&Job| job.at_gate.is_some() && job.ready.is_none();
        self.queued.iter().filter(held).filter(move |job| job.offer.kind == kind && job.offer.limit_key == key)
    }

    /// Whether one more job of the key may be made ready: those that are and have not started count.
    fn key_is_open(&self, kind: usize, key: u8) -> bool {
        let limit = self.limits[kind].per_key;
        let of = |job: &&Job| job.offer.kind == kind && job.offer.limit_key == key && job.ready.is_some();
        let more = self.queued.iter().filter(of).count() + 1;
        self.has_place(limit, kind, Some(key), more) && self.has_tokens(limit, kind, Some(key), more)
    }

    fn running(&self, kind: usize, key: Option<u8>) -> usize {
        let of = |offer: Offer| offer.kind == kind && key.is_none_or(|key| key == offer.limit_key);
        self.running.iter().filter(|run| of(run.job.offer)).count()
    }

    fn has_place(&self, limit: Limit, kind: usize, key: Option<u8>, more: usize) -> bool {
        limit.concurrency.is_none_or(|most| self.running(kind, key) + more <= most.get() as usize)
    }

    fn has_tokens(&self, limit: Limit, kind: usize, key: Option<u8>, more: usize) -> bool {
        let more = u32::try_from(more).expect("few jobs");
        limit.rate.is_none_or(|rate| self.tokens(rate, kind, key) >= rate.interval * more)
    }

    /// What is in the bucket, in the time that it took to come.
    fn tokens(&self, rate: Rate, kind: usize, key: Option<u8>) -> Duration {
        let full = rate.interval * rate.burst.get();
        let starts = self.starts.iter().filter(|start| start.0 == kind && key.is_none_or(|key| key == start.1));
        let (mut tokens, mut at) = (full, Duration::ZERO);
        for (.., start) in starts {
            tokens = full.min(tokens + (*start - at)) - rate.interval;
            at = *start;
        }
        full.min(tokens + (self.now - at))
    }

    fn wait_for_place(&self, limit: Limit, kind: usize, key: Option<u8>, before: f64) -> f64 {
        let Some(most) = limit.concurrency.map(|most| f64::from(most.get())) else { return 0.0 };
        let service = if self.is_measured(Some(kind)) { self.service(Some(kind)) } else { 0.0 };
        let is_full = self.running(kind, key) as f64 + before >= most;
        if is_full { (before + 1.0) * service / most } else { 0.0 }
    }

    fn wait_for_token(&self, limit: Limit, kind: usize, key: Option<u8>, before: f64) -> f64 {
        let Some(rate) = limit.rate else { return 0.0 };
        let tokens = self.tokens(rate, kind, key).as_secs_f64() / rate.interval.as_secs_f64();
        ((before + 1.0 - tokens) * rate.interval.as_secs_f64()).max(0.0)
    }
}
