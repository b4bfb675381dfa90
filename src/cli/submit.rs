//! `waterwheel submit`.

use clap::Args;

use super::{
    access::ServerArgs,
    connect::{CallArgs, Connection},
    console::Console,
    failure::{Exit, Failure},
    job::JobArgs,
    output::{Format, job_id, message_json, waterfall},
};
use crate::proto::SubmitRequest;

/// Run one job and print its output.
///
/// The output goes to standard output unchanged; on a terminal, a missing final newline is added. Timing goes to
/// standard error.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel submit sha256 \"hello waterwheel\" --deadline 2s")]
pub(super) struct SubmitArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    call: CallArgs,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(args: SubmitArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let SubmitArgs { job, call, server } = args;
    let job = Some(job.into_job().await?);
    let call = server.call(call).await?;
    let send = async |server: &Connection, request| server.worker_pool().submit(request).await;
    let answer = call.ask(SubmitRequest { job }, send).await?;
    let result = answer.result.ok_or_else(|| Failure::incomplete(&server.server, "result"))?;
    match console.format {
        Format::Json => console.out.line(&message_json(&result)?).await?,
        Format::Text => {
            console.out.output(&result.output).await?;
            console.err.line(&waterfall(&result.waterfall.unwrap_or_default())).await?;
            console.err.line(&job_id(&result.job_id)).await?;
        }
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use tonic::Status;

    use super::{SubmitArgs, run};
    use crate::cli::{
        failure::Exit,
        fake::{self, Line, Ran, ReadBy, Script},
    };

    const WATERFALL: &str = "done in 1.503s   budget 2s = queue 0.4ms + run 1503ms + left 497ms\n";

    async fn submit(line: &[&str], read_by: ReadBy, script: Script) -> Ran {
        let line = Line::<SubmitArgs>::try_parse_from(["submit"].iter().chain(line)).unwrap();
        let format = line.format;
        fake::run(script, read_by, format, async |address, console| {
            let mut args = line.args;
            args.server.server = address;
            run(args, console).await
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
}
