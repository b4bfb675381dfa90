//! Applies random events to the scheduler, and checks the invariants after each.

use std::{
    cell::{Cell, RefCell},
    num::NonZeroU32,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use proptest::{
    collection::vec,
    prelude::{Strategy, any},
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};

use super::{
    super::{Caps, Withdrawal},
    Event, Offer,
    drive::{Drive, KINDS, KindsLimits},
    is_thorough, sample,
    tally::EventTally,
};
use crate::model::{Criticality, KindLimits, Limit, Limiter, Outcome, Rate, Share, WhenFull};

const SEED: [u8; 32] = *b"waterwheel: the heart, step by s";
const CASES: u32 = 1400;
const EVENTS: usize = 220;
/// Four of seven jobs are of one class.
const CLASSES: [Criticality; 7] = {
    use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};
    [Critical, Critical, Critical, Critical, CriticalPlus, Sheddable, SheddablePlus]
};

/// The pool of a case.
#[derive(Debug, Clone, Copy)]
struct Shape {
    caps: Caps,
    limits: KindsLimits,
    workers: usize,
    shards: usize,
}

/// An event that is drawn before its job is known. `pick` selects one of the possible jobs, modulo their number: with
/// `Any` from all jobs that were not refused, even ended ones, and with `Here` from queued and waiting ones.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Fixed(Event),
    End { pick: usize, outcome: Outcome, run: Duration },
    Release { pick: usize },
    Finish { pick: usize, outcome: Outcome, run: Duration },
    Withdraw { pick: usize, why: Withdrawal },
    WithdrawAny { pick: usize, why: Withdrawal },
    EndAny { pick: usize },
    Stick { pick: usize },
    Hold { pick: usize, scope: Limiter, time: Duration },
    StickAny { pick: usize },
    CancelAny { pick: usize },
    CancelHere { pick: usize },
}

/// Draws all values of a pool or an event from one number. With a proptest strategy for each field, most of the test's
/// time would go into drawing.
struct Dice(u64);

