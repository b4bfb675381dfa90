//! Tests of `waterwheel submit` and `waterwheel stream` against a scripted server.

use std::time::Duration;

use clap::Parser;
use tonic::Status;

use super::{StreamArgs, SubmitArgs};
use crate::{
    cli::{
        failure::Exit,
        fake::{self, Line, Ran, ReadBy, Script},
    },
    proto::{Finished, OutputChunk, Progress, Started, StreamResponse, stream_response::Event},
};

const JOB: &str = "  job j1\n";
const WATERFALL: &str = "done in 1.5s   budget 2s = queue 0.4ms + run 1503ms + left 497ms\n";

async fn submit(line: &[&str], read_by: ReadBy, script: Script) -> Ran {
    let Line { mut args, format } = Line::<SubmitArgs>::try_parse_from(["submit"].iter().chain(line)).unwrap();
    fake::run(script, read_by, format, async |address, console| {
        args.server.server = address;
        super::submit(args, console).await
    })
    .await
}

fn answers(output: &'static [u8]) -> Script {
    Script { result: Some(Ok(fake::result(output))), ..Script::default() }
}

#[tokio::test]
async fn a_program_gets_exactly_the_bytes() {
    let ran = submit(&["echo", "x"], ReadBy::Program, answers(b"a\0\xff")).await;
    assert_eq!(ran.out, b"a\0\xff");
    assert_eq!(ran.err, format!("{WATERFALL}  job j1\n"));
    assert_eq!(ran.exit, Exit::Done);
}

#[tokio::test]
async fn a_person_gets_the_end_of_the_line() {
    let ran = submit(&["echo", "x"], ReadBy::Person, answers(b"abc")).await;
    assert_eq!(ran.text(), "abc\n");
    let ran = submit(&["echo", "x"], ReadBy::Person, answers(b"abc\n")).await;
    assert_eq!(ran.text(), "abc\n");
}

#[tokio::test]
async fn json_holds_the_whole_result() {
    let line = ["echo", "x", "--output", "json"];
    let ran = submit(&line, ReadBy::Program, answers(b"abc")).await;
    let value: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
    assert_eq!(
        value,
        serde_json::json!({
            "job_id": "j1",
            "output": "YWJj",
            "content_type": "text/plain",
            "waterfall": {
                "budget_seconds": 2.0,
                "queue_seconds": 0.0004,
                "run_seconds": 1.503,
                "left_seconds": 0.4966,
                "worker": 3,
            },
        })
    );
    assert_eq!(ran.err, "");
}

#[tokio::test]
async fn the_deadline_and_the_request_id_travel_as_metadata() {
    let line = ["echo", "x", "--deadline", "1.5s", "--request-id", "req-7"];
    let ran = submit(&line, ReadBy::Program, answers(b"")).await;
    let (job, metadata) = &ran.seen.jobs[0];
    assert_eq!(job.payload.as_ref(), b"x");
    assert_eq!(metadata.get("grpc-timeout").unwrap(), "1500000u");
    assert_eq!(metadata.get("x-request-id").unwrap(), "req-7");
    let agent = metadata.get("user-agent").unwrap().to_str().unwrap();
    assert!(agent.starts_with("waterwheel/"), "{agent}");

    let ran = submit(&["echo"], ReadBy::Program, answers(b"")).await;
    let (_, metadata) = &ran.seen.jobs[0];
    assert!(metadata.get("grpc-timeout").is_none());
    assert!(metadata.get("x-request-id").is_none());
}

#[tokio::test]
async fn messages_may_be_larger_than_the_usual_limit() {
    const SIZE: usize = 9 << 20;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; SIZE]).unwrap();
    let output: &'static [u8] = Box::leak(vec![9; SIZE].into_boxed_slice());
    let path = file.path().to_str().unwrap();
    let ran = submit(&["echo", "--file", path], ReadBy::Program, answers(output)).await;
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(ran.seen.jobs[0].0.payload.len(), SIZE);
    assert_eq!(ran.out.len(), SIZE);
}

#[tokio::test]
async fn a_refusal_is_told_on_standard_error() {
    let refuses = || Script { result: Some(Err(Status::unavailable("not now"))), ..Script::default() };
    let ran = submit(&["echo"], ReadBy::Program, refuses()).await;
    assert_eq!(ran.err, "UNAVAILABLE  not now\n");
    assert_eq!((ran.text().as_str(), ran.exit), ("", Exit::Failed));

    let ran = submit(&["echo", "--output", "json"], ReadBy::Program, refuses()).await;
    let value: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(value["error"]["code"], "UNAVAILABLE");
}

#[tokio::test]
async fn an_answer_soon_after_the_deadline_still_counts() {
    let script = Script {
        result: Some(Err(Status::deadline_exceeded("too slow"))),
        delay: Duration::from_millis(150),
        ..Script::default()
    };
    let ran = submit(&["sleep", "--deadline", "50ms"], ReadBy::Program, script).await;
    assert_eq!(ran.err, "DEADLINE_EXCEEDED  too slow\n");
    assert_eq!(ran.exit, Exit::DeadlineExceeded);
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let line = ["sleep", "--deadline", "50ms"];
    let ran = submit(&line, ReadBy::Program, Script::default()).await;
    assert_eq!(
        ran.err,
        "no answer by the deadline of 50ms; whether the job started is unknown\n  \
         help: see \"waterwheel stats\" for the state of the server\n"
    );
    assert_eq!(ran.exit, Exit::DeadlineExceeded);
}

