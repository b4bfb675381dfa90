//! Promises that hold for every way in, every way to run, and every store, tested for each combination.

use futures_util::future::join_all;
use tonic::Code;
use waterwheel::proto::{Job, JobCounts, JobServiceCancelJobRequest, JobState};

use super::{
    runs::{Everything, Run, StoreKind, Work},
    ways::{self, Way},
};
use crate::{
    process::PATIENCE,
    service::{Caller, job},
    support::Cluster,
};

/// Runs the test with each store. PostgreSQL is left out where it is not installed.
async fn with_each_store(test: impl AsyncFn(StoreKind, &str)) {
    test(StoreKind::Memory, "store.memory = true").await;
    let directory = tempfile::tempdir().unwrap();
    test(StoreKind::Sqlite, &format!("store.path = {:?}", directory.path().join("jobs.db"))).await;
    if let Some(cluster) = Cluster::start().await {
        test(StoreKind::Postgres, &format!("store.url = {:?}", cluster.url("postgres"))).await;
    }
}

/// A job that does `work`, and may run for a moment only.
fn of(run: Run, work: Work) -> Job {
    let run_timeout = (work == Work::Wait).then(|| "0.3s".parse().unwrap());
    Job { run_timeout, ..job(run.kind(), work.payload()) }
}

