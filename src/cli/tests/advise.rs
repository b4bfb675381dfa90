//! Tests of `waterwheel advise` against a scripted server.

use clap::Parser;

use super::{AdviseArgs, erlang_c, run};
use crate::{
    cli::{
        failure::Exit,
        fake::{self, Line, Ran, ReadBy, Script},
    },
    proto::{JobCounts, PoolStats, QueueStats, RejectedCount, Stats, WorkerState, WorkerStats},
};

/// A pool of 4 workers after so many seconds: 60 jobs came in each, 20 of them were refused, and runs took 100 ms.
fn snapshot(seconds: u64) -> Stats {
    let rejected = |reason: &str, count| RejectedCount { reason: reason.to_owned(), count };
    let worker = |id| WorkerStats {
        id,
        state: WorkerState::Busy as i32,
        completed: 9 * seconds,
        failed: seconds,
        total_run_time: Some(format!("{seconds}s").parse().unwrap()),
        ..WorkerStats::default()
    };
    Stats {
        uptime: Some(format!("{}s", 1000 + seconds).parse().unwrap()),
        pools: vec![PoolStats {
            name: "io".to_owned(),
            queue: Some(QueueStats { jobs_capacity: 64, ..QueueStats::default() }),
            jobs: Some(JobCounts {
                accepted: 40 * seconds,
                rejected: vec![rejected("QUEUE_FULL", 20 * seconds), rejected("INVALID_FIELD", 7 * seconds)],
                ..JobCounts::default()
            }),
            workers: (0..4).map(worker).collect(),
            ..PoolStats::default()
        }],
        ..Stats::default()
    }
}

async fn advise(line: &[&str], snapshots: Vec<Stats>) -> Ran {
    let line = Line::<AdviseArgs>::try_parse_from(["advise", "--over", "100ms"].iter().chain(line)).unwrap();
    let format = line.format;
    fake::run(Script { snapshots, ..Script::default() }, ReadBy::Program, format, async |address, console| {
        let mut args = line.args;
        args.server.server = Some(address);
        run(args, console).await
    })
    .await
}

#[tokio::test]
async fn each_step_is_shown() {
    let ran = advise(&[], vec![snapshot(10), snapshot(20)]).await;
    let text = ran.text();
    for step in [
        "watched for 10s",
        "600 jobs, 200 of them refused because the pool is too small: 60.0/s",
        "100ms on average of 400 jobs",
        "60.0/s × 100ms = 6.00 workers",
        "6.00 / 0.7 busy = 9; there are 4",
        "9 workers / 100ms × 2.0s of wait = 180 jobs (L = λ · W); it holds 64",
        "set pool.io.workers = 9",
        "set pool.io.queue.jobs = 180",
    ] {
        assert!(text.contains(step), "{step}: {text}");
    }
    assert_eq!(ran.exit, Exit::Done);
}

#[tokio::test]
async fn goals_are_the_operators() {
    let ran =
        advise(&["--busy", "0.5", "--max-wait", "500ms", "--output", "json"], vec![snapshot(1), snapshot(2)]).await;
    let report: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
    let pool = &report["pools"][0];
    assert_eq!((pool["workers_advised"].as_u64(), pool["queue_jobs_advised"].as_u64()), (Some(12), Some(60)), "{pool}");
    assert_eq!(pool["utilization"].as_f64(), Some(0.5), "{pool}");
}

#[tokio::test]
async fn a_pool_that_rests_is_named_without_advice() {
    let later = Stats { uptime: Some("1011s".parse().unwrap()), ..snapshot(10) };
    let ran = advise(&[], vec![snapshot(10), later]).await;
    assert!(ran.text().contains("pool io: no job arrived; watch"), "{}", ran.text());
    let mut busy = Stats { uptime: Some("1011s".parse().unwrap()), ..snapshot(10) };
    busy.pools[0].jobs.as_mut().unwrap().accepted += 3;
    let ran = advise(&[], vec![snapshot(10), busy]).await;
    assert!(ran.text().contains("pool io: no job ended; watch"), "{}", ran.text());
}

#[tokio::test]
async fn workers_that_retired_do_not_count() {
    let mut earlier = snapshot(10);
    let gone = WorkerStats {
        id: 9,
        completed: 5000,
        total_run_time: Some("9000s".parse().unwrap()),
        ..WorkerStats::default()
    };
    earlier.pools[0].workers.push(gone);
    let ran = advise(&[], vec![earlier, snapshot(20)]).await;
    assert!(ran.text().contains("100ms on average of 400 jobs"), "{}", ran.text());
}

#[tokio::test]
async fn a_restart_between_the_snapshots_is_reported() {
    let ran = advise(&[], vec![snapshot(20), snapshot(10)]).await;
    assert!(ran.err.contains("restarted while it was watched"), "{}", ran.err);
}

#[test]
fn erlangs_formula_is_as_in_its_tables() {
    for (workers, busy, table) in [(1, 0.5, 0.5), (2, 1.0, 1.0 / 3.0), (5, 4.0, 0.5541), (10, 8.0, 0.4092)] {
        let share = erlang_c(workers, busy);
        assert!((share - table).abs() < 5e-4, "{workers} workers, {busy} busy: {share}");
    }
}
