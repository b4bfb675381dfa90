//! The drain of a pool without a server: each job completes or is listed in the report.

use std::{collections::BTreeSet, time::Duration};

use futures_util::poll;
use tokio::{task::JoinSet, time::Instant};
use waterwheel::{
    Completed, Job, JobError, Output, WhenFull,
    handler::{Kind, KindOptions},
    model::{Execution, JobId, Outcome, RejectionReason, Rung},
    phase::Phase,
    pool::{DrainReport, LostWhile, Settings, Ticket, WorkerState},
};

use crate::support::{self, BlockingGate, Counter, Gate, deaf, echo, gated, holding_clock, kind, pool, slow};

const SECOND: Duration = Duration::from_secs(1);

/// A kind whose handler stops as soon as it is cancelled.
fn polite() -> Kind {
    support::polite(&Counter::new(), &Counter::new())
}

/// Tasks that wait for jobs, and the ids of the jobs.
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
    assert_eq!(lost.len(), report.lost.len(), "a job is listed twice: {report:?}");
    lost
}

fn outcome(result: Result<Completed, JobError>) -> Outcome {
    match result {
        Err(JobError::Failed(failure)) => failure.outcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_accepted_jobs_and_refuses_new_and_waiting_ones() {
    let gate = Gate::new();
    let pool = pool(1).queue_jobs(1).kind(gated("gated", &gate)).build();
    let mut callers = Callers::default();
    for _ in 0..2 {
        callers.add(pool.try_submit(Job::new("gated", "")).expect("accepted"));
    }
    let waiting = pool.try_submit(Job::new("gated", "").when_full(WhenFull::Wait)).expect("the job waits");
    assert_eq!(pool.phase(), Phase::Serving);

    pool.drain();
    pool.drain();
    assert_eq!(pool.phase(), Phase::Draining);
    let refused = pool.try_submit(Job::new("gated", "")).expect_err("the pool drains");
    assert_eq!((refused.reason, refused.retry_after), (RejectionReason::Draining, None));
    let error = waiting.await.expect_err("the job was not accepted");
    assert!(matches!(error, JobError::Rejected(rejection) if rejection.reason == RejectionReason::Draining));
    assert_eq!(pool.send(Job::new("gated", "")).expect_err("the pool drains").reason, RejectionReason::Draining);

    let mut wait = std::pin::pin!(pool.wait());
    assert!(poll!(&mut wait).is_pending());
    gate.open();
    wait.await;
    assert!(callers.all().await.iter().all(Result::is_ok));
    assert_eq!((pool.phase(), pool.worker_count()), (Phase::Stopped, 0));
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
    assert_eq!(pool.phase(), Phase::Stopped);
    assert_eq!(pool.close(SECOND, SECOND).await, DrainReport::default());
}

#[tokio::test(start_paused = true)]
async fn the_report_lists_exactly_the_lost_jobs() {
    let idempotent = KindOptions { idempotent: true, ..KindOptions::default() };
    let pool = pool(3).kind(polite()).kind(slow().options(idempotent)).kind(echo()).build();
    let mut callers = Callers::default();
    pool.submit(Job::new("echo", "")).await.expect("it completes");
    for kind in ["polite", "slow", "slow", "echo", "polite"] {
        callers.add(pool.try_submit(Job::new(kind, "")).expect("accepted"));
    }
    drop(pool.try_submit(Job::new("echo", "")).expect("accepted"));
    tokio::task::yield_now().await;

    let start = Instant::now();
    let report = pool.close(2 * SECOND, 5 * SECOND).await;
    assert_eq!(start.elapsed().as_millis() / 10, 300, "the finish phase and the grace period");
    let expected = callers.ids.iter().enumerate().map(|(index, id)| (*id, index < 3)).collect();
    assert_eq!(lost(&report), expected);
    assert_eq!(pool.close(SECOND, SECOND).await, report, "a second drain has another report");
    let mut causes: Vec<_> = callers.all().await.into_iter().map(|result| outcome(result).to_string()).collect();
    causes.sort();
    assert_eq!(causes[..3], vec!["stopped by the drain while running"; 3]);
    assert_eq!(causes[3..], vec!["the server drained before the job began"; 2]);
    assert_eq!(pool.stats().counts.cancelled, 6);
}

#[tokio::test(start_paused = true)]
async fn a_stop_asks_handlers_to_stop_and_aborts_them_after_the_grace_period() {
    let finishes = kind("finishes", |_, cx| async move {
        cx.cancelled().await;
        Ok(Output::new("after all"))
    });
    let pool = pool(3).kind(polite()).kind(slow()).kind(finishes).build();
    let mut jobs = Vec::new();
    for kind in ["polite", "slow", "finishes"] {
        let mut ticket = pool.try_submit(Job::new(kind, "")).expect("accepted");
        assert!(poll!(&mut ticket).is_pending());
        jobs.push(ticket);
    }
    pool.stop();
    assert_eq!(pool.phase(), Phase::Stopping);
    let finished = jobs.pop().expect("three").await;
    assert_eq!(finished.expect("it completes within the grace period").output.bytes, "after all");
    for (job, rung) in jobs.into_iter().zip([Rung::Yielded, Rung::Forced]) {
        let Err(JobError::Failed(failure)) = job.await else { panic!("it was stopped") };
        assert_eq!(failure.outcome, Outcome::DrainKilled { idempotent: false });
        assert_eq!(failure.rung, Some(rung));
    }
    pool.wait().await;
    assert_eq!(pool.report().lost.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_ticket_is_dropped_during_a_stop_stays_in_the_report() {
    let pool = pool(1).kind(slow()).build();
    let mut ticket = pool.try_submit(Job::new("slow", "")).expect("accepted");
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
async fn a_job_that_is_assigned_to_a_worker_but_not_started_does_not_start_after_a_stop() {
    let ran = Counter::new();
    let seen = ran.clone();
    let counts = kind("counts", move |_, _| {
        seen.add();
        async { Ok(Output::default()) }
    });
    let pool = pool(1).kind(polite()).kind(counts).build();
    let running = pool.try_submit(Job::new("polite", "")).expect("accepted");
    let mut next = pool.try_submit(Job::new("counts", "")).expect("accepted");
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
async fn a_job_that_cannot_be_stopped_is_in_the_report_and_does_not_delay_the_drain() {
    let (started, gate) = (Counter::new(), BlockingGate::default());
    let pool = pool(1).kind(deaf(&started, &gate)).build();
    let mut callers = Callers::default();
    callers.add(pool.try_submit(Job::new("deaf", "")).expect("accepted"));
    holding_clock(started.reached(1)).await;
    let start = Instant::now();
    let report = pool.close(SECOND, 2 * SECOND).await;
    assert_eq!(start.elapsed().as_millis() / 10, 300);
    assert_eq!(lost(&report), BTreeSet::from([(callers.ids[0], true)]));
    assert_ne!(pool.phase(), Phase::Stopped);
    assert_eq!(pool.stats().workers[0].state, WorkerState::Stuck);
    let outcome = callers.all().await.pop().expect("one");
    assert!(matches!(outcome, Err(JobError::Failed(failure)) if failure.rung == Some(Rung::Stuck)));
    gate.let_pass(1);
    holding_clock(pool.wait()).await;
    assert_eq!(pool.report(), report);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_ticket_is_never_polled_is_in_the_report() {
    let pool = pool(1).kind(echo()).build();
    let ticket = pool.try_submit(Job::new("echo", "")).expect("accepted");
    let report = pool.close(SECOND, SECOND).await;
    assert_eq!(lost(&report), BTreeSet::from([(ticket.job(), false)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_report_is_complete_if_jobs_stop_on_other_threads() {
    for round in 0..200 {
        let settings = Settings { workers: 8.try_into().expect("eight"), ..Settings::default() };
        let pool = pool(8).settings(settings).kind(polite()).build();
        let mut callers = Callers::default();
        for _ in 0..16 {
            callers.add(pool.try_submit(Job::new("polite", "")).expect("accepted"));
        }
        let report = pool.close(Duration::ZERO, 20 * SECOND).await;
        let named: BTreeSet<_> = lost(&report).into_iter().map(|(id, _)| id).collect();
        assert_eq!(named, callers.ids.iter().copied().collect(), "round {round}");
        assert!(callers.all().await.iter().all(Result::is_err));
    }
}
