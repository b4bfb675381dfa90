//! What workers get wrong: each case of `malformed/cases.json`, in three languages, with one slot and with four. A case
//! ends its own job with a status that names the fault, and costs the jobs beside it nothing unless their process cannot
//! go on.

use futures_util::future::join_all;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::process::Command;
use waterwheel::model::WhenFull;

use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/programs/malformed");

#[derive(Deserialize)]
struct Case {
    name: String,
    ends: Ends,
    /// Part of the message for the caller.
    says: String,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ends {
    Completes,
    /// The job fails, and its process goes on.
    Fails,
    /// The process cannot go on.
    Crash,
    /// Something is to follow that does not come.
    Hangs,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("malformed/cases.json")).expect("cases")
}

/// Echo jobs beside each case: few, or as the variable says.
fn jobs_beside() -> usize {
    std::env::var("WATERWHEEL_MALFORMED_JOBS").map_or(6, |jobs| jobs.parse().expect("a number"))
}

/// Runs all cases on one process with `slots`, of this command.
async fn check(program: &str, args: &[&str], slots: usize) {
    let cases_file = format!("{FOLDER}/cases.json");
    let args = args.iter().copied().chain([&*cases_file]).map(str::to_owned);
    let program = WorkerProgram::new("test", program, args, ["do", "echo"].map(str::to_owned));
    let pool = pool_of(WorkerProgram { start_timeout: PATIENCE, jobs_per_process: slots, ..program }, slots);
    let echo = async || {
        let job = Job::new("echo", "as it was").timeout(PATIENCE).when_full(WhenFull::Wait);
        match pool.submit(job).await {
            Ok(completed) => assert_eq!(completed.output.bytes, "as it was"),
            Err(JobError::Failed(failure)) => {
                crash(&failure);
                return 1;
            }
            Err(JobError::Rejected(rejection)) => panic!("{rejection}"),
        }
        0
    };
    let (mut lost, mut crashes) = (0, 0);
    for Case { name, ends, says } in cases() {
        assert_eq!(echo().await, 0, "before {name}");
        let limit = if ends == Ends::Hangs { Duration::from_secs(1) } else { PATIENCE };
        let bad = Job::new("do", name.clone()).timeout(limit).when_full(WhenFull::Wait);
        let beside = join_all((0..jobs_beside()).map(|_| echo()));
        let (ended, beside) = tokio::join!(pool.submit(bad), beside);
        let beside: usize = beside.into_iter().sum();
        match (ends, ended) {
            (Ends::Completes, Ok(completed)) => {
                let content_type = completed.output.content_type;
                let is_fine = content_type.len() <= 128 && !content_type.contains(char::is_control);
                assert!(is_fine, "{name}: {content_type:?}");
            }
            (Ends::Hangs, Err(JobError::Failed(failure))) => {
                let is_named = failure.outcome == Outcome::WorkerCrashed && crash(&failure).contains("announces");
                assert!(is_named || failure.outcome == Outcome::DeadlineExceeded, "{name}: {failure:?}");
            }
            (_, Err(JobError::Failed(failure))) => {
                let expected = if ends == Ends::Crash { Outcome::WorkerCrashed } else { Outcome::HandlerFailed };
                let said = failure.to_string();
                assert_eq!(failure.outcome, expected, "{name}: {failure:?}");
                assert!(said.contains(&says) && said.len() <= 4096 && !said.contains('\0'), "{name}: {said}");
            }
            (_, other) => panic!("{name}: {other:?}"),
        }
        let takes_others = matches!(ends, Ends::Crash | Ends::Hangs);
        assert!(beside == 0 || takes_others && beside < slots, "{name}: {beside} others are lost");
        (lost, crashes) = (lost + beside, crashes + u64::from(takes_others));
    }
    assert_eq!(echo().await, 0, "at the end");
    let stats = pool.stats();
    assert!(stats.programs[0].failures <= crashes && stats.late_messages >= 5, "{:?}", stats.programs);
    eprintln!("{slots} slots: {lost} of {} jobs beside are lost, by {crashes} ends", cases().len() * jobs_beside());
    close(pool).await;
}

#[tokio::test]
async fn a_malformed_message_costs_its_own_job_python() {
    for slots in [1, 4] {
        check("/usr/bin/python3", &[&format!("{FOLDER}/worker.py")], slots).await;
    }
}

#[tokio::test]
async fn a_malformed_message_costs_its_own_job_node() {
    if !Path::new("/usr/bin/node").exists() {
        eprintln!("node is not installed");
        return;
    }
    for slots in [1, 4] {
        check("/usr/bin/node", &[&format!("{FOLDER}/worker.mjs")], slots).await;
    }
}

#[tokio::test]
async fn a_malformed_message_costs_its_own_job_go() {
    let folder = TempDir::new().expect("a folder");
    let binary = folder.path().join("worker").display().to_string();
    match Command::new("go").args(["build", "-o", &binary, &format!("{FOLDER}/worker.go")]).status().await {
        Ok(status) if status.success() => {}
        other => return eprintln!("go is not installed: {other:?}"),
    }
    for slots in [1, 4] {
        check(&binary, &[], slots).await;
    }
}
