//! The first step of a job's life: bounds the bytes of jobs on their way into the store, and shares them among tenants.
//! The more is on its way, the less each tenant may add, so that others find room (Choudhury and Hahne, "Dynamic queue
//! length thresholds for shared-memory packet switches", 1998).

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::store::NewJob;

/// Maximum bytes of all jobs on their way. A payload may exceed it if the tenant has no other job on its way. A job
/// waits until what is before it is written: with 16 MiB, small jobs waited a third longer beside a tenant with large
/// ones, and with 64 MiB five times as long.
const TOTAL: usize = 8 << 20;
/// Bytes that a job counts in addition to its payload and its labels.
const ENVELOPE: usize = 2 << 10;

#[derive(Debug, Default)]
pub(super) struct Intake(Mutex<IntakeBytes>);

/// Bytes of the jobs on their way.
#[derive(Debug, Default)]
struct IntakeBytes {
    all: usize,
    tenants: HashMap<String, usize>,
}

/// The bytes of one job, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    intake: Arc<Intake>,
    tenant: String,
    bytes: usize,
}

impl Intake {
    /// Counts a job, or returns `None` if it has no room.
    pub(super) fn count(self: &Arc<Self>, job: &NewJob) -> Option<Counted> {
        let labels: usize = job.job.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        let (tenant, bytes) = (job.job.tenant.clone(), job.job.payload.len() + labels + ENVELOPE);
        let mut waiting = self.0.lock();
        let own = waiting.tenants.get(&tenant).copied().unwrap_or_default();
        let fits = own + bytes <= TOTAL.saturating_sub(waiting.all + bytes) || own == 0 && waiting.all <= TOTAL / 2;
        if !fits {
            return None;
        }
        waiting.all += bytes;
        *waiting.tenants.entry(tenant.clone()).or_default() += bytes;
        Some(Counted { intake: Arc::clone(self), tenant, bytes })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut waiting = self.intake.0.lock();
        waiting.all -= self.bytes;
        if let Some(own) = waiting.tenants.get_mut(&self.tenant) {
            *own -= self.bytes;
            if *own == 0 {
                waiting.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Job;

    fn job(tenant: &str, bytes: usize) -> NewJob {
        NewJob::new("a", "p", Job::new("k", vec![0; bytes]).tenant(tenant))
    }

    /// Counts as many jobs as fit.
    fn fill(intake: &Arc<Intake>, tenant: &str, bytes: usize) -> Vec<Counted> {
        std::iter::from_fn(|| intake.count(&job(tenant, bytes))).collect()
    }

    #[test]
    fn one_tenant_leaves_room_for_others_and_all_together_stay_within_the_bound() {
        let intake = Arc::<Intake>::default();
        let first = fill(&intake, "a", 1 << 20);
        assert_eq!(first.len(), 3, "half of the bound");
        let second = fill(&intake, "b", 1 << 20);
        assert_eq!(second.len(), 2, "half of the rest");
        let small: Vec<_> = (0..100_000).filter_map(|number| intake.count(&job(&number.to_string(), 0))).collect();
        assert!(small.len() > 500, "{}", small.len());
        assert!(intake.0.lock().all <= TOTAL, "{:?}", intake.0.lock().all);
        drop((first, second, small));
        let waiting = intake.0.lock();
        assert_eq!((waiting.all, waiting.tenants.len()), (0, 0));
    }

    #[test]
    fn labels_count_as_a_payload_does() {
        let intake = Arc::<Intake>::default();
        let label = |number: u32| (number.to_string(), "x".repeat(1 << 10));
        let mut labelled = job("a", 0);
        labelled.job.labels = (0..62).map(label).collect();
        let counted = intake.count(&labelled).expect("room");
        assert!(counted.bytes > 62 << 10, "{}", counted.bytes);
    }

    #[test]
    fn a_payload_larger_than_the_bound_goes_alone() {
        let intake = Arc::<Intake>::default();
        let large = intake.count(&job("a", TOTAL + 1));
        assert!(large.is_some() && intake.count(&job("a", 0)).is_none() && intake.count(&job("b", 0)).is_none());
        drop(large);
        assert!(intake.count(&job("b", 0)).is_some());
    }
}
