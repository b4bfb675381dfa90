//! Limit keys are removed when nothing uses them.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{Arrival, Caps, Core, Verdict},
    Numbers,
};
use crate::model::{Criticality, KindLimits, Limit, Outcome, WhenFull};

const JOBS: u32 = 100_000;

/// Jobs of many tenants and limit keys in a pool that never queues.
#[test]
fn unused_limit_keys_are_forgotten() {
    let caps = Caps { jobs: 16, bytes: 64, waiting: 8, tenant_share: 1.0, stuck: 0 };
    let (now, mut core) = (Instant::now(), Core::<Numbers>::new(caps, 1, 1));
    let none = Limit { concurrency: None, rate: None };
    let per_key = Limit { concurrency: Some(std::num::NonZeroU32::MIN), rate: None };
    let limits = KindLimits { all: none, per_key, keys: 100 };
    core.reconfigure(now, caps, &[limits], &mut Vec::new());
    core.add_worker(now, 0, &mut Vec::new());
    for job in 0..JOBS {
        let (tenant, limit_key) = ((job % 1_000).to_string(), (job % 150).to_string());
        let arrival = Arrival {
            job,
            kind: 0,
            class: Criticality::Critical,
            bytes: 1,
            start_by: now + Duration::from_secs(1),
            finish_by: now + Duration::from_secs(1),
            tenant: &tenant,
            ordering_key: "",
            limit_key: &limit_key,
            when_full: WhenFull::Reject,
            shard: 0,
        };
        let verdict = core.offer(now, arrival, |_| job, &mut Vec::new());
        let Verdict::Start(grant) = verdict else { panic!("the worker is idle") };
        core.end(now, grant.key, Outcome::Completed, Duration::from_micros(10));
        core.release(now, grant.key, grant.state, &mut Vec::new());
        if job % 1_000 == 0 {
            core.assert_invariants();
        }
    }
    core.assert_invariants();
    assert_eq!(core.limits.uses(|_| 0)[0].1.keys, 0, "no key is remembered");
}
