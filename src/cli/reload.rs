//! `waterwheel reload`. The reload itself is in `src/app/reload.rs`.

use clap::Args;
use serde_json::json;

use super::{
    console::{BAD, Console, FAINT, STRONG, paint},
    exit::Exit,
    failure::Failure,
    output::{Format, counted, plain},
    steer::SteerArgs,
};
use crate::proto::{ReloadRequest, ReloadResponse, SettingChange};

const EXAMPLE: &str = "\
Exit codes:
  0  what differs was taken over; with --dry-run: it would be
  1  nothing was changed: the configuration has faults, or a key needs a restart

Example:
  waterwheel reload --dry-run";

/// Reload the configuration of the server.
///
/// SIGHUP does the same; this command prints the changes. All changes are applied, or none. Pools except for
/// ended_jobs, kinds, [auth.rule], [quota] and telemetry.log can be reloaded. If another key changed, it is named, and
/// nothing is applied. No call fails.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ReloadArgs {
    /// Print what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) steer: SteerArgs,
}

pub(super) async fn run(args: ReloadArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ReloadArgs { dry_run, steer } = args;
    let request = ReloadRequest { dry_run, reason: steer.reason.clone() };
    let answer = steer.operator.ask(request, async |mut admin, request| admin.reload(request).await).await?;
    let line = match steer.operator.format() {
        Format::Text => text(&answer, dry_run),
        Format::Json => json(&answer).to_string(),
    };
    console.out.line(&line).await?;
    let is_fine = answer.applied || dry_run && refusal(&answer).is_none();
    Ok(if is_fine { Exit::Done } else { Exit::Failed })
}

/// Why nothing was applied.
fn refusal(answer: &ReloadResponse) -> Option<&'static str> {
    if !answer.faults.is_empty() {
        return Some("the configuration has faults; nothing was changed");
    }
    let needs_restart = answer.changes.iter().any(|change| change.needs_restart);
    needs_restart.then_some("the marked keys need a restart; nothing was changed")
}

fn json(ReloadResponse { applied, changes, faults }: &ReloadResponse) -> serde_json::Value {
    let change = |SettingChange { key, old_value, new_value, needs_restart }: &SettingChange| json!({ "key": key, "old_value": old_value, "new_value": new_value, "needs_restart": needs_restart });
    json!({ "applied": applied, "changes": changes.iter().map(change).collect::<Vec<_>>(), "faults": faults })
}

fn text(answer: &ReloadResponse, dry_run: bool) -> String {
    let ReloadResponse { applied: _, changes, faults } = answer;
    let change = |SettingChange { key, old_value, new_value, needs_restart }: &SettingChange| {
        let restart = if *needs_restart { paint(BAD, "  needs a restart") } else { String::new() };
        format!("{}: {} → {}{restart}", paint(STRONG, plain(key)), paint(FAINT, plain(old_value)), plain(new_value))
    };
    let end = match refusal(answer) {
        Some(refusal) => paint(BAD, refusal),
        None if changes.is_empty() => "no changes".to_owned(),
        None if dry_run => format!("{} would change", counted(changes.len(), "setting")),
        None => format!("{} changed", counted(changes.len(), "setting")),
    };
    let faults = faults.lines().map(plain);
    faults.chain(changes.iter().map(change)).chain([end]).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_what_became_of_it() {
        let change = |needs_restart| SettingChange {
            key: "pool.cpu.workers".into(),
            old_value: "2".into(),
            new_value: "4".into(),
            needs_restart,
        };
        let answer = |changes, faults: &str| ReloadResponse { applied: false, changes, faults: faults.into() };
        let cases = [
            (answer(vec![change(false)], ""), false, "pool.cpu.workers: 2 → 4\n1 setting changed"),
            (answer(vec![change(false)], ""), true, "pool.cpu.workers: 2 → 4\n1 setting would change"),
            (answer(vec![], ""), false, "no changes"),
            (
                answer(vec![change(true)], ""),
                false,
                "pool.cpu.workers: 2 → 4  needs a restart\nthe marked keys need a restart; nothing was changed",
            ),
            (
                answer(vec![], "error: one\n  help: two"),
                false,
                "error: one\n  help: two\nthe configuration has faults; nothing was changed",
            ),
        ];
        for (answer, dry_run, expected) in cases {
            assert_eq!(anstream::adapter::strip_str(&text(&answer, dry_run)).to_string(), expected);
        }
    }
}
