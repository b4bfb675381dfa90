//! `waterwheel submit` and `waterwheel stream`: run one job.

use clap::Args;
use tonic::Streaming;

use super::{
    access::ServerArgs,
    connect::{Call, CallArgs, Target},
    console::{Console, FAINT, paint},
    failure::{Exit, Failure},
    flags::JobArgs,
    output::{Format, job_id, message_json, percent, sanitized, waterfall},
};
use crate::{
    file::size_text,
    proto::{Finished, Progress, StreamRequest, StreamResponse, SubmitRequest, stream_response::Event},
};

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

pub(super) async fn submit(args: SubmitArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let SubmitArgs { job, call, server } = args;
    let job = Some(job.into_job().await?);
    let call = server.call(call).await?;
    let answer = call.ask(async |server| server.worker_pool().submit(SubmitRequest { job }).await).await?;
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

pub(super) async fn stream(args: StreamArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let StreamArgs { job, progress, call, server } = args;
    let job = Some(job.into_job().await?);
    let call = server.call(call).await?;
    let mut events = call.ask(async |server| server.worker_pool().stream(StreamRequest { job }).await).await?;
    let mut display = ProgressDisplay::new(progress, console);
    let followed = display.follow(&call, &mut events, console).await;
    display.clear(console).await?;
    if display.is_mid_line && console.out.is_terminal() {
        console.out.bytes(b"\n").await?;
    }
    let finished = followed?.ok_or_else(|| Failure::incomplete(&server.server, "end of the job"))?;
    if console.format == Format::Text {
        console.err.line(&waterfall(&finished.waterfall.unwrap_or_default())).await?;
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
            Event::Started(started) => Ok(console.err.line(&job_id(&started.job_id)).await?),
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
        let written = format!("{} written", size_text(self.written));
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
#[path = "tests/submit.rs"]
mod tests;
