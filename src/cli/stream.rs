//! `waterwheel stream`.

use clap::Args;
use tonic::Streaming;

use super::{
    call::{Call, CallArgs},
    connect::ServerArgs,
    console::{Console, FAINT, paint},
    exit::Exit,
    failure::Failure,
    job::JobArgs,
    output::{self, Format, OutputArgs, bytes, json, percent, plain},
};
use crate::proto::{Finished, Progress, StreamRequest, StreamResponse, stream_response::Event};

const EXAMPLE: &str = "\
Example:
  waterwheel stream gzip --file README.md > README.md.gz";

/// Run one job and print its output as it arrives.
///
/// The output goes to standard output piece by piece. Progress and timing go to standard error.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
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
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(super) async fn run(args: StreamArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let format = args.output.format;
    let address = &args.server.server;
    let meter = Meter::of(&args, console);
    let job = Some(args.job.into_job().await?);
    let (call, connection) = Call::begin(address, &args.server.access, args.call).await?;
    let mut client = connection.worker_pool();
    let request = call.request(StreamRequest { job });
    let mut events = call.wait(client.stream(request)).await?.into_inner();
    let finished = match format {
        Format::Json => as_json(&call, &mut events, console).await?,
        Format::Text => as_text(&call, &mut events, meter, console).await?,
    };
    match finished {
        Some(_) => Ok(Exit::Done),
        None => Err(Failure::Incomplete { address: address.clone(), missing: "end of the job" }),
    }
}

async fn as_json(
    call: &Call,
    events: &mut Streaming<StreamResponse>,
    console: &mut Console<'_>,
) -> Result<Option<Finished>, Failure> {
    let mut end = None;
    while let Some(response) = call.wait(events.message()).await? {
        let line = json::message(&response)?;
        console.out.line(&line).await?;
        if let Some(Event::Finished(finished)) = response.event {
            end = Some(finished);
        }
    }
    Ok(end)
}

async fn as_text(
    call: &Call,
    events: &mut Streaming<StreamResponse>,
    mut meter: Meter,
    console: &mut Console<'_>,
) -> Result<Option<Finished>, Failure> {
    let outcome = async {
        let mut end = None;
        while let Some(response) = call.wait(events.message()).await? {
            match response.event {
                Some(Event::OutputChunk(chunk)) => {
                    if meter.shares_line {
                        meter.clear(console).await?;
                    }
                    console.out.bytes(&chunk.data).await?;
                    meter.written += chunk.data.len() as u64;
                    meter.in_line = chunk.data.last().map_or(meter.in_line, |last| *last != b'\n');
                    meter.draw(Drawn::Figures, console).await?;
                }
                Some(Event::Progress(progress)) => {
                    meter.progress = Some(progress);
                    meter.draw(Drawn::Progress, console).await?;
                }
                Some(Event::Finished(finished)) => end = Some(finished),
                Some(Event::Started(started)) => console.err.line(&output::job_id(&started.job_id)).await?,
                None => {}
            }
        }
        Ok(end)
    }
    .await;
    meter.clear(console).await?;
    if meter.in_line && console.out.is_terminal() {
        console.out.bytes(b"\n").await?;
    }
    if let Ok(Some(finished)) = &outcome {
        let waterfall = finished.waterfall.unwrap_or_default();
        console.err.line(&output::waterfall(&waterfall)).await?;
    }
    outcome
}

/// Progress: redrawn in place on a terminal, else a line per report of the handler.
struct Meter {
    style: MeterStyle,
    /// Whether the output goes to the same terminal, so that nothing may be drawn into its lines.
    shares_line: bool,
    /// Whether the output is within a line.
    in_line: bool,
    written: u64,
    progress: Option<Progress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeterStyle {
    Hidden,
    Redrawn,
    Lines,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drawn {
    Figures,
    Progress,
}

impl Meter {
    fn of(args: &StreamArgs, console: &Console<'_>) -> Self {
        let shared = console.out.is_terminal() && console.err.is_terminal();
        let style = match args.output.format {
            Format::Json => MeterStyle::Hidden,
            Format::Text if args.progress && (shared || !console.err.is_terminal()) => MeterStyle::Lines,
            Format::Text if !console.err.is_terminal() => MeterStyle::Hidden,
            Format::Text => MeterStyle::Redrawn,
        };
        Self { style, shares_line: shared, in_line: false, written: 0, progress: None }
    }

    async fn draw(&self, drawn: Drawn, console: &mut Console<'_>) -> Result<(), Failure> {
        match (self.style, drawn) {
            (MeterStyle::Redrawn, _) if self.shares_line && self.in_line => {}
            (MeterStyle::Redrawn, _) => {
                console.err.control("\r\x1b[K").await?;
                console.err.text(&self.line()).await?;
            }
            (MeterStyle::Lines, Drawn::Progress) => console.err.line(&self.line()).await?,
            (MeterStyle::Lines, Drawn::Figures) | (MeterStyle::Hidden, _) => {}
        }
        Ok(())
    }

    async fn clear(&self, console: &mut Console<'_>) -> Result<(), Failure> {
        if self.style == MeterStyle::Redrawn && !(self.shares_line && self.in_line) {
            console.err.control("\r\x1b[K").await?;
        }
        Ok(())
    }

    fn line(&self) -> String {
        let written = format!("{} written", bytes(self.written));
        match &self.progress {
            Some(progress) => {
                let message = plain(&progress.message).replace('\n', " ");
                let text = format!("{}  {written}  {message}", percent(progress.fraction));
                paint(FAINT, text.trim_end())
            }
            None => paint(FAINT, written),
        }
    }
}

#[cfg(test)]
mod tests;