impl Dice {
    /// A number below `sides`, from the generator SplitMix64.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).expect("less than a usize")
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// The index of a weight, with a chance in proportion to the weight.
    fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut left = self.roll(weights.iter().sum());
        let hit = |weight: &usize| {
            let hit = left < *weight;
            left = left.saturating_sub(*weight);
            hit
        };
        weights.iter().position(hit).expect("less than the sum")
    }

    fn millis(&mut self, below: usize) -> Duration {
        Duration::from_millis(self.roll(below) as u64)
    }

    fn shape(&mut self) -> Shape {
        let caps = Caps {
            jobs: if self.roll(4) == 0 { 8 + self.roll(17) } else { self.roll(7) },
            bytes: if self.roll(2) == 0 { self.roll(13) } else { 12 + self.roll(29) },
            waiting: self.one(&[0, 1, 2, 4, 8]),
            tenant_share: self.one(&[0.0, 0.34, 0.5, 1.0]),
            stuck: self.roll(3),
        };
        let mut limits = || if self.roll(3) == 0 { KindLimits::default() } else { self.limits() };
        let limits = match limits() {
            free if !free.is_set() => [free; KINDS],
            some => [some, limits()],
        };
        Shape { caps, limits, workers: 1 + self.roll(4), shards: 1 + self.roll(3) }
    }

    fn limits(&mut self) -> KindLimits {
        let share = self.one(&[Share::Each, Share::Divide]);
        KindLimits { all: self.limit(), per_key: self.limit(), keys: 100, share }
    }

    fn limit(&mut self) -> Limit {
        // Not whole milliseconds, so that no interval equals a deadline.
        let rate = |dice: &mut Self| Rate {
            interval: dice.one(&[5, 40, 40, 300].map(Duration::from_millis)) + Duration::from_nanos(1_009),
            burst: dice.one(&[1, 1, 2, 3].map(|burst| NonZeroU32::new(burst).expect("some"))),
        };
        let concurrency = NonZeroU32::new(self.one(&[0, 0, 1, 2]));
        Limit { concurrency, rate: (self.roll(3) == 0).then(|| rate(self)) }
    }

    fn offer(&mut self) -> Offer {
        let patience = match self.weighted(&[1, 7, 4, 5]) {
            0 => -(self.roll(4) as i64),
            1 => 1 + self.roll(12) as i64,
            2 => 13 + self.roll(140) as i64,
            _ => 5000,
        };
        Offer {
            class: self.one(&CLASSES),
            kind: self.roll(KINDS),
            bytes: self.roll(9),
            patience,
            spare: self.one(&[0, 0, 0, 3, 40]),
            tenant: self.one(&[0, 0, 0, 0, 1, 2, 3]),
            key: self.one(&[0, 0, 0, 1, 2, 3]),
            limit_key: self.one(&[0, 0, 1, 2, 3]),
            when_full: self.one(&[
                WhenFull::Reject,
                WhenFull::Wait,
                WhenFull::Wait,
                WhenFull::Shed,
                WhenFull::DropOldest,
            ]),
            is_stored: false,
            shard: self.roll(3),
        }
    }

    fn end(&mut self) -> (Outcome, Duration) {
        let outcome = self.one(&[
            Outcome::HandlerFailed,
            Outcome::Cancelled,
            Outcome::DeadlineExceeded,
            Outcome::DeadlineExceeded,
            Outcome::RunTimeout,
            Outcome::HandlerPanicked,
            Outcome::HandlerUnavailable,
        ]);
        let outcome = if self.roll(2) == 0 { Outcome::Completed } else { outcome };
        let below = self.one(&[3, 3, 3, 60]);
        // Not whole milliseconds, unlike deadlines, so that no estimate equals a budget.
        (outcome, self.millis(below) + Duration::from_nanos(123_457))
    }

    fn choice(&mut self) -> Choice {
        let pick = self.roll(1 << 16);
        let why = self.one(&[Withdrawal::Cancelled, Withdrawal::Expired]);
        let (outcome, run) = self.end();
        match self.weighted(&[300, 30, 50, 110, 40, 10, 8, 12, 3, 80, 2, 8, 6, 30, 2, 20, 3, 12, 12, 5, 40]) {
            0 => Choice::Fixed(Event::Offer(self.offer())),
            1 => Choice::End { pick, outcome, run },
            2 => Choice::Release { pick },
            3 => Choice::Finish { pick, outcome, run },
            4 => Choice::Withdraw { pick, why },
            5 => Choice::WithdrawAny { pick, why },
            6 => Choice::EndAny { pick },
            7 => Choice::Stick { pick },
            8 => Choice::StickAny { pick },
            9 => Choice::Fixed(Event::Pass { by: self.millis(12) }),
            10 => Choice::Fixed(Event::AddWorker),
            11 => {
                let min = 1 + self.roll(5);
                Choice::Fixed(Event::Resize { min, max: min + self.roll(3) })
            }
            12 => Choice::Fixed(Event::Pause),
            13 => Choice::Fixed(Event::Resume),
            14 => Choice::Fixed(Event::Shut),
            15 => Choice::Fixed(Event::Open),
            16 => Choice::CancelAny { pick },
            17 => Choice::CancelHere { pick },
            18 => {
                let scope = self.one(&[Limiter::Hold, Limiter::KeyHold, Limiter::KeyHold]);
                Choice::Hold { pick, scope, time: self.millis(60) }
            }
            19 => Choice::Fixed(Event::Divide { servers: self.one(&[1, 2, 5]) }),
            _ => Choice::Fixed(Event::Tick),
        }
    }

    /// An event of a closed pool. Only a closed pool may end its queued jobs or remove its idle workers.
    fn closing_event(&mut self) -> Choice {
        match self.weighted(&[1, 2, 1, 16]) {
            0 => Choice::Fixed(Event::Close),
            1 => Choice::Fixed(Event::Abandon),
            2 => Choice::Fixed(Event::Retire),
            _ => self.choice(),
        }
    }
}

/// A pool and its events. Most cases close the pool before the last events.
fn cases() -> impl Strategy<Value = (Shape, Vec<Choice>)> {
    let dice = || any::<u64>().no_shrink();
    (dice(), vec(dice(), 1..EVENTS), vec(dice(), 0..25)).prop_map(|(shape, life, end)| {
        let mut choices: Vec<Choice> = life.into_iter().map(|seed| Dice(seed).choice()).collect();
        if !end.is_empty() {
            choices.push(Choice::Fixed(Event::Close));
        }
        choices.extend(end.into_iter().map(|seed| Dice(seed).closing_event()));
        (Dice(shape).shape(), choices)
    })
}

