//! Each sentence with figures that make it true, and with figures that make it false.

use std::path::PathBuf;

use super::{
    sample::{KindSample, ProgramSample},
    *,
};
use crate::{
    model::Reason,
    pool::{Spread, TenantRate},
};

/// A state, and the sums that its next sample has.
struct Watch {
    state: State,
    now: Instant,
    sample: Sample,
    spreads: [Spread; 2],
}

impl Watch {
    /// A pool `io` with the kind `charge` and the program `pay`, after ten minutes of healthy load.
    fn healthy() -> Self {
        let kind = KindSample {
            name: "charge".into(),
            last_failure: "no bank answers".into(),
            dead: Some(0),
            ..KindSample::default()
        };
        let program = ProgramSample { name: "pay".into(), is_ready: true, ..ProgramSample::default() };
        let pool = PoolSample {
            name: "io".into(),
            kinds: vec![kind],
            programs: vec![program],
            tenants: vec![tenant("acme", 10.0, 0.0), tenant("lido", 10.0, 0.0)],
            ..PoolSample::default()
        };
        let sample = Sample { pools: vec![pool], ..Sample::default() };
        let mut watch = Self { state: State::default(), now: Instant::now(), sample, spreads: Default::default() };
        watch.pass(600, |_| {});
        assert_eq!(watch.titles(), [""; 0]);
        watch
    }

    /// Lets seconds pass. In each, twenty jobs of 39 ms complete and one of a hundred fails, and then `happens`.
    fn pass(&mut self, seconds: u64, happens: impl Fn(&mut Self)) {
        for second in 0..seconds {
            let failed = u64::from(second % 5 == 0);
            self.runs(20, 39, failed);
            happens(self);
            let kind = &mut self.sample.pools[0].kinds[0];
            kind.spreads = self.state.series.wants_spreads().then(|| self.spreads.clone());
            self.now += TICK;
            self.state.take(self.now, self.sample.clone());
        }
    }

    /// So many jobs end after so many milliseconds, of which some failed.
    fn runs(&mut self, jobs: u64, millis: u64, failed: u64) {
        self.spreads[1].add(Duration::from_millis(millis), jobs);
        let pool = self.pool();
        let sums = &mut pool.kinds[0].sums;
        (sums[0], sums[1]) = (sums[0] + failed, sums[1] + jobs);
        pool.counts.accepted += jobs;
        pool.counts.completed += jobs - failed;
        pool.counts.failed += failed;
    }

    fn die(&mut self, jobs: u64) {
        *self.pool().kinds[0].dead.get_or_insert_default() += jobs;
    }

    fn refuse(&mut self, reason: Reason, jobs: u64) {
        self.pool().counts.rejected[reason as usize] += jobs;
    }

    fn pool(&mut self) -> &mut PoolSample {
        &mut self.sample.pools[0]
    }

    fn titles(&self) -> Vec<String> {
        self.state.board.reported().into_iter().map(|problem| problem.title).collect()
    }
}

fn tenant(name: &str, asks: f64, refusals: f64) -> TenantRate {
    TenantRate { tenant: name.into(), asks, refusals }
}

