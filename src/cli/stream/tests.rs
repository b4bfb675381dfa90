//! Tests of `waterwheel stream` against a scripted server.

use clap::Parser;
use tonic::Status;

use super::{StreamArgs, run};
use crate::{
    cli::{
        exit::Exit,
        fake::{self, Ran, ReadBy, Script},
    },
    proto::{Finished, OutputChunk, Progress, Started, StreamResponse, stream_response::Event},
};

const JOB: &str = "  job j1\n";
const WATERFALL: &str = "done in 1.503s   budget 2s = queue 0.4ms + run 1503ms + left 497ms\n";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: StreamArgs,
}

async fn stream(line: &[&str], read_by: ReadBy, events: Vec<Result<Event, Status>>) -> Ran {
    let line = Line::try_parse_from(["stream"].iter().chain(line)).unwrap();
    let format = line.args.output.format;
    let numbered = |(event, sequence): (Result<Event, Status>, u64)| {
        event.map(|event| StreamResponse { sequence, event: Some(event) })
    };
    let script = Script { events: events.into_iter().zip(1..).map(numbered).collect(), ..Script::default() };
    fake::run(script, read_by, format, async |address, console| {
        let mut args = line.args;
        args.server.server = address;
        run(args, console).await
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
    assert_eq!(waterfall["run"], "1.503s");
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
