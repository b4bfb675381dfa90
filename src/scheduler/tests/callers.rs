//! Tests of callers that wait for capacity.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{Arrival, Caps, Core, Verdict},
    Answer, Event, Numbers, Offer,
    drive::Drive,
};
use crate::model::{Criticality, Outcome, WhenFull};

/// Some rules for waiting callers need many of them.
const CAPS: Caps = Caps { jobs: 20, bytes: 1 << 20, waiting: 1000, tenant_share: 0.25, stuck: 0 };

fn offer(tenant: u8) -> Offer {
    Offer {
        class: Criticality::Critical,
        kind: 0,
        bytes: 1,
        patience: 600_000,
        spare: 0,
        tenant,
        key: 0,
        limit_key: 0,
        when_full: WhenFull::Wait,
        shard: 0,
    }
}

#[test]
fn callers_of_a_tenant_at_its_part_block_no_other_tenant() {
    let mut drive = Drive::new(CAPS, Default::default(), 1, 1);
    let mut apply = |event| drive.apply(event).unwrap_or_else(|fault| panic!("{event:?}: {fault}"));
    apply(Event::Offer(offer(2)));
    apply(Event::Offer(offer(2)));
    let flood = (0..200).filter(|_| matches!(apply(Event::Offer(offer(1))).answer, Answer::Waiting)).count();
    assert!(flood > 150, "only {flood} callers of the flood wait");
    // Jobs 202 to 213: some are queued at once, and the others wait behind all callers of the flood.
    let light = 202..214;
    let waiting = light.clone().filter(|_| matches!(apply(Event::Offer(offer(2))).answer, Answer::Waiting)).count();
    assert!(waiting > 4, "only {waiting} callers wait");
    let (mut running, mut left, mut ends) = (0, light.clone().count(), 0);
    while left > 0 {
        apply(Event::End { job: running, outcome: Outcome::Completed, run: Duration::from_millis(50) });
        let notifications = apply(Event::Release { job: running }).notifications;
        let started: Vec<u32> = notifications
            .iter()
            .map(|notification| match notification {
                super::Notification::Start { job, .. } => *job,
                other => panic!("{other:?}"),
            })
            .collect();
        let [next] = started[..] else { panic!("one worker starts one job") };
        running = next;
        left -= usize::from(light.contains(&running));
        ends += 1;
    }
    assert!(ends < 40, "the two tenants must alternate, but the last of 12 jobs is the {ends}th to start");
}

const PATIENT: Duration = Duration::from_secs(600);
const HASTY: Duration = Duration::from_secs(2);

/// A scheduler with one worker and a queue for one job.
struct Machine {
    core: Core<Numbers>,
    now: Instant,
    jobs: u32,
}

impl Machine {
    fn offer(&mut self, tenant: &str, patience: Duration) -> Verdict<Numbers> {
        self.jobs += 1;
        let job = self.jobs;
        let arrival = Arrival {
            job,
            kind: 0,
            class: Criticality::Critical,
            bytes: 1,
            start_by: self.now + patience,
            finish_by: self.now + patience,
            tenant,
            ordering_key: "",
            limit_key: "",
            when_full: WhenFull::Wait,
            shard: 0,
        };
        let verdict = self.core.offer(self.now, arrival, |_| job, &mut Vec::new());
        self.core.assert_invariants();
        verdict
    }

    /// A scheduler with a full queue, and one waiting caller of each of `tenants` tenants. They give up after 2 s.
    fn with_callers(tenants: u32) -> Self {
        let now = Instant::now();
        let mut machine = Self { core: Core::new(Caps { jobs: 1, ..CAPS }, 1, 1), now, jobs: 0 };
        machine.core.add_worker(now, 0, &mut Vec::new());
        let Verdict::Start(grant) = machine.offer("first", PATIENT) else { panic!("a worker is idle") };
        machine.core.end(now, grant.key, Outcome::Completed, Duration::from_millis(1));
        machine.core.release(now, grant.key, grant.state, &mut Vec::new());
        assert!(matches!(machine.offer("first", PATIENT), Verdict::Start(_)));
        assert!(matches!(machine.offer("first", PATIENT), Verdict::Queued(_)));
        for tenant in 0..tenants {
            let verdict = machine.offer(&format!("hasty {tenant}"), HASTY);
            assert!(matches!(verdict, Verdict::Waiting(_)), "the queue is full");
        }
        machine
    }

    /// Frees the queue when the callers have too little time left to use it.
    fn make_place_too_late(&mut self) {
        let waiting = self.core.waiting();
        self.now += HASTY - Duration::from_micros(500);
        self.core.cancel(self.now, |job| *job == 3, &mut Vec::new());
        assert_eq!((self.core.load().queued, self.core.waiting()), (0, waiting));
    }
}

#[test]
fn tenants_whose_callers_gave_up_are_forgotten() {
    let mut machine = Machine::with_callers(50);
    machine.make_place_too_late();
    machine.now += Duration::from_millis(100);
    let mut effects = Vec::new();
    machine.core.tick(machine.now, &mut effects);
    machine.core.assert_invariants();
    assert_eq!((effects.len(), machine.core.waiting()), (50, 0), "all callers gave up");
}
