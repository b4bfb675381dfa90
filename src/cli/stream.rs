//! `waterwheel stream`.

use clap::Args;
use tonic::Streaming;

use super::{
    access::ServerArgs,
    connect::{Call, CallArgs, Connection},
    console::{Console, FAINT, paint},
    failure::{Exit, Failure},
    job::JobArgs,
    output::{self, Format, bytes, message_json, percent, sanitized},
};
use crate::proto::{Finished, Progress, StreamRequest, StreamResponse, stream_response::Event};

/// Run one job and print its output as it arrives.
///
/// The output goes to standard output piece by piece. Progress and timing go to standard error.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel stream gzip --file README.md > README.md.gz")]
pub(super) struct StreamArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Show progress even without a terminal.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    call: CallArgs,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(args: StreamArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let StreamArgs { job, progress, call, server } = args;
    let job = Some(job.into_job().await?);
    let call = server.call(call).await?;
    let send = async |server: &Connection, request| server.worker_pool().stream(request).await;
    let mut events = call.ask(StreamRequest { job }, send).await?;
    let mut display = ProgressDisplay::new(progress, console);
    let followed = display.follow(&call, &mut events, console).await;
    display.clear(console).await?;
    if display.is_mid_line && console.out.is_terminal() {
        console.out.bytes(b"\n").await?;
    }
    let finished = followed?.ok_or_else(|| Failure::incomplete(&server.server, "end of the job"))?;
    if console.format == Format::Text {
        console.err.line(&output::waterfall(&finished.waterfall.unwrap_or_default())).await?;
    }
    Ok(Exit::Done)
}

/// Progress: redrawn in place on a terminal, otherwise a line per report of the handler.
struct ProgressDisplay {
    style: DisplayStyle,
    /// Whether output and progress go to one terminal. Then progress is not drawn while the output is within a line.
    shares_terminal: bool,
    /// Whether the last byte of output was not a newline.
    is_mid_line: bool,
    written: u64,
    progress: Option<Progress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DisplayStyle {
    Hidden,
    Redrawn,
    Lines,
}

impl ProgressDisplay {
    /// Shows progress on a terminal, and elsewhere only with `progress`.
    fn new(progress: bool, console: &Console<'_>) -> Self {
        let shared = console.out.is_terminal() && console.err.is_terminal();
        let style = match console.err.is_terminal() {
            _ if console.format == Format::Json => DisplayStyle::Hidden,
            is_terminal if progress && (shared || !is_terminal) => DisplayStyle::Lines,
            true => DisplayStyle::Redrawn,
            false => DisplayStyle::Hidden,
        };
        Self { style, shares_terminal: shared, is_mid_line: false, written: 0, progress: None }
    }

    /// Shows all events. Returns the last one if the job completed.
    async fn follow(
        &mut self,
        call: &Call,
        events: &mut Streaming<StreamResponse>,
        console: &mut Console<'_>,
    ) -> Result<Option<Finished>, Failure> {
        let mut end = None;
        while let Some(response) = call.wait(events.message()).await? {
            if console.format == Format::Json {
                console.out.line(&message_json(&response)?).await?;
            }
            match response.event {
                Some(Event::Finished(finished)) => end = Some(finished),
                Some(event) if console.format == Format::Text => self.show(event, console).await?,
                _ => {}
            }
        }
        Ok(end)
    }

    async fn show(&mut self, event: Event, console: &mut Console<'_>) -> Result<(), Failure> {
        match event {
            Event::OutputChunk(chunk) => {
                if self.shares_terminal {
                    self.clear(console).await?;
                }
                console.out.bytes(&chunk.data).await?;
                self.written += chunk.data.len() as u64;
                self.is_mid_line = chunk.data.last().map_or(self.is_mid_line, |last| *last != b'\n');
                self.redraw(console).await
            }
            Event::Progress(progress) => {
                self.progress = Some(progress);
                if self.style == DisplayStyle::Lines {
                    console.err.line(&self.line()).await?;
                }
                self.redraw(console).await
            }
            Event::Started(started) => Ok(console.err.line(&output::job_id(&started.job_id)).await?),
            Event::Finished(_) => Ok(()),
        }
    }

    async fn redraw(&self, console: &mut Console<'_>) -> Result<(), Failure> {
        self.clear(console).await?;
        if self.is_drawn() {
            console.err.text(&self.line()).await?;
        }
        Ok(())
    }

    async fn clear(&self, console: &mut Console<'_>) -> Result<(), Failure> {
        if self.is_drawn() {
            console.err.bytes(b"\r\x1b[K").await?;
        }
        Ok(())
    }

    fn is_drawn(&self) -> bool {
        self.style == DisplayStyle::Redrawn && !(self.shares_terminal && self.is_mid_line)
    }

    fn line(&self) -> String {
        let written = format!("{} written", bytes(self.written));
        match &self.progress {
            Some(progress) => {
                let message = sanitized(&progress.message).replace('\n', " ");
                let text = format!("{}  {written}  {message}", percent(progress.fraction));
                paint(FAINT, text.trim_end())
            }
            None => paint(FAINT, written),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tonic::Status;

    use super::{StreamArgs, run};
    use crate::{
        cli::{
            failure::Exit,
            fake::{self, Line, Ran, ReadBy, Script},
        },
        proto::{Finished, OutputChunk, Progress, Started, StreamResponse, stream_response::Event},
    };

    const JOB: &str = "  job j1\n";
    const WATERFALL: &str = "done in 1.503s   budget 2s = queue 0.4ms + run 1503ms + left 497ms\n";

    async fn stream(line: &[&str], read_by: ReadBy, events: Vec<Result<Event, Status>>) -> Ran {
        let line = Line::<StreamArgs>::try_parse_from(["stream"].iter().chain(line)).unwrap();
        let format = line.format;
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
        let lines: Vec<serde_json::Value> =
            ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
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
}
