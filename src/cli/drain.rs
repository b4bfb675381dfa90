//! `waterwheel drain`: starts a drain and follows it. The drain itself is in `src/app/drain.rs`.

use clap::Args;
use tonic::Streaming;

use super::{
    call::{Call, CallArgs},
    console::{BAD, Console, GOOD, WARN, paint},
    exit::Exit,
    failure::Failure,
    output::{Format, countdown, duration, elapsed, json, rough},
    steer::SteerArgs,
};
use crate::proto::{DrainRequest, DrainResponse, Phase};

const EXAMPLE: &str = "\
Example:
  waterwheel drain --watch";

/// Finish queued and running jobs, then stop the server.
///
/// Or finish the jobs of one pool. It starts the drain and returns; with --watch it reports until the end. The drain
/// continues if this command ends. With --pool, the pool refuses new jobs and finishes the others, the rest of the
/// server continues, and "waterwheel resume" reverts it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct DrainArgs {
    /// Drain this pool only.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    /// Report until the drain ends; exit 3 if jobs were lost or answers cut.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    pub(super) steer: SteerArgs,
}

pub(super) async fn run(args: DrainArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let format = args.steer.operator.format();
    let DrainArgs { pool, steer: SteerArgs { operator, reason }, .. } = &args;
    let (call, connection) = operator.begin_with(CallArgs::none()).await?;
    let request = call.request(DrainRequest { pool: pool.clone(), reason: reason.clone() });
    let reports = call.wait(connection.admin().drain(request)).await;
    let mut reports = reports.map_err(|failure| failure.of_ops(&operator.ops))?.into_inner();
    let mut watch = Watch::default();
    let followed = follow(&call, &mut reports, &args, &mut watch, console).await;
    watch.leave(console).await?;
    if followed? == Followed::First {
        // An idle server is drained at once, without any progress to show.
        if let (Format::Text, Some(last)) = (format, watch.last.filter(|last| last.phase() == Phase::Stopped)) {
            console.out.line(&receipt(&last)).await?;
        }
        return Ok(Exit::Done);
    }
    let last = watch.ended()?;
    if last.phase() == Phase::Serving {
        return Err(Failure::DrainResumed { queued: last.queued, running: last.running });
    }
    if format == Format::Text {
        console.out.line(&receipt(&last)).await?;
    }
    match last.lost + last.cut {
        0 => Ok(Exit::Done),
        _ => Ok(Exit::JobsLost),
    }
}

/// Where the reports ended.
#[derive(Debug, PartialEq, Eq)]
enum Followed {
    /// After the first one, without --watch.
    First,
    /// To the end of the call.
    End,
}

async fn follow(
    call: &Call,
    reports: &mut Streaming<DrainResponse>,
    args: &DrainArgs,
    watch: &mut Watch,
    console: &mut Console<'_>,
) -> Result<Followed, Failure> {
    loop {
        match call.wait(reports.message()).await {
            Ok(Some(report)) => {
                watch.show(report, args.steer.operator.format(), console).await?;
                if !args.watch {
                    return Ok(Followed::First);
                }
            }
            // The server closes the connection when it exits.
            Ok(None) | Err(Failure::Lost { .. }) => return Ok(Followed::End),
            Err(failure) => return Err(failure),
        }
    }
}

/// The reports so far.
#[derive(Default)]
struct Watch {
    last: Option<DrainResponse>,
    shown: String,
}

impl Watch {
    async fn show(&mut self, report: DrainResponse, format: Format, console: &mut Console<'_>) -> Result<(), Failure> {
        match format {
            Format::Json => {
                let line = json::message(&report)?;
                console.out.line(&line).await?;
            }
            Format::Text => {
                let line = progress(&report);
                if report.phase() != Phase::Stopped && line != self.shown {
                    self.draw(&line, console).await?;
                    self.shown = line;
                }
            }
        }
        self.last = Some(report);
        Ok(())
    }

    /// Draws one line: replaced in place on a terminal, else a line for each change.
    async fn draw(&self, line: &str, console: &mut Console<'_>) -> Result<(), Failure> {
        if !console.out.is_terminal() {
            return Ok(console.out.line(line).await?);
        }
        console.out.control("\r\x1b[K").await?;
        Ok(console.out.text(line).await?)
    }

    /// Ends the line on the terminal.
    async fn leave(&self, console: &mut Console<'_>) -> Result<(), Failure> {
        if console.out.is_terminal() && !self.shown.is_empty() {
            console.out.bytes(b"\n").await?;
        }
        Ok(())
    }

    /// The last report, if nothing is left to do.
    fn ended(self) -> Result<DrainResponse, Failure> {
        let last = self.last.unwrap_or_default();
        let idle = last.queued == 0 && last.running == 0;
        let begun = last.phase() != Phase::Unspecified;
        if matches!(last.phase(), Phase::Stopped | Phase::Serving) || (idle && begun) {
            Ok(last)
        } else {
            Err(Failure::DrainUnseen { queued: last.queued, running: last.running })
        }
    }
}

fn progress(report: &DrainResponse) -> String {
    let phase = match report.phase() {
        Phase::Draining => paint(WARN, "NOT_SERVING"),
        Phase::Stopping => paint(BAD, "STOPPING"),
        phase => phase.as_str_name().trim_start_matches("PHASE_").to_owned(),
    };
    let mut line = format!("{phase}  {} queued  {} running", report.queued, report.running);
    let expected = duration(report.expected.as_ref());
    if !expected.is_zero() {
        line.push_str(&format!("  expected to end in {}", countdown(expected)));
    }
    if report.hard_stop.is_some() {
        let stop = countdown(duration(report.hard_stop.as_ref()));
        line.push_str(&format!("  hard stop {stop}"));
    }
    if report.lost > 0 {
        line.push_str(&format!("  {}", paint(BAD, format!("{} lost", report.lost))));
    }
    line
}

fn receipt(last: &DrainResponse) -> String {
    let all = last.finished + last.lost;
    let time = duration(last.elapsed.as_ref());
    let time = match time.as_secs() {
        0 => elapsed(time),
        _ => rough(time),
    };
    let mut lost = format!("lost {}", last.lost);
    if last.cut > 0 {
        lost.push_str(&format!(", answers cut {}", last.cut));
    }
    match last.lost + last.cut {
        0 => format!("drained {}/{all} in {time}, {}", last.finished, paint(GOOD, lost)),
        _ => format!(
            "drained {}/{all} in {time}, {}\n  help: the receipt, the last line of the server's output, names them",
            last.finished,
            paint(BAD, lost)
        ),
    }
}

#[cfg(test)]
mod tests;