/// Checks that every accepted job ended once.
async fn all_have_ended(everything: &Everything) {
    let caller = Caller::of(everything.service.public).await;
    caller.until_all(|pools| pools.iter().all(|pool| pool.in_flight == 0)).await;
    for pool in caller.stats().await.pools {
        let counts = pool.jobs.unwrap();
        let JobCounts { completed, failed, cancelled, expired, panicked, shed, .. } = counts;
        let ended = completed + failed + cancelled + expired + panicked + shed;
        assert_eq!(counts.accepted, ended, "{}: {counts:?}", pool.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_ends_once_with_the_same_reason() {
    with_each_store(async |store, line| {
        let everything = Everything::start(line, "").await;
        for way in Way::ALL {
            let cases = Run::ALL.into_iter().flat_map(|run| Work::ALL.map(|work| (run, work)));
            join_all(cases.map(async |(run, work)| {
                let end = way.end(&everything, of(run, work)).await;
                let context = format!("{way:?}, {run:?}, {work:?}, {store}: {end:?}");
                assert_eq!(end.reason, work.reason(run), "{context}");
                let is_done = work == Work::Echo;
                assert_eq!(end.output, if is_done { &b"it is done"[..] } else { b"" }, "{context}");
                if work == Work::Fail {
                    assert_eq!(end.code, Code::InvalidArgument as i32, "{context}");
                }
                match &end.job {
                    None => assert_eq!(end.execution.as_deref(), (!is_done).then_some("STARTED"), "{context}"),
                    Some(job) => {
                        let state = if is_done { JobState::Succeeded } else { JobState::Failed };
                        // A lost worker does not count as a failed attempt, until it is the third in a row.
                        let attempts = if end.reason == "WORKER_LOST" { 3 } else { 1 };
                        assert_eq!((job.state(), job.attempts.len()), (state, attempts), "{context}");
                    }
                }
            }))
            .await;
        }
        all_have_ended(&everything).await;
    })
    .await;
}

/// Each tick makes a job, so some of them may still run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_of_a_schedule_ends_with_the_same_reason_and_output() {
    let works = [Work::Echo, Work::Fail, Work::Large];
    let schedules = Run::ALL.into_iter().flat_map(|run| works.map(|work| (run, work)));
    let schedules: Vec<_> =
        schedules.map(|(run, work)| (format!("{}-{work:?}", run.kind()).to_lowercase(), run, work)).collect();
    let tables = schedules.iter().map(|(name, run, work)| {
        let (kind, payload) = (run.kind(), work.payload());
        format!("[schedule.{name}]\ncron = \"* * * * * *\"\nkind = {kind:?}\npayload = {payload:?}\n")
    });
    let tables: String = tables.collect();
    with_each_store(async |store, line| {
        let everything = Everything::start(line, &tables).await;
        join_all(schedules.iter().map(async |(name, run, work)| {
            let end = ways::scheduled(&everything, name).await;
            let context = format!("{run:?}, {work:?}, {store}: {end:?}");
            assert_eq!(end.reason, work.reason(*run), "{context}");
            assert_eq!(end.output, if *work == Work::Echo { &b"it is done"[..] } else { b"" }, "{context}");
            assert_eq!(end.job.as_ref().unwrap().attempts.len(), 1, "{context}");
        }))
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_pool_can_run_is_refused_before_it_starts() {
    with_each_store(async |store, line| {
        let everything = Everything::start(line, "").await;
        for way in Way::ALL {
            let unknown = ("UNKNOWN_KIND", job("unknown", ""));
            let large = Run::ALL.map(|run| ("PAYLOAD_TOO_LARGE", job(run.kind(), vec![0; (64 << 10) + 1])));
            let field = Job { tenant: "t".repeat(200), ..job("rust", "") };
            for (reason, job) in [vec![unknown, ("INVALID_FIELD", field)], large.into()].concat() {
                let end = way.end(&everything, job).await;
                let context = format!("{way:?}, {store}: {end:?}");
                assert_eq!((end.reason.as_str(), end.execution.as_deref()), (reason, Some("NOT_STARTED")), "{context}");
            }
        }
        all_have_ended(&everything).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_ends_at_once() {
    with_each_store(async |store, line| {
        let everything = Everything::start(line, "").await;
        let caller = Caller::of(everything.service.public).await;
        for run in Run::ALL {
            for way in Way::ALL {
                let job = job(run.kind(), Work::Wait.payload());
                let running = async |count| {
                    caller.until_all(|pools| pools.iter().map(|pool| pool.in_flight).sum::<u32>() == count).await
                };
                if way.is_detached() {
                    let id = way.create(&everything, job).await.unwrap();
                    running(1).await;
                    let request = JobServiceCancelJobRequest { job_id: id.clone(), reason: String::new() };
                    ways::jobs(&everything).await.cancel_job(request).await.unwrap();
                    let end = ways::wait(&everything, &id).await;
                    let state = end.job.as_ref().unwrap().state();
                    assert_eq!(state, JobState::Cancelled, "{way:?}, {run:?}, {store}: {end:?}");
                } else {
                    tokio::select! {
                        end = way.end(&everything, job) => panic!("{way:?}, {run:?}, {store}: {end:?}"),
                        _ = running(1) => {}
                    }
                }
                running(0).await;
            }
        }
        all_have_ended(&everything).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_by_its_deadline_and_each_job_is_answered_or_given_back() {
    with_each_store(async |store, line| {
        let everything = Everything::start(line, "").await;
        let caller = Caller::of(everything.service.public).await;
        let cases: Vec<_> = Run::ALL.into_iter().flat_map(|run| Way::ALL.map(|way| (way, run))).collect();
        let wait = |run: Run| job(run.kind(), Work::Wait.payload());
        let callers = cases.iter().filter(|(way, _)| !way.is_detached());
        let waiting = callers.map(async |(way, run)| (way, run, way.end(&everything, wait(*run)).await));
        let detached = async {
            let mut ids = Vec::new();
            for (way, run) in cases.iter().filter(|(way, _)| way.is_detached()) {
                ids.push(way.create(&everything, wait(*run)).await.unwrap());
            }
            // Four of the seven jobs of each pool run.
            caller.until_all(|pools| pools.iter().all(|pool| pool.in_flight == 4)).await;
            everything.service.control.drain();
            ids
        };
        let (ends, ids) = tokio::join!(join_all(waiting), detached);
        for (way, run, end) in ends {
            let reason = if end.execution.as_deref() == Some("STARTED") { "DRAIN_KILLED" } else { "DRAINING" };
            assert_eq!(end.reason, reason, "{way:?}, {run:?}, {store}: {end:?}");
        }
        let receipt = everything.service.ended().await;
        // Notice, finish and kill take two seconds.
        assert!(receipt.elapsed < PATIENCE, "{receipt:?}");
        if store == StoreKind::Memory {
            return;
        }
        let again = Everything::start(line, "").await;
        for id in ids {
            let job = ways::get(&again, &id).await;
            // Of those before the one that may run by now.
            let ended = job.attempts.iter().filter(|attempt| attempt.end_time.is_some());
            let ends: Vec<_> = ended.map(|attempt| attempt.outcome.as_str()).collect();
            assert!(job.state() < JobState::Succeeded && ends.len() <= 1, "{store}: {job:?}");
            assert!(ends.iter().all(|end| ["DRAIN_KILLED", "DRAINING"].contains(end)), "{store}: {job:?}");
            assert_eq!(job.failures, 0, "{store}: {job:?}");
        }
    })
    .await;
}
