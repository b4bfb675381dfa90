//! The jobs that wait behind others of their ordering key, apart from those that are free to start.
//!
//! Blocked jobs pass nobody: they join the back of their queue when their turn in the line comes. And however many stand
//! in one line, it takes one worker at most. So what they count before an arrival is bounded by the lines, and the free
//! jobs must be known without them.

use super::{Host, backlogs::Backlogs, entry::Entry, queues::Queues, tenants::Share};
use crate::model::Criticality;

/// Of one class of one lane: the tenants that have blocked jobs. Where there are none, it is empty and costs nothing.
#[derive(Default)]
pub(super) struct Mixed {
    /// Blocked jobs, and what they count.
    jobs: usize,
    pub(super) blocked: f64,
    /// What all jobs of each such tenant count, and its free ones.
    all: Backlogs,
    free: Backlogs,
}

/// What all jobs of a tenant with blocked ones count, and its free ones.
#[derive(Clone, Copy)]
pub(super) struct Mix {
    all: f64,
    free: f64,
}

impl Mixed {
    #[cfg(test)]
    pub(super) fn tenants(&self) -> usize {
        self.all.tenants() + self.free.tenants()
    }

    /// What a tenant has queued changed.
    pub(super) fn change(&mut self, from: Option<Mix>, to: Option<Mix>) {
        if from.is_none() && to.is_none() {
            return;
        }
        let none = Mix { all: 0.0, free: 0.0 };
        let (from, to) = (from.unwrap_or(none), to.unwrap_or(none));
        self.all.change(from.all, to.all);
        self.free.change(from.free, to.free);
    }
}

impl Share {
    /// `None` where no job is blocked.
    pub(super) fn mix(&self) -> Option<Mix> {
        (self.blocked > 0).then(|| Mix { all: self.load, free: self.free_load() })
    }
}

impl Queues {
    /// The same as [`ahead`](Self::ahead), of the free jobs alone.
    pub(super) fn free_ahead(&self, lane: usize, class: Criticality, own: f64) -> f64 {
        let lanes = &self.lanes[4 * lane..];
        let above: f64 = lanes[..class.rank()].iter().map(|lane| (lane.load - lane.mixed.blocked).max(0.0)).sum();
        let lane = &lanes[class.rank()];
        // Never less than the truth: a bucket says of two parts no less than of each.
        let unmixed = lane.backlogs.up_to(own) - lane.mixed.all.up_to(own);
        above + unmixed.max(0.0) + lane.mixed.free.up_to(own)
    }

    /// A job that [entered](Self::enter) stands behind its ordering key.
    pub(super) fn block<H: Host>(&mut self, entry: &Entry<H>) {
        let Some(tenant) = entry.tenant else { return };
        let (slot, load) = (entry.slot(), entry.load());
        let (mixed, share) = (&mut self.lanes[slot].mixed, self.tenants.share_mut(tenant, slot));
        let before = share.mix();
        share.blocked += 1;
        share.blocked_load += load;
        mixed.jobs += 1;
        mixed.blocked += load;
        mixed.change(before, share.mix());
    }

    /// It does no more: it is free, or leaves.
    pub(super) fn unblock<H: Host>(&mut self, entry: &Entry<H>) {
        let Some(tenant) = entry.tenant else { return };
        let (slot, load) = (entry.slot(), entry.load());
        let (mixed, share) = (&mut self.lanes[slot].mixed, self.tenants.share_mut(tenant, slot));
        let before = share.mix();
        share.blocked -= 1;
        mixed.jobs -= 1;
        // Rounding does not outlive the last one.
        share.blocked_load = if share.blocked == 0 { 0.0 } else { (share.blocked_load - load).max(0.0) };
        mixed.blocked = if mixed.jobs == 0 { 0.0 } else { (mixed.blocked - load).max(0.0) };
        mixed.change(before, share.mix());
    }
}
