//! A pool leaves without losing a job silently, and leaves nothing behind.

use std::{collections::BTreeSet, time::Duration};

use futures_util::poll;
use tokio::{task::JoinSet, time::Instant};
use waterwheel::{
    Completed, Job, JobError, Output, WhenFull,
    handler::{Kind, KindOptions},
    model::{Execution, HandlerError, JobId, Outcome, RejectionReason, Rung},
    phase::Phase,
    pool::{DrainReport, LostWhile, Settings, Ticket, WorkerState},
};

use crate::support::{BlockingGate, Counter, Gate, blocking_kind, echo, holding_clock, kind, pool, slow, until};

const SECOND: Duration = Duration::from_secs(1);

fn gated(gate: &Gate) -> Kind {
    let gate = gate.clone();
    kind("gated", move |_, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(Output::default())
        }
    })
}

/// Follows its token.
fn polite() -> Kind {
    kind("polite", |_, cx| async move {
        cx.cancelled().await;
        Err(HandlerError::Stopped)
    })
}

/// Callers in tasks of their own, and the ids of their jobs.
#[derive(Default)]
struct Callers {
    ids: Vec<JobId>,
    outcomes: JoinSet<Result<Completed, JobError>>,
}

impl Callers {
    fn add(&mut self, ticket: Ticket) {
        self.ids.push(ticket.job());
        self.outcomes.spawn(ticket);
    }

    async fn all(&mut self) -> Vec<Result<Completed, JobError>> {
        let mut all = Vec::new();
        while let Some(outcome) = self.outcomes.join_next().await {
            all.push(outcome.expect("no panic"));
        }
        all
    }
}

fn lost(report: &DrainReport) -> BTreeSet<(JobId, bool)> {
    let lost: BTreeSet<_> = report.lost.iter().map(|lost| (lost.job, lost.lost_while == LostWhile::Running)).collect();
    assert_eq!(lost.len(), report.lost.len(), "each job is named once: {report:?}");
    lost
}

