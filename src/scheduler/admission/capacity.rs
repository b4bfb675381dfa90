//! Decides which jobs fit in the queue, by number and bytes.
//!
//! A part of the queue is reserved for each more important class. A tenant may use only a multiple of the free part.
//! Both rules apply only if such a class, or another tenant, was seen within the last minute.

use std::hash::BuildHasher;

use rustc_hash::FxBuildHasher;

use super::super::{
    Core, Host,
    entry::{Amount, TenantId},
};
use crate::model::{Criticality, TenantPart};

/// Windows for which classes and tenants are remembered.
const REMEMBERED_WINDOWS: u64 = 600;
/// One `PARTS`-th of the queue is reserved for each more important class.
const PARTS: usize = 8;
/// A tenant may use this many times the free part (Choudhury and Hahne, Dynamic queue length thresholds, 1998). That is
/// three quarters of an otherwise empty queue, and less as other tenants fill it.
const TENANT_FACTOR: f64 = 3.0;

/// Recent arrivals.
#[derive(Default)]
pub(crate) struct Seen {
    /// Windows in which each class was last seen.
    classes: [Option<u64>; 4],
    /// Hash of the last tenant's name.
    tenant: Option<u64>,
    /// Window in which a job of another tenant followed.
    changed: Option<u64>,
}

impl Seen {
    pub(crate) fn note(&mut self, class: Criticality, tenant: &str, window: u64) {
        self.classes[class.rank()] = Some(window);
        let name = FxBuildHasher.hash_one(tenant);
        if self.tenant.replace(name).is_some_and(|last| last != name) {
            self.changed = Some(window);
        }
    }

    /// More important classes that were seen.
    fn above(&self, class: Criticality, window: u64) -> usize {
        self.classes[..class.rank()].iter().filter(|last| is_kept(**last, window)).count()
    }

    /// Whether several tenants were seen.
    fn mixes_tenants(&self, window: u64) -> bool {
        is_kept(self.changed, window)
    }
}

fn is_kept(last: Option<u64>, window: u64) -> bool {
    last.is_some_and(|last| window - last < REMEMBERED_WINDOWS)
}

impl<H: Host> Core<H> {
    /// Whether a job of `class` with `bytes` fits in the queue.
    pub(crate) fn has_capacity(&self, class: Criticality, bytes: usize) -> bool {
        self.has_capacity_without(Amount::default(), class, bytes)
    }

    /// Whether the job would fit if all jobs below `class` were evicted.
    pub(crate) fn can_evict_for(&self, class: Criticality, bytes: usize) -> bool {
        self.has_capacity_without(self.queue.evictable(class), class, bytes)
    }

    fn has_capacity_without(&self, gone: Amount, class: Criticality, bytes: usize) -> bool {
        let cap = self.capacity(class);
        let (jobs, held) = (self.queue.all.len() - gone.jobs, self.queue.bytes - gone.bytes);
        // A job in an empty queue takes no capacity from others.
        let max_bytes = if held == 0 { self.caps.bytes } else { cap.bytes };
        jobs < cap.jobs && bytes <= max_bytes.saturating_sub(held)
    }

    /// The part of the queue that `class` may fill.
    fn capacity(&self, class: Criticality) -> Amount {
        let above = self.admission.seen.above(class, self.admission.window);
        let of = |cap: usize| cap - cap / PARTS * above;
        Amount { jobs: of(self.caps.jobs), bytes: of(self.caps.bytes) }
    }

    /// The part of a tenant that has used it up; `None` if it may have `bytes` more. Jobs that are less important than
    /// `class` do not count, so that a tenant's batch does not block its urgent jobs. A tenant with nothing queued may
    /// always queue one job.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a multiple of a cap, not below zero")]
    pub(crate) fn over_part(&self, class: Criticality, tenant: Option<TenantId>, bytes: usize) -> Option<TenantPart> {
        let share = self.caps.tenant_share;
        let own = self.queue.tenants.queued_of(tenant?, class);
        if own.jobs == 0 {
            return None;
        }
        let part = |most_jobs, most_bytes| TenantPart { jobs: own.jobs, bytes: own.bytes, most_jobs, most_bytes };
        if self.queue.tenants.queueing() > 1 {
            let cap = self.tenant_cap();
            if own.jobs >= cap.jobs || own.bytes.saturating_add(bytes) > cap.bytes {
                return Some(part(cap.jobs, cap.bytes));
            }
        }
        if share >= 1.0 || !self.admission.seen.mixes_tenants(self.admission.window) {
            return None;
        }
        let times = TENANT_FACTOR.max(share / (1.0 - share));
        let cap = self.capacity(class);
        let free = |cap: usize, held: usize| times * cap.saturating_sub(held) as f64;
        let (free_jobs, free_bytes) = (free(cap.jobs, self.queue.all.len()), free(cap.bytes, self.queue.bytes));
        // If the queue is full, the refusal names that reason instead.
        let is_over = (free_jobs > 0.0 && own.jobs as f64 >= free_jobs)
            || (free_bytes > 0.0 && own.bytes as f64 + bytes as f64 > free_bytes);
        is_over.then(|| part(free_jobs as usize, free_bytes as usize))
    }

    /// Maximum part of the queue for one tenant while another one queues.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a cap, not below zero")]
    fn tenant_cap(&self) -> Amount {
        let part = |cap: usize| (cap as f64 * self.caps.tenant_share) as usize;
        Amount { jobs: part(self.caps.jobs).max(1), bytes: part(self.caps.bytes) }
    }

    /// Whether queueing a job leaves enough bytes for the first callers before it.
    ///
    /// While the queue has free places, callers wait for bytes, for time, or for their tenant's part. Only those that
    /// wait for bytes block others.
    pub(crate) fn leaves_bytes_for_callers(&self, class: Criticality, bytes: usize) -> bool {
        let needed = self.queue.waiting.ahead_of(class).map(|index| self.entries[index].bytes);
        needed.fold(bytes, usize::saturating_add) <= self.caps.bytes.saturating_sub(self.queue.bytes)
    }
}
