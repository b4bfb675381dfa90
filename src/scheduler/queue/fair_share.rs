//! The fair share of worker time between tenants.
//!
//! Fair sharing is start-time fair queueing. Each tenant has a tag, the worker time that it has used. The smallest tag
//! goes first: [`Queue::head`] takes it. A job is charged its kind's mean service time at its start, and the difference
//! at its end. Each charge advances the virtual time of its kind queue by the charge divided by the number of tenants.
//! A new or returning tenant starts at the virtual time, so that it cannot save up unused time.

use std::time::Duration;

use super::{Queue, nanos, tenant_of};
use crate::scheduler::Host;
use crate::scheduler::entry::{Entry, KindQueueId};

impl Queue {
    /// A ready job starts. Call this before it is [removed](Self::remove), and before its limits count it.
    pub(in crate::scheduler) fn start<H: Host>(&mut self, entry: &Entry<H>, is_open: impl Fn(KindQueueId) -> bool) {
        let (slot, tenant) = (entry.slot(), tenant_of(entry));
        self.note_start(entry.class.rank(), &is_open);
        let charge = nanos(entry.work);
        let (class, queue) = (&mut self.classes[entry.class.rank()], &mut self.slots[slot]);
        // A kind queue that is empty or at its limit keeps no claim to unused worker time.
        class.served = class.served.max(queue.tag);
        queue.tag = class.served + charge / queue.order.len().max(1) as u64;
        let flow = self.tenants.flow_mut(tenant, slot);
        queue.order.remove((flow.tag, flow.since, tenant));
        // The divisor is one more than the number of competing tenants, so that a new tenant goes before those that
        // were served.
        queue.clock = (queue.clock + charge / (queue.order.len() as u64 + 2)).max(flow.tag);
        flow.tag += charge;
        queue.top = queue.top.max(flow.tag);
        queue.position(flow, tenant);
        self.forget_idle(slot);
    }

    /// A job that was charged `charged` seconds took `took`.
    pub(in crate::scheduler) fn correct<H: Host>(&mut self, entry: &Entry<H>, took: Duration, charged: f64) {
        let Some(tenant) = entry.tenant else { return };
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 2);
        let queue = &mut self.slots[entry.slot()];
        let flow = self.tenants.flow_mut(tenant, entry.slot());
        let waits = queue.order.remove((flow.tag, flow.since, tenant));
        flow.tag = (flow.tag.saturating_add(took)).saturating_sub(nanos(charged));
        queue.top = queue.top.max(flow.tag);
        if waits {
            queue.position(flow, tenant);
        }
        self.forget_idle(entry.slot());
    }
}
