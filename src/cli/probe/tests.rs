//! Tests of `waterwheel probe` against a scripted server.

use std::time::Duration;

use clap::Parser;

use super::{ProbeArgs, run};
use crate::{
    cli::{
        console::{Console, Sink},
        exit::Exit,
        fake::{self, Ran, ReadBy, Script},
    },
    proto::health::health_check_response::ServingStatus::{self, NotServing, Serving},
};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ProbeArgs,
}

async fn probe(line: &[&str], script: Script) -> Ran {
    let line = Line::try_parse_from(["probe"].iter().chain(line)).unwrap();
    let format = line.args.output.format;
    fake::run(script, ReadBy::Program, format, async |address, console| {
        let mut args = line.args;
        args.server.server = address;
        run(args, console).await
    })
    .await
}

fn health(health: Vec<(&'static str, Vec<ServingStatus>)>) -> Script {
    Script { health, ..Script::default() }
}

#[tokio::test]
async fn each_answer_has_its_line_and_its_code() {
    let script = || {
        health(vec![
            ("", vec![Serving]),
            ("readiness", vec![NotServing]),
            ("pool/x", vec![ServingStatus::ServiceUnknown]),
        ])
    };
    let cases = [
        ("", "SERVING  ", Exit::Done),
        ("readiness", "NOT_SERVING  readiness ", Exit::Failed),
        ("pool/x", "SERVICE_UNKNOWN  pool/x ", Exit::Failed),
        ("nobody", "SERVICE_UNKNOWN  nobody ", Exit::Failed),
    ];
    for (service, start, exit) in cases {
        let ran = probe(&["--service", service], script()).await;
        assert!(ran.text().starts_with(start), "{}", ran.text());
        assert_eq!(ran.text().lines().count(), 1);
        assert_eq!(ran.exit, exit, "{service}");
    }
}

#[tokio::test]
async fn waiting_asks_until_it_serves() {
    let starts = || health(vec![("", vec![NotServing, NotServing, Serving])]);
    assert_eq!(probe(&["--wait", "10s"], starts()).await.exit, Exit::Done);
    assert_eq!(probe(&[], starts()).await.exit, Exit::Failed);
    assert_eq!(probe(&["--wait", "0s"], starts()).await.exit, Exit::Failed);
}

#[tokio::test]
async fn no_answer_is_told_in_one_line() {
    let silent = Script { delay: Duration::from_secs(60), ..Script::default() };
    let ran = probe(&["--timeout", "50ms"], silent).await;
    assert!(ran.err.ends_with(": no answer within 50ms\n"), "{}", ran.err);
    assert_eq!(ran.exit.code(), 2);

    let mut line = Line::try_parse_from(["probe"]).unwrap();
    line.args.server.server = fake::closed_address().await;
    let mut err = Vec::new();
    let mut console = Console { out: Sink::pipe(tokio::io::sink()), err: Sink::pipe(&mut err) };
    let exit = run(line.args, &mut console).await.unwrap();
    drop(console);
    let err = String::from_utf8(err).unwrap();
    assert!(err.ends_with(": connection refused\n"), "{err}");
    assert_eq!((exit.code(), err.lines().count()), (2, 1));
}

#[tokio::test]
async fn json_names_the_status() {
    let ran = probe(&["--output", "json"], health(vec![("", vec![Serving])])).await;
    let value: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
    assert_eq!(value["status"], "SERVING");
}
