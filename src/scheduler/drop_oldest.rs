//! Replaces stale jobs by newer ones: [`WhenFull::DropOldest`](crate::model::WhenFull::DropOldest).
//!
//! An arrival replaces only jobs that its own tenant sent with the same policy and class, so that no caller loses a job
//! to another one. If its ordering key or its limit key is in use, it replaces only jobs of the same key.

use tokio::time::Instant;

use super::{
    Arrival, Core, Effect, Host,
    entry::{Entry, Names},
};
use crate::model::Outcome;

/// Queued jobs that are looked at. The expected wait keeps queues shorter.
const MAX_SEEN: usize = 1024;

impl<H: Host> Core<H> {
    /// Ends the oldest jobs that the arrival may replace, until it can be queued. Ends none if it could not be queued
    /// even without them.
    pub(super) fn drop_oldest(&mut self, now: Instant, arrival: &Arrival<'_, H::Job>, effects: &mut Vec<Effect<H>>) {
        if !self.could_be_queued_alone(now, &self.candidate(arrival)) {
            return;
        }
        while !self.can_be_queued(now, arrival)
            && let Some(oldest) = self.oldest_to_replace(arrival)
        {
            self.end_queued(oldest, Outcome::Replaced, None, effects);
        }
    }

    fn can_be_queued(&self, now: Instant, arrival: &Arrival<'_, H::Job>) -> bool {
        let Arrival { class, bytes, .. } = *arrival;
        let candidate = self.candidate(arrival);
        self.has_capacity(class, bytes)
            && self.leaves_bytes_for_callers(class, bytes)
            && self.over_its_part(now, &candidate).is_none()
            && self.judge(now, &candidate).is_ok()
    }

    fn oldest_to_replace(&self, arrival: &Arrival<'_, H::Job>) -> Option<usize> {
        let tenant = Some(self.queue.tenants.find(arrival.tenant)?);
        let kind_queue = self.limits.kind_queue(arrival.kind);
        let key_queue = self.queue.keys.find(Names::of(arrival));
        let key_limiter = self.limits.behind(kind_queue, arrival.limit_key, true).map(|(key_limiter, _)| key_limiter);
        let is_stale = |index: &usize| {
            let entry: &Entry<H> = &self.entries[*index];
            entry.is_replaceable
                && entry.tenant == tenant
                && entry.kind_queue == kind_queue
                && (key_queue.is_none() || entry.key_queue == key_queue)
                && (key_limiter.is_none() || entry.key_limiter == key_limiter)
        };
        self.queue.of_class(&self.entries, arrival.class).take(MAX_SEEN).find(is_stale)
    }
}