fn outcome(told: Result<Completed, JobError>) -> Outcome {
    match told {
        Err(JobError::Failed(failure)) => failure.outcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_what_was_accepted_and_refuses_the_rest() {
    let gate = Gate::new();
    let pool = pool(1).queue_jobs(1).kind(gated(&gate)).build();
    let mut callers = Callers::default();
    for _ in 0..2 {
        callers.add(pool.try_submit(Job::new("gated", "")).expect("room"));
    }
    let waiting = pool.try_submit(Job::new("gated", "").when_full(WhenFull::Wait)).expect("a place to wait");
    assert_eq!((pool.phase(), pool.is_drained()), (Phase::Serving, false));

    pool.drain();
    pool.drain();
    assert_eq!((pool.phase(), pool.is_drained()), (Phase::Draining, false));
    let refused = pool.try_submit(Job::new("gated", "")).expect_err("the door is closed");
    assert_eq!((refused.reason, refused.retry_after), (RejectionReason::Draining, None));
    let told = waiting.await.expect_err("it never got room");
    assert!(matches!(told, JobError::Rejected(rejection) if rejection.reason == RejectionReason::Draining));
    assert_eq!(pool.send(Job::new("gated", "")).expect_err("closed too").reason, RejectionReason::Draining);

    let mut wait = std::pin::pin!(pool.wait());
    assert!(poll!(&mut wait).is_pending());
    gate.open();
    wait.await;
    assert!(callers.all().await.iter().all(Result::is_ok));
    assert_eq!((pool.phase(), pool.is_drained(), pool.worker_count()), (Phase::Stopped, true, 0));
    pool.drain();
    pool.stop();
    assert_eq!(pool.close(SECOND, SECOND).await, DrainReport::default());
    assert_eq!(pool.phase(), Phase::Stopped, "a phase only moves forward");
}

#[tokio::test(start_paused = true)]
async fn an_empty_pool_is_drained_at_once() {
    let pool = pool(3).kind(echo()).build();
    assert_eq!(pool.worker_count(), 3);
    pool.drain();
    assert!(pool.is_drained());
    assert_eq!(pool.close(SECOND, SECOND).await, DrainReport::default());
}

#[tokio::test(start_paused = true)]
async fn the_report_names_exactly_the_lost_jobs() {
    let idempotent = KindOptions { idempotent: true, ..KindOptions::default() };
    let pool = pool(3).kind(polite()).kind(slow().options(idempotent)).kind(echo()).build();
    let mut callers = Callers::default();
    pool.submit(Job::new("echo", "")).await.expect("it completes");
    for kind in ["polite", "slow", "slow", "echo", "polite"] {
        callers.add(pool.try_submit(Job::new(kind, "")).expect("room"));
    }
    drop(pool.try_submit(Job::new("echo", "")).expect("room"));
    tokio::task::yield_now().await;

    let start = Instant::now();
    let report = pool.close(2 * SECOND, 5 * SECOND).await;
    assert_eq!(start.elapsed().as_millis() / 10, 300, "the time to finish, and the grace");
    let expected = callers.ids.iter().enumerate().map(|(index, id)| (*id, index < 3)).collect();
    assert_eq!(lost(&report), expected);
    assert_eq!(pool.close(SECOND, SECOND).await, report, "a second drain says the same");
    let mut causes: Vec<_> = callers.all().await.into_iter().map(|told| outcome(told).to_string()).collect();
    causes.sort();
    assert_eq!(causes[..3], vec!["stopped by the drain while running"; 3]);
    assert_eq!(causes[3..], vec!["the server drained before the job began"; 2]);
    assert_eq!(pool.stats().counts.cancelled, 6);
}

#[tokio::test(start_paused = true)]
async fn a_stop_goes_down_the_ladder() {
    let finishes = kind("finishes", |_, cx| async move {
        cx.cancelled().await;
        Ok(Output::new("after all"))
    });
    let pool = pool(3).kind(polite()).kind(slow()).kind(finishes).build();
    let mut jobs = Vec::new();
    for kind in ["polite", "slow", "finishes"] {
        let mut ticket = pool.try_submit(Job::new(kind, "")).expect("room");
        assert!(poll!(&mut ticket).is_pending());
        jobs.push(ticket);
    }
    pool.stop();
    assert_eq!(pool.phase(), Phase::Stopping);
    let finished = jobs.pop().expect("three").await;
    assert_eq!(finished.expect("it used its grace").output.bytes, "after all");
    for (job, rung) in jobs.into_iter().zip([Rung::Yielded, Rung::Forced]) {
        let Err(JobError::Failed(failure)) = job.await else { panic!("it was stopped") };
        assert_eq!(failure.outcome, Outcome::DrainKilled { idempotent: false });
        assert_eq!(failure.rung, Some(rung));
    }
    pool.wait().await;
    assert_eq!(pool.report().lost.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_the_stop_does_not_take_its_job_out_of_the_report() {
    let pool = pool(1).kind(slow()).build();
    let mut ticket = pool.try_submit(Job::new("slow", "")).expect("room");
    assert!(poll!(&mut ticket).is_pending());
    pool.stop();
    assert!(poll!(&mut ticket).is_pending());
    let id = ticket.job();
    drop(ticket);
    pool.wait().await;
    assert_eq!(lost(&pool.report()), BTreeSet::from([(id, true)]));
    assert_eq!(pool.stats().counts.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_worker_is_on_its_way_does_not_start_after_a_stop() {
    let ran = Counter::new();
    let seen = ran.clone();
    let counts = kind("counts", move |_, _| {
        seen.add();
        async { Ok(Output::default()) }
    });
    let pool = pool(1).kind(polite()).kind(counts).build();
    let running = pool.try_submit(Job::new("polite", "")).expect("room");
    let mut next = pool.try_submit(Job::new("counts", "")).expect("room");
    assert!(poll!(&mut next).is_pending());
    drop(running);
    assert_eq!((pool.stats().queued, pool.stats().in_flight), (0, 1));
    pool.stop();
    let id = next.job();
    assert_eq!(lost(&pool.report()), BTreeSet::from([(id, false)]));
    let Err(JobError::Failed(failure)) = next.await else { panic!("it was accepted") };
    assert_eq!((failure.outcome, failure.execution), (Outcome::Drained, Execution::NotStarted));
    pool.wait().await;
    assert_eq!((ran.get(), lost(&pool.report())), (0, BTreeSet::from([(id, false)])));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_stopped_is_named_and_does_not_hold_the_drain() {
    let (started, gate) = (Counter::new(), BlockingGate::default());
    let (begun, held) = (started.clone(), gate.clone());
    let deaf = blocking_kind("deaf", move |_, _| {
        begun.add();
        held.pass();
        Ok(Output::default())
    });
    let pool = pool(1).kind(deaf).build();
    let mut callers = Callers::default();
    callers.add(pool.try_submit(Job::new("deaf", "")).expect("room"));
    holding_clock(started.reached(1)).await;
    let start = Instant::now();
    let report = pool.close(SECOND, 2 * SECOND).await;
    assert_eq!(start.elapsed().as_millis() / 10, 300);
    assert_eq!(lost(&report), BTreeSet::from([(callers.ids[0], true)]));
    assert!(!pool.is_drained());
    assert_eq!(pool.stats().workers[0].state, WorkerState::Stuck);
    let outcome = callers.all().await.pop().expect("one");
    assert!(matches!(outcome, Err(JobError::Failed(failure)) if failure.rung == Some(Rung::Stuck)));
    gate.let_pass(1);
    holding_clock(pool.wait()).await;
    assert_eq!(pool.report(), report);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_does_not_poll_is_in_the_report() {
    let pool = pool(1).kind(echo()).build();
    let ticket = pool.try_submit(Job::new("echo", "")).expect("room");
    let report = pool.close(SECOND, SECOND).await;
    assert_eq!(lost(&report), BTreeSet::from([(ticket.job(), false)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn reports_are_whole_while_jobs_stop_on_other_threads() {
    for round in 0..200 {
        let settings = Settings { workers: 8.try_into().expect("eight"), ..Settings::default() };
        let pool = pool(8).settings(settings).kind(polite()).build();
        let mut callers = Callers::default();
        for _ in 0..16 {
            callers.add(pool.try_submit(Job::new("polite", "")).expect("room"));
        }
        let report = pool.close(Duration::ZERO, 20 * SECOND).await;
        let named: BTreeSet<_> = lost(&report).into_iter().map(|(id, _)| id).collect();
        assert_eq!(named, callers.ids.iter().copied().collect(), "round {round}");
        assert!(callers.all().await.iter().all(Result::is_err));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_drain_during_a_storm_balances() {
    for seed in 0..10 {
        let spins = kind("spins", |job, cx| async move {
            for _ in 0..job.payload.len() {
                tokio::task::yield_now().await;
                if cx.is_cancelled() {
                    return Err(HandlerError::Stopped);
                }
            }
            Ok(Output::default())
        });
        let pool = pool(4).kind(spins).kind(blocking_kind("block", |_, _| Ok(Output::default()))).build();
        let mut storms = JoinSet::new();
        for thread in 0..4 {
            let pool = pool.clone();
            storms.spawn(async move {
                let mut callers = Callers::default();
                for number in 0_usize..10_000 {
                    let kind = if number.is_multiple_of(7) { "block" } else { "spins" };
                    let job = Job::new(kind, vec![0; (number * (seed + thread)) % 50]).when_full(WhenFull::Wait);
                    match pool.try_submit(job) {
                        Ok(ticket) => callers.add(ticket),
                        Err(refused) if refused.reason == RejectionReason::Draining => break,
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
                (callers.ids.iter().copied().collect::<BTreeSet<_>>(), callers.all().await)
            });
        }
        until(|| pool.stats().counts.completed > 20).await;
        let report = pool.close(Duration::ZERO, 20 * SECOND).await;
        let (mut ids, mut outcomes) = (BTreeSet::new(), Vec::new());
        while let Some(storm) = storms.join_next().await {
            let (more, ended) = storm.expect("no panic");
            ids.extend(more);
            outcomes.extend(ended);
        }
        let drained = outcomes.iter().filter(|outcome| {
            matches!(outcome, Err(JobError::Failed(failure))
                if matches!(failure.outcome, Outcome::Drained | Outcome::DrainKilled { .. }))
        });
        assert_eq!(lost(&report).len(), drained.count());
        assert!(lost(&report).iter().all(|(id, _)| ids.contains(id)));
        let counts = pool.stats().counts;
        assert_eq!(counts.accepted, counts.ended());
        assert!(pool.is_drained());
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_without_a_caller_run_to_their_end() {
    let gate = Gate::new();
    let pool = pool(1).kind(gated(&gate)).build();
    let sent: BTreeSet<_> = (0..3).map(|_| pool.send(Job::new("gated", "")).expect("room")).collect();
    assert_eq!(sent.len(), 3);
    tokio::task::yield_now().await;
    assert_eq!((pool.stats().in_flight, pool.stats().queued), (1, 2));
    gate.open();
    pool.drain();
    pool.wait().await;
    assert_eq!(pool.stats().counts.completed, 3);
}