impl Choice {
    /// The events for the current state of `drive`.
    fn resolve(self, drive: &Drive) -> Vec<Event> {
        let view = drive.view();
        let running: Vec<u32> = view.running.iter().map(|run| run.0).collect();
        let some = |jobs: &[u32], pick: usize| (!jobs.is_empty()).then(|| jobs[pick % jobs.len()]);
        let one = |jobs: &[u32], pick: usize, event: &dyn Fn(u32) -> Vec<Event>| {
            some(jobs, pick).map(event).unwrap_or_default()
        };
        match self {
            Self::Fixed(event) => vec![event],
            Self::End { pick, outcome, run } => one(&running, pick, &|job| vec![Event::End { job, outcome, run }]),
            Self::Release { pick } => one(&running, pick, &|job| vec![Event::Release { job }]),
            Self::Finish { pick, outcome, run } => {
                one(&running, pick, &|job| vec![Event::End { job, outcome, run }, Event::Release { job }])
            }
            Self::Withdraw { pick, why } => {
                let here = [&view.queued[..], &view.waiting].concat();
                one(&here, pick, &|job| vec![Event::Withdraw { job, why }])
            }
            Self::WithdrawAny { pick, why } => one(&drive.keyed(), pick, &|job| vec![Event::Withdraw { job, why }]),
            Self::EndAny { pick } => one(&drive.keyed(), pick, &|job| {
                vec![Event::End { job, outcome: Outcome::Completed, run: Duration::from_micros(777) }]
            }),
            Self::Hold { pick, scope, time } => one(&running, pick, &|job| vec![Event::Hold { job, scope, time }]),
            Self::Stick { pick } => one(&running, pick, &|job| vec![Event::Stick { job }]),
            Self::CancelAny { pick } => one(&drive.keyed(), pick, &|job| vec![Event::Cancel { job }]),
            Self::CancelHere { pick } => {
                let here = [&view.waiting[..], &view.queued].concat();
                one(&here, pick, &|job| vec![Event::Cancel { job }])
            }
            Self::StickAny { pick } => one(&drive.keyed(), pick, &|job| vec![Event::Stick { job }]),
        }
    }
}

/// Runs one case. Each event is added to `events` before it is applied.
fn run_case(shape: Shape, choices: &[Choice], tally: &mut EventTally, events: &mut Vec<Event>) -> Result<u64, String> {
    let mut drive = Drive::new(shape.caps, shape.limits, shape.workers, shape.shards);
    for choice in choices {
        for event in choice.resolve(&drive) {
            events.push(event);
            let is_undecided = |job| drive.view().running.iter().any(|run| run.0 == job && !run.2);
            if matches!(event, Event::Release { job } if is_undecided(job)) {
                tally.one("released without outcome");
            }
            let step = drive.apply(event)?;
            tally.step(event, &step, &drive);
        }
    }
    drive.run_dry()?;
    Ok(drive.steps)
}

#[test]
fn random_events_keep_the_invariants() {
    let config =
        Config { cases: sample(CASES), failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &SEED));
    let tally = RefCell::new(EventTally::default());
    let steps = Cell::new(0);
    let result = runner.run(&cases(), |(shape, choices)| {
        let ran = run_case(shape, &choices, &mut tally.borrow_mut(), &mut Vec::new());
        steps.set(steps.get() + ran.map_err(TestCaseError::fail)?);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, (shape, choices))) => {
            let mut events = Vec::new();
            let again = || run_case(shape, &choices, &mut EventTally::default(), &mut events);
            let _ = catch_unwind(AssertUnwindSafe(again));
            let list: Vec<String> = events.iter().map(|event| format!("  {event:?}\n")).collect();
            panic!("{reason}\n{shape:?}, after these events:\n{}", list.concat());
        }
        Err(other) => panic!("{other}"),
    }
    let tally = tally.into_inner();
    if is_thorough() {
        assert!(steps.get() >= 100_000, "only {} transitions", steps.get());
        tally.check();
    }
}
