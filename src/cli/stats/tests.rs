//! Tests of `waterwheel stats` against a scripted server.

use clap::Parser;

use super::{StatsArgs, run};
use crate::{
    cli::{
        exit::Exit,
        fake::{self, Ran, ReadBy, Script},
    },
    proto::{
        Distribution, JobCounts, KindStats, Phase, PoolStats, QueueStats, RejectedCount, Stats, WorkerState,
        WorkerStats,
    },
};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: StatsArgs,
}

fn snapshot(phase: Phase) -> Stats {
    Stats {
        phase: phase as i32,
        uptime: Some("1.500s".parse().unwrap()),
        pools: vec![PoolStats {
            name: "cpu".to_owned(),
            phase: phase as i32,
            queue: Some(QueueStats::default()),
            jobs: Some(JobCounts {
                rejected: vec![RejectedCount { reason: "SHED".to_owned(), count: 1 }],
                ..JobCounts::default()
            }),
            kinds: vec![KindStats {
                name: "echo".to_owned(),
                queue_wait: Some(Distribution::default()),
                ..KindStats::default()
            }],
            workers: vec![WorkerStats { state: WorkerState::Idle as i32, ..WorkerStats::default() }],
            ..PoolStats::default()
        }],
    }
}

async fn stats(line: &[&str], read_by: ReadBy, snapshots: Vec<Stats>) -> Ran {
    let line = Line::try_parse_from(["stats"].iter().chain(line)).unwrap();
    let format = line.args.output.format;
    let script = Script { snapshots, ..Script::default() };
    fake::run(script, read_by, format, async |address, console| {
        let mut args = line.args;
        args.server.server = address;
        run(args, console).await
    })
    .await
}

#[tokio::test]
async fn one_snapshot_is_shown_as_text() {
    let line = ["--pool", "cpu"];
    let ran = stats(&line, ReadBy::Program, vec![snapshot(Phase::Serving)]).await;
    assert!(ran.text().starts_with("SERVING  up 1.5s\n\npool cpu"));
    assert_eq!(ran.seen.stats, [("cpu".to_owned(), 0)]);
    assert_eq!(ran.exit, Exit::Done);
}

#[tokio::test]
async fn json_uses_the_names_of_the_contract() {
    let line = ["--output", "json"];
    let ran = stats(&line, ReadBy::Program, vec![snapshot(Phase::Serving)]).await;
    let value: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
    assert_eq!(value["phase"], "PHASE_SERVING");
    assert_eq!(value["uptime"], "1.500s");
    let pool = &value["pools"][0];
    assert_eq!(pool["jobs"]["rejected"][0]["reason"], "SHED");
    assert_eq!(pool["kinds"][0]["queue_wait"]["count"], 0);
    assert_eq!(pool["workers"][0]["state"], "WORKER_STATE_IDLE");
}

#[tokio::test]
async fn watching_prints_snapshot_after_snapshot() {
    let snapshots = vec![snapshot(Phase::Serving), snapshot(Phase::Draining)];
    let line = ["--watch", "--interval", "250ms"];
    let ran = stats(&line, ReadBy::Program, snapshots.clone()).await;
    assert_eq!(ran.seen.stats, [(String::new(), 250)]);
    assert!(ran.text().contains("\n\nDRAINING  up 1.5s\n"), "{}", ran.text());
    assert!(!ran.text().contains('\x1b'));

    let line = ["--watch", "--output", "json"];
    let ran = stats(&line, ReadBy::Person, snapshots).await;
    assert_eq!(ran.text().lines().count(), 2);
}

#[tokio::test]
async fn an_answer_without_a_snapshot_is_reported() {
    let ran = stats(&[], ReadBy::Program, Vec::new()).await;
    assert!(ran.err.contains("has no snapshot"), "{}", ran.err);
    assert_eq!(ran.exit, Exit::Failed);
}

#[test]
fn intervals_are_those_of_the_server() {
    for interval in ["99ms", "61s", "soon"] {
        let line = ["stats", "--watch", "--interval", interval];
        assert!(Line::try_parse_from(line).is_err(), "{interval}");
    }
    assert!(Line::try_parse_from(["stats", "--interval", "1s"]).is_err());
    assert!(Line::try_parse_from(["stats", "--watch", "--interval", "60s"]).is_ok());
}
