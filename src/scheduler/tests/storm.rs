//! Tests with many jobs: no capacity, worker or limit key is lost.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{Arrival, Caps, Core, Verdict, Withdrawal},
    Answer, Event, Numbers, Offer,
    drive::Drive,
};
use crate::model::{Criticality, KindLimits, Limit, Outcome, WhenFull};

const CANCELS: u32 = 10_000;
const JOBS: u32 = 100_000;

/// Random cancels hit queued, waiting and running jobs.
#[test]
fn many_random_cancels_lose_no_capacity_and_no_worker() {
    let caps = Caps { jobs: 16, bytes: 64, waiting: 8, tenant_share: 1.0, stuck: 0 };
    let mut drive = Drive::new(caps, Default::default(), 4, 2);
    let mut dice = 7u64;
    let mut roll = |sides: u64| {
        // Knuth's constants for a 64-bit linear congruential generator. Only the upper half is used.
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let apply = |drive: &mut Drive, event| drive.apply(event).unwrap_or_else(|fault| panic!("{event:?}: {fault}"));
    let (mut offered, mut cancelled, mut accepted) = (0u32, 0, 0);
    while cancelled < CANCELS {
        let offer = Offer {
            class: Criticality::BY_IMPORTANCE[roll(4) as usize],
            kind: 0,
            bytes: roll(9) as usize,
            patience: 60_000,
            spare: 0,
            tenant: 0,
            key: roll(4) as u8,
            limit_key: 0,
            when_full: WhenFull::Wait,
            shard: roll(2) as usize,
        };
        let step = apply(&mut drive, Event::Offer(offer));
        let refused = matches!(step.answer, Answer::Refused(_));
        offered += 1;
        accepted += u32::from(!refused);
        // Usually a random queued or waiting job is cancelled, possibly the new one.
        let view = drive.view();
        let here = [&view.queued[..], &view.waiting].concat();
        if !here.is_empty() && (refused || roll(3) > 0) {
            let job = here[roll(here.len() as u64) as usize];
            apply(&mut drive, Event::Withdraw { job, why: Withdrawal::Cancelled });
            cancelled += 1;
        }
        let running: Vec<u32> = drive.view().running.iter().map(|run| run.0).collect();
        if roll(4) == 0 && !running.is_empty() {
            let job = running[roll(running.len() as u64) as usize];
            apply(&mut drive, Event::End { job, outcome: Outcome::Cancelled, run: Duration::ZERO });
            apply(&mut drive, Event::Release { job });
            cancelled += 1;
        }
    }
    drive.run_dry().expect("no job is left");
    let view = drive.view();
    assert_eq!((view.queued_bytes, view.live, view.unreplaced), (0, 4, 0));
    assert_eq!(view.counts.ended(), view.counts.accepted);
    assert!(accepted > CANCELS / 2 && offered > accepted, "{accepted} of {offered} were accepted");
}

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
