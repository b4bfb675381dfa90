use std::time::Duration;

use super::{
    super::{Caps, Ending, Law, Withdrawal},
    Answer, Event, Offer,
    drive::Drive,
};
use crate::model::{Criticality, WhenFull};

const CANCELS: u32 = 10_000;

/// Cancels hit queued, waiting and running jobs at random; in the end each permit and each worker is back.
#[test]
fn every_permit_comes_back_after_a_storm_of_cancels() {
    let caps = Caps { jobs: 16, bytes: 64, waiting: 8, tenant_share: 1.0, stuck: 0 };
    let mut drive = Drive::new(caps, Law::default(), Default::default(), 4, 2);
    let mut dice = 7u64;
    let mut roll = |sides: u64| {
        // Knuth's constants for a linear congruential generator of 64 bits; its upper half is random enough.
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
            home: roll(2) as usize,
        };
        let step = apply(&mut drive, Event::Offer(offer));
        let refused = matches!(step.answer, Answer::Refused(_));
        offered += 1;
        accepted += u32::from(!refused);
        // One in three of those that are there goes, the new one as likely as any.
        let model = &drive.model;
        let here: Vec<u32> = model.queued.iter().chain(&model.waiting).map(|job| job.job).collect();
        if !here.is_empty() && (refused || roll(3) > 0) {
            let job = here[roll(here.len() as u64) as usize];
            apply(&mut drive, Event::Withdraw { job, why: Withdrawal::Cancelled });
            cancelled += 1;
        }
        let running: Vec<u32> = drive.model.running.iter().map(|run| run.job.job).collect();
        if roll(4) == 0 && !running.is_empty() {
            let job = running[roll(running.len() as u64) as usize];
            apply(&mut drive, Event::End { job, ending: Ending::Cancelled, run: Duration::ZERO });
            apply(&mut drive, Event::Release { job });
            cancelled += 1;
        }
    }
    drive.run_dry().expect("everything comes back");
    let view = drive.view();
    assert_eq!((view.queued_bytes, view.live, view.unreplaced), (0, 4, 0));
    assert_eq!(view.counts.ended(), view.counts.accepted);
    assert!(accepted > CANCELS / 2 && offered > accepted, "{accepted} of {offered} got in");
}
