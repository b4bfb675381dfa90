//! A handler holds its kind or its limit key: no job of it starts before a time. It is told so by what it calls.

use tokio::time::Instant;

use super::{
    super::{
        Core, Host, JobKey,
        entry::{EntryStage, KeyLimiterId, KindQueueId},
        list::{Link, List},
    },
    UNLIMITED,
};
use crate::model::Limiter;

impl<H: Host> Core<H> {
    /// The handler of a job that has its worker holds the kind, or the limit key, until a time. A hold never becomes
    /// shorter. Changes nothing if the kind has no limits, or none per key.
    pub(crate) fn hold(&mut self, key: JobKey, scope: Limiter, until: Instant) {
        let Some(entry) = self.entry(key) else { return };
        match (scope, entry.key_limiter, entry.kind_queue) {
            (Limiter::Hold, _, kind_queue) if kind_queue != UNLIMITED => {
                let used = &mut self.limits.kind_limiters[kind_queue.0].used;
                used.held_until = used.held_until.max(Some(until));
            }
            (Limiter::KeyHold, Some(key_limiter), _) => {
                let used = &mut self.limits.key_limiters[key_limiter.0].used;
                used.held_until = used.held_until.max(Some(until));
                self.throttle_ready(key_limiter);
                self.limits.mark_changed(key_limiter);
            }
            _ => {}
        }
    }

    /// The ready jobs of a key wait again, before its other jobs.
    fn throttle_ready(&mut self, key_limiter: KeyLimiterId) {
        if self.limits.key_limiters[key_limiter.0].ready == 0 {
            return;
        }
        let is_ready = |index: &usize| {
            let entry = &self.entries[*index];
            entry.key_limiter == Some(key_limiter) && entry.stage == EntryStage::Ready
        };
        let mut waiting: Vec<_> = self.queue.all.iter(&self.entries, Link::Age).filter(is_ready).collect();
        for index in &waiting {
            self.limits.leave(&mut self.entries, *index);
            self.queue.remove(&mut self.entries, *index);
            self.entries[*index].stage = EntryStage::Throttled;
        }
        let throttled: &mut List = &mut self.limits.key_limiters[key_limiter.0].throttled;
        waiting.extend(std::iter::from_fn(|| throttled.pop_front(&mut self.entries, Link::Line)));
        waiting.into_iter().for_each(|index| throttled.push_back(&mut self.entries, Link::Line, index));
    }

    /// What holds jobs of a kind and a limit key, and until when. The time may be in the past.
    #[cfg(feature = "server")]
    pub(crate) fn held_until(&self, kind: crate::model::KindId, limit_key: &str) -> Option<(Limiter, Instant)> {
        let limited = &self.limits.kind_limiters[self.limits.kind_queue(kind).0];
        let key_limiter = self.limits.find(limited, limit_key);
        let of_key = key_limiter.and_then(|key_limiter| self.limits.key_limiters[key_limiter.0].used.held_until);
        match (limited.used.held_until, of_key) {
            (Some(of_kind), of_key) if Some(of_kind) >= of_key => Some((Limiter::Hold, of_kind)),
            (_, of_key) => Some((Limiter::KeyHold, of_key?)),
        }
    }

    /// Until when a queued job is held.
    pub(in super::super) fn job_held_until(
        &self,
        kind_queue: KindQueueId,
        at: Option<KeyLimiterId>,
    ) -> Option<Instant> {
        let of_key = at.and_then(|key_limiter| self.limits.key_limiters[key_limiter.0].used.held_until);
        self.limits.kind_limiters[kind_queue.0].used.held_until.max(of_key)
    }
}
