//! Tests of `waterwheel drain` against a scripted server.

use clap::Parser;

use super::{DrainArgs, run};
use crate::{
    cli::{
        console::{Console, Sink},
        exit::Exit,
        fake::{self, DrainEnd, Ran, ReadBy, Script},
    },
    proto::{DrainResponse, Phase},
};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: DrainArgs,
}

async fn drain(line: &[&str], drain_end: DrainEnd, reports: Vec<DrainResponse>) -> Ran {
    drain_for(ReadBy::Program, line, drain_end, reports).await
}

async fn drain_for(read_by: ReadBy, line: &[&str], drain_end: DrainEnd, reports: Vec<DrainResponse>) -> Ran {
    let line = Line::try_parse_from(["drain"].iter().chain(line)).unwrap();
    let format = line.args.steer.operator.format();
    let script = Script { reports, drain_end, ..Script::default() };
    fake::run(script, read_by, format, async |address, console| {
        let mut args = line.args;
        args.steer.operator.ops = address;
        run(args, console).await
    })
    .await
}

fn report(phase: Phase, [queued, running, finished, lost]: [u64; 4]) -> DrainResponse {
    DrainResponse {
        phase: phase as i32,
        queued,
        running,
        finished,
        lost,
        elapsed: Some("6.800s".parse().unwrap()),
        expected: Some("6.100s".parse().unwrap()),
        hard_stop: Some("30s".parse().unwrap()),
        cut: 0,
    }
}

fn first() -> DrainResponse {
    report(Phase::Draining, [41, 6, 0, 0])
}

#[tokio::test]
async fn without_watching_one_report_is_enough() {
    let ran = drain(&[], DrainEnd::Cut, vec![first(), first()]).await;
    assert_eq!(ran.text(), "NOT_SERVING  41 queued  6 running  expected to end in 7s  hard stop 30s\n");
    assert_eq!(ran.exit, Exit::Done);
}

#[tokio::test]
async fn without_watching_what_was_idle_is_drained_in_one_line() {
    let idle = report(Phase::Stopped, [0, 0, 0, 0]);
    let ran = drain(&["--pool", "cpu"], DrainEnd::Cut, vec![idle]).await;
    assert_eq!((ran.text().as_str(), ran.exit), ("drained 0/0 in 6.8s, lost 0\n", Exit::Done));
    let ran = drain(&["--pool", "cpu", "--output", "json"], DrainEnd::Cut, vec![idle]).await;
    let line: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
    assert_eq!((&line["phase"], ran.exit), (&"PHASE_STOPPED".into(), Exit::Done));
}

#[tokio::test]
async fn watching_ends_with_the_receipt() {
    let stopped = report(Phase::Stopped, [0, 0, 47, 0]);
    for end in [DrainEnd::Closed, DrainEnd::Cut] {
        let ran = drain(&["--watch"], end, vec![first(), first(), stopped]).await;
        assert_eq!(
            ran.text(),
            "NOT_SERVING  41 queued  6 running  expected to end in 7s  hard stop 30s\n\
             drained 47/47 in 6.8s, lost 0\n"
        );
        assert_eq!(ran.exit, Exit::Done);
    }
}

#[tokio::test]
async fn a_terminal_redraws_one_line() {
    let reports = vec![first(), report(Phase::Draining, [0, 1, 46, 0]), report(Phase::Stopped, [0, 0, 47, 0])];
    let ran = drain_for(ReadBy::Person, &["--watch"], DrainEnd::Closed, reports).await;
    assert_eq!(
        ran.text(),
        "\r\x1b[KNOT_SERVING  41 queued  6 running  expected to end in 7s  hard stop 30s\
         \r\x1b[KNOT_SERVING  0 queued  1 running  expected to end in 7s  hard stop 30s\n\
         drained 47/47 in 6.8s, lost 0\n"
    );
    let ran = drain_for(ReadBy::Person, &[], DrainEnd::Cut, vec![first()]).await;
    assert!(ran.text().ends_with("hard stop 30s\n"), "{}", ran.text());
}

#[tokio::test]
async fn a_cut_after_the_last_job_is_the_end() {
    let idle = report(Phase::Draining, [0, 0, 47, 0]);
    let ran = drain(&["--watch"], DrainEnd::Cut, vec![first(), idle]).await;
    assert!(ran.text().ends_with("drained 47/47 in 6.8s, lost 0\n"));
    assert_eq!(ran.exit, Exit::Done);
}

#[tokio::test]
async fn a_cut_before_the_last_job_is_a_failure() {
    for end in [DrainEnd::Closed, DrainEnd::Cut] {
        let ran = drain(&["--watch"], end, vec![first()]).await;
        assert!(
            ran.err.starts_with("the connection ended during the drain, with 41 queued and 6 running\n"),
            "{}",
            ran.err
        );
        assert_eq!(ran.exit, Exit::Failed);
    }
}

#[tokio::test]
async fn lost_jobs_have_their_own_code() {
    let reports = vec![report(Phase::Stopping, [0, 2, 45, 0]), report(Phase::Stopped, [0, 0, 45, 2])];
    let ran = drain(&["--watch"], DrainEnd::Closed, reports).await;
    assert_eq!(
        ran.text(),
        "STOPPING  0 queued  2 running  expected to end in 7s  hard stop 30s\n\
         drained 45/47 in 6.8s, lost 2\n  \
         help: the receipt, the last line of the server's output, names them\n"
    );
    assert_eq!(ran.exit, Exit::JobsLost);
}

#[tokio::test]
async fn answers_that_were_cut_have_the_code_of_lost_jobs() {
    let last = DrainResponse { cut: 1, ..report(Phase::Stopped, [0, 0, 47, 0]) };
    let ran = drain(&["--watch"], DrainEnd::Closed, vec![last]).await;
    assert!(ran.text().starts_with("drained 47/47 in 6.8s, lost 0, answers cut 1\n"), "{}", ran.text());
    assert_eq!(ran.exit, Exit::JobsLost);
}

#[tokio::test]
async fn json_has_one_line_per_report() {
    let reports = vec![first(), report(Phase::Stopped, [0, 0, 47, 0])];
    let line = ["--watch", "--output", "json"];
    let ran = drain(&line, DrainEnd::Closed, reports).await;
    let lines: Vec<serde_json::Value> = ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines[0],
        serde_json::json!({
            "phase": "PHASE_DRAINING",
            "queued": 41,
            "running": 6,
            "finished": 0,
            "lost": 0,
            "elapsed": "6.800s",
            "expected": "6.100s",
            "hard_stop": "30s",
            "cut": 0,
        })
    );
    assert_eq!(lines[1]["phase"], "PHASE_STOPPED");
    assert_eq!(lines.len(), 2);
}

#[tokio::test]
async fn nothing_there_names_the_flag_for_it() {
    let mut line = Line::try_parse_from(["drain"]).unwrap();
    line.args.steer.operator.ops = fake::closed_address().await;
    let mut console = Console { out: Sink::pipe(tokio::io::sink()), err: Sink::pipe(tokio::io::sink()) };
    let failure = run(line.args, &mut console).await.unwrap_err();
    assert!(failure.text().ends_with("or pass --ops"), "{}", failure.text());
    assert_eq!(failure.exit(), Exit::Unreachable);
}