async fn stream(line: &[&str], read_by: ReadBy, events: Vec<Result<Event, Status>>) -> Ran {
    let Line { mut args, format } = Line::<StreamArgs>::try_parse_from(["stream"].iter().chain(line)).unwrap();
    let numbered = |(event, sequence): (Result<Event, Status>, u64)| {
        event.map(|event| StreamResponse { sequence, event: Some(event) })
    };
    let script = Script { events: events.into_iter().zip(1..).map(numbered).collect(), ..Script::default() };
    fake::run(script, read_by, format, async |address, console| {
        args.server.server = address;
        super::stream(args, console).await
    })
    .await
}

fn started() -> Result<Event, Status> {
    Ok(Event::Started(Started { job_id: "j1".to_owned(), worker: 3 }))
}

fn chunk(data: &'static [u8]) -> Result<Event, Status> {
    Ok(Event::OutputChunk(OutputChunk { data: data.into() }))
}

fn progress(fraction: f64, message: &str) -> Result<Event, Status> {
    Ok(Event::Progress(Progress { fraction, message: message.to_owned() }))
}

fn finished(output_bytes: u64) -> Result<Event, Status> {
    Ok(Event::Finished(Finished {
        job_id: "j1".to_owned(),
        content_type: "text/plain".to_owned(),
        output_bytes,
        waterfall: Some(fake::waterfall()),
    }))
}

fn whole() -> Vec<Result<Event, Status>> {
    vec![started(), chunk(b"a\0"), progress(0.5, "half\x1b"), chunk(b"\xffz"), finished(4)]
}

#[tokio::test]
async fn the_output_is_the_pieces_in_order() {
    let ran = stream(&["gzip", "x"], ReadBy::Program, whole()).await;
    assert_eq!(ran.out, b"a\0\xffz");
    assert_eq!(ran.err, format!("{JOB}{WATERFALL}"));
    assert_eq!(ran.exit, Exit::Done);
}

#[tokio::test]
async fn asked_for_progress_comes_in_lines_without_a_terminal() {
    let ran = stream(&["gzip", "x", "--progress"], ReadBy::Program, whole()).await;
    assert_eq!(ran.err, format!("{JOB}50%  2B written  half\u{fffd}\n{WATERFALL}"));
}

#[tokio::test]
async fn a_person_sees_one_line_redrawn_and_then_gone() {
    let ran = stream(&["gzip", "x"], ReadBy::FileAndPerson, whole()).await;
    assert_eq!(
        ran.err,
        format!(
            "{JOB}\r\x1b[K2B written\r\x1b[K50%  2B written  half\u{fffd}\
             \r\x1b[K50%  4B written  half\u{fffd}\r\x1b[K{WATERFALL}"
        )
    );
}

#[tokio::test]
async fn progress_keeps_out_of_lines_of_output_on_the_same_terminal() {
    let ran = stream(&["gzip", "x"], ReadBy::Person, whole()).await;
    assert_eq!((ran.out.as_slice(), ran.err), (&b"a\0\xffz\n"[..], format!("{JOB}\r\x1b[K{WATERFALL}")));
    let ran = stream(&["gzip", "x", "--progress"], ReadBy::Person, whole()).await;
    assert_eq!(ran.err, format!("{JOB}50%  2B written  half\u{fffd}\n{WATERFALL}"));
    let lines = vec![started(), progress(0.5, "half"), chunk(b"a\n"), finished(2)];
    let ran = stream(&["gzip", "x"], ReadBy::Person, lines).await;
    let drawn = "\r\x1b[K50%  0B written  half\r\x1b[K\r\x1b[K50%  2B written  half\r\x1b[K";
    assert_eq!((ran.out.as_slice(), ran.err), (&b"a\n"[..], format!("{JOB}{drawn}{WATERFALL}")));
}

#[tokio::test]
async fn json_has_one_line_per_event() {
    let ran = stream(&["gzip", "--output", "json"], ReadBy::Program, whole()).await;
    let lines: Vec<serde_json::Value> = ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let waterfall = lines[4]["finished"]["waterfall"].clone();
    assert_eq!(waterfall["run_seconds"], 1.503);
    assert_eq!(
        lines,
        [
            serde_json::json!({"sequence": 1, "started": {"job_id": "j1", "worker": 3}}),
            serde_json::json!({"sequence": 2, "output_chunk": {"data": "YQA="}}),
            serde_json::json!({"sequence": 3, "progress": {"fraction": 0.5, "message": "half\u{1b}"}}),
            serde_json::json!({"sequence": 4, "output_chunk": {"data": "/3o="}}),
            serde_json::json!({"sequence": 5, "finished": {
                "job_id": "j1",
                "content_type": "text/plain",
                "output_bytes": 4,
                "waterfall": waterfall,
            }}),
        ]
    );
    assert_eq!(ran.err, "");
}

#[tokio::test]
async fn a_failure_in_the_middle_keeps_what_came_and_fails() {
    let events = vec![started(), chunk(b"ab"), Err(Status::aborted("killed"))];
    let ran = stream(&["gzip"], ReadBy::FileAndPerson, events).await;
    assert_eq!(ran.out, b"ab");
    assert_eq!(ran.err, format!("{JOB}\r\x1b[K2B written\r\x1b[KABORTED  killed\n"));
    assert_eq!(ran.exit, Exit::Failed);
}

#[tokio::test]
async fn a_stream_without_its_end_is_reported() {
    for format in ["text", "json"] {
        let events = vec![started(), chunk(b"ab")];
        let ran = stream(&["gzip", "--output", format], ReadBy::Program, events).await;
        assert!(ran.err.contains("has no end of the job"), "{}", ran.err);
        assert_eq!(ran.exit, Exit::Failed);
    }
}