/// What happens in a second, what undoes it, and the sentence.
type Case = (fn(&mut Watch), fn(&mut Watch), &'static str);

const CASES: [Case; 16] = [
    (
        |watch| watch.runs(200, 546, 0),
        |_| {},
        "charge runs 14 times as long as usual: half of its jobs run longer than 557 ms, usually 39 ms",
    ),
    (
        |watch| watch.runs(20, 39, 20),
        |_| {},
        "charge fails 50 % of its jobs: no bank answers: 1212 jobs in the last minute, usually 1 %",
    ),
    (
        |watch| {
            let program = &mut watch.pool().programs[0];
            program.failures += 1;
            program.last_failure = "pay exited with 1".into();
        },
        |_| {},
        "pay: 60 processes crashed in a minute: pay exited with 1: each took the jobs that it ran with it",
    ),
    (
        |watch| {
            let program = &mut watch.pool().programs[0];
            (program.is_ready, program.is_failing, program.last_failure) = (false, true, "no such file".into());
        },
        |watch| (watch.pool().programs[0].is_ready, watch.pool().programs[0].is_failing) = (true, false),
        "pay cannot start: no such file: no process of it is ready; 0 tries in the last minute",
    ),
    (
        |watch| watch.refuse(Reason::QueueFull, 5),
        |_| {},
        "io refuses 5.0 jobs a second: the pool is full: 20 % of what arrives, usually 0 %",
    ),
    (
        |watch| {
            watch.pool().kinds[0].is_limited = true;
            watch.refuse(Reason::LimitExceeded, 20);
        },
        |_| {},
        "io refuses 20 jobs a second: the job would wait too long for a limit of its kind (charge): 50 % of what \
         arrives, usually 0 %",
    ),
    (
        |watch| {
            watch.pool().attached = Some(2);
            watch.refuse(Reason::NoWorkers, 20);
        },
        |_| {},
        "io refuses 20 jobs a second: no worker is attached that runs this kind: 50 % of what arrives, usually 0 %",
    ),
    (
        |watch| watch.refuse(Reason::InvalidField, 5),
        |_| {},
        "io refuses 5.0 jobs a second: the request has invalid fields: 20 % of what arrives, usually 0 %",
    ),
    (
        |watch| {
            watch.pool().tenants = vec![tenant("acme", 400.0, 310.0), tenant("lido", 10.0, 0.0)];
            watch.refuse(Reason::TenantShare, 310);
        },
        |watch| watch.pool().tenants.clear(),
        "acme floods io: 400 jobs a second, of which 310 are refused: nothing of the other tenants is refused",
    ),
    (
        |watch| watch.pool().tenants = vec![tenant("", 400.0, 310.0), tenant("lido", 10.0, 4.2)],
        |watch| watch.pool().tenants.clear(),
        "the default tenant floods io: 400 jobs a second, of which 310 are refused: the other tenants lose 42 % of \
         their 10 jobs a second",
    ),
    (
        |watch| {
            let pool = watch.pool();
            (pool.paused, pool.queued) = (Some(Duration::from_secs(30)), 3);
            pool.operator = Operator { principal: "ann".into(), reason: "the bank is down".into() };
        },
        |watch| watch.pool().paused = None,
        "io is paused by ann: the bank is down: no job has started for 30 s; 3 jobs wait",
    ),
    (
        |watch| {
            watch.pool().is_shut = true;
            watch.refuse(Reason::Draining, 2);
        },
        |watch| watch.pool().is_shut = false,
        "io is drained: it refuses 2.0 jobs a second",
    ),
    (
        |watch| watch.pool().stuck = 2,
        |watch| watch.pool().stuck = 0,
        "io: 2 workers are stuck: their jobs ignore the request to stop, and others run in their place up to max_stuck",
    ),
    (
        |watch| (watch.pool().attached, watch.pool().queued) = (Some(0), 3),
        |watch| watch.pool().queued = 0,
        "no worker is attached to io: nothing runs charge; 3 jobs wait",
    ),
    (
        |watch| watch.die(1),
        |_| {},
        "charge: 60 detached jobs failed for good in the last minute: they stay in the store, and are not tried again",
    ),
    (
        |watch| watch.sample.away = Some(Arc::new(StoreError::DiskFull)),
        |watch| watch.sample.away = None,
        "store: the disk of the store is full: no job can be created; results of running jobs wait in memory",
    ),
];

#[test]
fn each_fault_has_its_sentence_and_loses_it() {
    for (happens, undo, sentence) in CASES {
        let mut watch = Watch::healthy();
        watch.pass(20, happens);
        let early = watch.state.board.reported();
        watch.pass(41, happens);
        let [problem] = &watch.state.board.reported()[..] else { panic!("{sentence}: {:?}", watch.titles()) };
        assert_eq!(format!("{}: {}", problem.title, problem.detail), sentence);
        assert!(early.len() == 1 && early[0].key == problem.key, "{early:?}");
        assert!(!problem.todo.is_empty() && !problem.title.ends_with('.'), "{problem:?}");
        undo(&mut watch);
        // The longest window is a minute, and the sentence stays for half of one.
        watch.pass(91, |_| {});
        assert_eq!(watch.titles(), [""; 0], "{sentence}");
    }
}

#[test]
fn what_is_short_or_rare_is_no_problem() {
    let cases: [fn(&mut Watch); 10] = [
        // A hundredth is refused; one of many tenants is refused, and not because it asks for most.
        |watch| {
            watch.pass(60, |watch| {
                watch.refuse(Reason::QueueFull, u64::from(watch.sample.pools[0].counts.accepted % 100 == 0))
            })
        },
        |watch| {
            watch.pass(60, |watch| {
                watch.pool().tenants = vec![tenant("acme", 40.0, 10.0), tenant("lido", 50.0, 0.0)];
            });
        },
        // Twice as slow, and a mixture with more of the long jobs that always were.
        |watch| watch.pass(60, |watch| watch.runs(200, 80, 0)),
        |watch| {
            watch.pass(2000, |watch| watch.runs(10, 900, 0));
            watch.pass(20, |watch| watch.runs(40, 900, 0));
        },
        // One crash, two dead letters.
        |watch| {
            watch.pool().programs[0].failures += 2;
            watch.die(2);
            watch.pass(60, |_| {});
        },
        // A fault that lasts for four seconds.
        |watch| {
            watch.pool().paused = Some(Duration::ZERO);
            watch.pass(4, |watch| watch.pool().stuck = 1);
            (watch.pool().stuck, watch.pool().paused) = (0, None);
            watch.pass(20, |_| {});
        },
        // Old dead letters are counted again after the start, and after the store was away.
        |watch| {
            watch.pass(30, |watch| watch.pool().kinds[0].dead = None);
            watch.pass(60, |watch| watch.pool().kinds[0].dead = Some(2));
        },
        // A flood that is over leaves no sentence of refusals behind, and a program that starts again none of crashes.
        |watch| {
            watch.pass(20, |watch| {
                watch.pool().tenants = vec![tenant("acme", 400.0, 310.0), tenant("lido", 10.0, 0.0)];
                watch.refuse(Reason::TenantShare, 310);
            });
            watch.pool().tenants.clear();
            watch.pass(12, |_| {});
            assert!(watch.titles()[0].starts_with("acme floods io"), "{:?}", watch.titles());
            watch.pass(30, |_| {});
        },
        |watch| {
            watch.pass(20, |watch| {
                let program = &mut watch.pool().programs[0];
                (program.is_ready, program.is_failing, program.failures) = (false, true, program.failures + 1);
            });
            (watch.pool().programs[0].is_ready, watch.pool().programs[0].is_failing) = (true, false);
            watch.pass(12, |_| {});
            assert_eq!(watch.titles().len(), 1, "{:?}", watch.titles());
            watch.pass(30, |_| {});
        },
        // A drain that loses nothing.
        |watch| watch.pass(20, |watch| watch.sample.drain = Some((0, Duration::from_secs(3)))),
    ];
    for (at, case) in cases.into_iter().enumerate() {
        let mut watch = Watch::healthy();
        case(&mut watch);
        assert_eq!(watch.titles(), [""; 0], "case {at}");
    }
}

#[test]
fn a_problem_keeps_its_begin_and_the_worst_is_first() {
    let mut watch = Watch::healthy();
    watch.sample.drain = Some((6, Duration::from_secs(65)));
    watch.pass(10, |watch| watch.refuse(Reason::LimitExceeded, 20));
    watch.pool().stuck = 1;
    watch.pass(20, |watch| watch.refuse(Reason::LimitExceeded, 20));
    watch.pool().paused = Some(Duration::ZERO);
    watch.pass(6, |watch| watch.refuse(Reason::LimitExceeded, 20));
    let problems = watch.state.board.reported();
    let seen = |problem: &Problem| (problem.key.clone(), watch.now.duration_since(problem.since).as_secs());
    let seen: Vec<_> = problems.iter().map(seen).collect();
    let order = [("refused_limit_exceeded", 35), ("drain_loses_jobs", 35), ("stuck_worker", 25), ("pool_paused", 5)];
    assert_eq!(seen, order.map(|(key, age)| (key.to_owned(), age)));
    assert_eq!(problems[1].title, "the drain will probably stop 6 jobs");
}

#[test]
fn the_last_minute_is_beside_the_usual_one() {
    let mut watch = Watch::healthy();
    watch.pass(60, |watch| {
        watch.runs(10, 500, 2);
        watch.refuse(Reason::QueueFull, 3);
    });
    let pool = RecentPool::of(&watch.state.series.pools["io"]);
    let (minute, recent) = (pool.minute.unwrap(), pool.recent.unwrap());
    assert_eq!((minute.time, recent.time), (Duration::from_secs(60), Duration::from_secs(10)));
    assert_eq!((minute.arrivals, minute.failed, recent.arrivals), (60 * 33, 60 * 2 + 12, 330));
    assert_eq!(minute.refused, [(Reason::QueueFull, 180)]);
    let RecentKind { run, usual_run, failures, .. } = &pool.kinds["charge"];
    let usual = usual_run.unwrap();
    assert!(run.count > 60 * 25 && run.p99 > Duration::from_millis(450), "{run:?}");
    assert!(usual.count > 4000 && usual.max < Duration::from_millis(42), "{usual:?}");
    assert!((failures - 2.2).abs() < 0.01, "{failures}");
}

#[test]
fn dead_letters_are_told_although_failures_of_the_kind_have_just_ended() {
    let mut watch = Watch::healthy();
    watch.pass(20, |watch| watch.runs(20, 39, 20));
    watch.pass(25, |_| {});
    watch.die(4);
    watch.pass(8, |_| {});
    assert!(watch.titles().iter().any(|title| title.starts_with("charge: 4 detached jobs")), "{:?}", watch.titles());
}

#[test]
fn rings_are_bounded_and_what_is_gone_is_forgotten() {
    let mut watch = Watch::healthy();
    watch.pass(1000, |_| {});
    let history = &watch.state.series.pools["io"].history;
    assert_eq!((history.len(), history[89]), (90, [198, 2, 0, 0]));
    watch.sample.pools.clear();
    watch.state.take(watch.now + TICK, watch.sample.clone());
    assert!(watch.state.series.pools.is_empty());
}

#[test]
fn a_store_that_cannot_be_written_is_not_away() {
    let of = |error: StoreError| StoreState::of(Some(&error));
    assert_eq!(StoreState::of(None), StoreState::Ok);
    assert_eq!(of(StoreError::NoRoom), StoreState::ReadOnly);
    assert_eq!(of(StoreError::ReadOnly { path: PathBuf::new() }), StoreState::ReadOnly);
    assert_eq!(of(StoreError::Unavailable("refused".into())), StoreState::Away);
}

#[test]
fn a_drain_ends_with_its_longest_job_and_says_which_are_too_long() {
    let seconds = Duration::from_secs;
    let usual = |run: u64| {
        let mut spread = Spread::default();
        spread.add(seconds(run), 9);
        Some(spread.distribution())
    };
    let left = |run: Option<Distribution>, ran: u64| Left { usual: run, ran: seconds(ran), deadline: seconds(600) };
    let near = |found: Outlook, expected: u64, late: u64| {
        assert!(found.expected.abs_diff(seconds(expected)) <= seconds(3) && found.late == late, "{found:?}");
    };
    let long = [left(usual(45), 5); 4];
    near(outlook(4, &long, &[left(usual(1), 0); 4], seconds(60)), 41, 0);
    near(outlook(4, &long, &[left(usual(45), 0); 2], seconds(60)), 85, 2);
    near(outlook(4, &long[..1], &[left(usual(45), 0); 3], seconds(30)), 45, 4);
    // Past its usual run time, a job takes as long again; a deadline ends it; an unknown kind says nothing.
    near(outlook(1, &[left(usual(45), 60)], &[], seconds(20)), 60, 1);
    near(outlook(1, &[Left { deadline: seconds(8), ..left(usual(45), 0) }], &[], seconds(20)), 8, 0);
    near(outlook(1, &[left(None, 60)], &[left(None, 0)], seconds(20)), 0, 0);
}
