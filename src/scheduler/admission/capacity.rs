//! Which jobs may have a place in the queue, as far as places and bytes go.
//!
//! A part of the queue is kept for each class that is more important, and a tenant may have but a multiple of what is left
//! free; each once such a class, or another tenant, was there within a minute.

use std::hash::BuildHasher;

use rustc_hash::FxBuildHasher;

use super::super::{Core, Host, ids::TenantId};
use crate::model::{Criticality, TenantPart};

/// Windows for which classes and tenants are remembered.
const KEPT: u64 = 600;
/// Of the queue, one part in so many is kept for each class that is more important.
const PARTS: usize = 8;
/// A tenant may have so many times what is free: three quarters of the queue where it is alone, and less the more of them
/// ask for much (Choudhury and Hahne, Dynamic queue length thresholds, 1998).
const TIMES: f64 = 3.0;

/// Who asked for room of late.
#[derive(Default)]
pub(crate) struct Seen {
    /// Windows in which a class was last there.
    classes: [Option<u64>; 4],
    /// Hash of the name of the tenant that was last there, and the window in which it was last another.
    tenant: Option<u64>,
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

    /// More important classes that were there.
    fn above(&self, class: Criticality, window: u64) -> usize {
        self.classes[..class.rank()].iter().filter(|last| is_kept(**last, window)).count()
    }

    /// Whether there was more than one tenant.
    fn mixes_tenants(&self, window: u64) -> bool {
        is_kept(self.changed, window)
    }
}

fn is_kept(last: Option<u64>, window: u64) -> bool {
    last.is_some_and(|last| window - last < KEPT)
}

impl<H: Host> Core<H> {
    /// Whether a job of `class` may have a place in the queue, and `bytes` more.
    pub(crate) fn has_capacity(&self, class: Criticality, bytes: usize) -> bool {
        let (jobs, most) = self.capacity(class);
        // A job that has the queue alone takes nothing from others.
        let most = if self.queue.bytes == 0 { self.caps.bytes } else { most };
        self.queue.all.len() < jobs && bytes <= most.saturating_sub(self.queue.bytes)
    }

    /// Jobs and bytes up to which the queue may be filled by `class`.
    pub(crate) fn capacity(&self, class: Criticality) -> (usize, usize) {
        let above = self.admission.seen.above(class, self.admission.window);
        let of = |cap: usize| cap - cap / PARTS * above;
        (of(self.caps.jobs), of(self.caps.bytes))
    }

    /// What a tenant has of the queue, not counting what is less important than `class`: its own batch keeps none of its
    /// urgent jobs out. `None` where it may have `bytes` more; one with nothing queued may always queue one job.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a multiple of a cap, not below zero")]
    pub(crate) fn over_part(&self, class: Criticality, tenant: Option<TenantId>, bytes: usize) -> Option<TenantPart> {
        let share = self.caps.tenant_share;
        let (own_jobs, own_bytes) = self.queue.tenants.queued_of(tenant?, class);
        let part = |most_jobs, most_bytes| TenantPart { jobs: own_jobs, bytes: own_bytes, most_jobs, most_bytes };
        if own_jobs == 0 {
            return None;
        }
        if self.queue.tenants.queueing() > 1 {
            let (jobs, most) = self.tenant_cap();
            if own_jobs >= jobs || own_bytes.saturating_add(bytes) > most {
                return Some(part(jobs, most));
            }
        }
        if share >= 1.0 || !self.admission.seen.mixes_tenants(self.admission.window) {
            return None;
        }
        let times = TIMES.max(share / (1.0 - share));
        let (jobs, most) = self.capacity(class);
        let free = |cap: usize, held: usize| times * cap.saturating_sub(held) as f64;
        let (free_jobs, free_bytes) = (free(jobs, self.queue.all.len()), free(most, self.queue.bytes));
        // Where nothing is free, that is what a caller is told.
        let is_over = (free_jobs > 0.0 && own_jobs as f64 >= free_jobs)
            || (free_bytes > 0.0 && own_bytes as f64 + bytes as f64 > free_bytes);
        is_over.then(|| part(free_jobs as usize, free_bytes as usize))
    }

    /// Most jobs and bytes of the queue for one tenant while another one queues.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a cap, not below zero")]
    fn tenant_cap(&self) -> (usize, usize) {
        let part = |cap: usize| (cap as f64 * self.caps.tenant_share) as usize;
        (part(self.caps.jobs).max(1), part(self.caps.bytes))
    }

    /// Whether evicting jobs below `class` would make room for one of it.
    pub(crate) fn can_evict_for(&self, class: Criticality, bytes: usize) -> bool {
        let ((less_bytes, less), (jobs, most)) = (self.queue.evictable(class), self.capacity(class));
        let held = self.queue.bytes - less_bytes;
        let most = if held == 0 { self.caps.bytes } else { most };
        self.queue.all.len() - less < jobs && bytes <= most.saturating_sub(held)
    }

    /// Whether a job that is queued leaves the bytes for the first callers that wait before it. Where there are places,
    /// callers wait for bytes; or for their time or their tenant's part, which hold up no others.
    pub(crate) fn leaves_room_for_callers(&self, class: Criticality, bytes: usize) -> bool {
        let needed = self.queue.waiting.ahead_of(class).map(|index| self.entries[index].bytes);
        needed.fold(bytes, usize::saturating_add) <= self.caps.bytes.saturating_sub(self.queue.bytes)
    }
}
