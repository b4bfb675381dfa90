//! `waterwheel drain`: starts a drain and follows it. `src/app/drain.rs` carries it out.

use std::time::Duration;

use clap::Args;

use super::{
    connect::{CallArgs, Target},
    console::{BAD, Console, GOOD, WARN, paint},
    failure::{Exit, Failure},
    operate::ChangeArgs,
    output::{Format, duration, message_json, setting, short},
};
use crate::proto::{DrainRequest, DrainResponse, Phase};

/// Finish queued and running jobs, then stop the server.
///
/// Or finish the jobs of one pool. It starts the drain and returns; with --watch it reports until the end. The drain
/// continues if this command ends. With --pool, the pool refuses new jobs and finishes the others, the rest of the
/// server continues, and "waterwheel resume" reverts it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel drain --watch")]
pub(super) struct DrainArgs {
    /// Drain this pool only.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    /// Report until the drain ends; exit 3 if jobs were lost or answers cut.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

pub(super) async fn run(args: DrainArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let DrainArgs { pool, watch, change: ChangeArgs { reason, operator } } = args;
    let call = operator.call(CallArgs::default()).await?;
    let mut reports = call.ask(async |server| server.admin().drain(DrainRequest { pool, reason }).await).await?;
    let (mut last, mut shown) = (DrainResponse::default(), String::new());
    let followed = loop {
        match call.wait(reports.message()).await {
            Ok(Some(report)) => {
                show(&report, &mut shown, console).await?;
                last = report;
                if !watch {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            // The server closes the connection when it exits.
            Err(failure) if failure.is_lost() => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    if console.out.is_terminal() && !shown.is_empty() {
        console.out.bytes(b"\n").await?;
    }
    followed?;
    if watch || last.phase() == Phase::Unspecified {
        check_end(&last)?;
    }
    // An idle server drains at once, without progress to show.
    if console.format == Format::Text && (watch || last.phase() == Phase::Stopped) {
        console.out.line(&receipt(&last)).await?;
    }
    Ok(if watch && last.lost + last.cut > 0 { Exit::JobsLost } else { Exit::Done })
}

/// Fails unless the last report says that nothing is left to do.
fn check_end(last: &DrainResponse) -> Result<(), Failure> {
    let left = format!("with {} queued and {} running", last.queued, last.running);
    let is_idle = last.queued == 0 && last.running == 0;
    match last.phase() {
        Phase::Stopped => Ok(()),
        Phase::Serving => {
            let what = format!("the pool was resumed before it was drained, {left}");
            Err(Failure::new(Exit::Failed, what, "drain it again when it is no longer needed"))
        }
        phase if is_idle && phase != Phase::Unspecified => Ok(()),
        _ => {
            let help = "the receipt, the last line of the server's output, names what was lost";
            Err(Failure::new(Exit::Failed, format!("the connection ended during the drain, {left}"), help))
        }
    }
}

/// Shows a report, on a terminal in place of the line that is `shown`.
async fn show(report: &DrainResponse, shown: &mut String, console: &mut Console<'_>) -> Result<(), Failure> {
    if console.format == Format::Json {
        return Ok(console.out.line(&message_json(report)?).await?);
    }
    let line = progress(report);
    if report.phase() != Phase::Stopped && line != *shown {
        if console.out.is_terminal() {
            console.out.bytes(b"\r\x1b[K").await?;
            console.out.text(&line).await?;
        } else {
            console.out.line(&line).await?;
        }
        *shown = line;
    }
    Ok(())
}

fn progress(report: &DrainResponse) -> String {
    let phase = match report.phase() {
        Phase::Draining => paint(WARN, "NOT_SERVING"),
        Phase::Stopping => paint(BAD, "STOPPING"),
        phase => phase.as_str_name().trim_start_matches("PHASE_").to_owned(),
    };
    let mut line = format!("{phase}  {} queued  {} running", report.queued, report.running);
    if !duration(report.expected).is_zero() {
        line.push_str(&format!("  expected to end in {}", countdown(report.expected)));
    }
    if report.hard_stop.is_some() {
        line.push_str(&format!("  hard stop {}", countdown(report.hard_stop)));
    }
    if report.likely_lost > 0 {
        let late = format!("  {} will probably be stopped", report.likely_lost);
        line.push_str(&paint(WARN, late));
    }
    if report.lost > 0 {
        line.push_str(&format!("  {}", paint(BAD, format!("{} lost", report.lost))));
    }
    line
}

/// Time left, rounded up to whole seconds, such as `7s`.
fn countdown(left: Option<prost_types::Duration>) -> String {
    setting(Duration::from_secs(duration(left).as_secs_f64().ceil() as u64))
}

fn receipt(last: &DrainResponse) -> String {
    let all = last.finished + last.lost;
    let time = short(last.elapsed);
    let mut lost = format!("lost {}", last.lost);
    if last.given_back > 0 {
        lost.push_str(&format!(", given back {}", last.given_back));
    }
    if last.cut > 0 {
        lost.push_str(&format!(", answers cut {}", last.cut));
    }
    let (style, help) = match last.lost + last.cut {
        0 => (GOOD, ""),
        _ => (BAD, "\n  help: the receipt, the last line of the server's output, names them"),
    };
    format!("drained {}/{all} in {time}, {}{help}", last.finished, paint(style, lost))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{DrainArgs, run};
    use crate::{
        cli::{
            console::Console,
            failure::Exit,
            fake::{self, DrainEnd, Line, Ran, ReadBy, Script},
        },
        proto::{DrainResponse, Phase},
    };

    async fn drain(line: &[&str], drain_end: DrainEnd, reports: Vec<DrainResponse>) -> Ran {
        drain_for(ReadBy::Program, line, drain_end, reports).await
    }

    async fn drain_for(read_by: ReadBy, line: &[&str], drain_end: DrainEnd, reports: Vec<DrainResponse>) -> Ran {
        let line = Line::<DrainArgs>::try_parse_from(["drain"].iter().chain(line)).unwrap();
        let format = line.format;
        let script = Script { reports, drain_end, ..Script::default() };
        fake::run(script, read_by, format, async |address, console| {
            let mut args = line.args;
            args.change.operator.ops = address;
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
            ..DrainResponse::default()
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
        let ran = drain(&["--pool", "cpu"], DrainEnd::Cut, vec![idle.clone()]).await;
        assert_eq!((ran.text().as_str(), ran.exit), ("drained 0/0 in 6.8s, lost 0\n", Exit::Done));
        let ran = drain(&["--pool", "cpu", "--output", "json"], DrainEnd::Cut, vec![idle]).await;
        let line: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
        assert_eq!((&line["phase"], ran.exit), (&"PHASE_STOPPED".into(), Exit::Done));
    }

    #[tokio::test]
    async fn watching_ends_with_the_receipt() {
        let stopped = report(Phase::Stopped, [0, 0, 47, 0]);
        for end in [DrainEnd::Closed, DrainEnd::Cut] {
            let ran = drain(&["--watch"], end, vec![first(), first(), stopped.clone()]).await;
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
        let lines: Vec<serde_json::Value> =
            ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
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
                "given_back": 0,
                "likely_lost": 0,
                "lost_job_ids": [],
                "reason": "",
                "principal": "",
            })
        );
        assert_eq!(lines[1]["phase"], "PHASE_STOPPED");
        assert_eq!(lines.len(), 2);
    }

    #[tokio::test]
    async fn nothing_there_names_the_flag_for_it() {
        let mut line = Line::<DrainArgs>::try_parse_from(["drain"]).unwrap();
        line.args.change.operator.ops = fake::closed_address().await;
        let mut console = Console::pipes(tokio::io::sink(), tokio::io::sink());
        let failure = run(line.args, &mut console).await.unwrap_err();
        assert!(failure.text().ends_with("--ops for operators"), "{}", failure.text());
        assert_eq!(failure.exit(), Exit::Unreachable);
    }
}
