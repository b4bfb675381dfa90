//! `waterwheel store` on the store file of a server, the backup and restore commands of docs/jobs.md, schedules, and
//! statistics of detached jobs.

use std::{collections::BTreeSet, os::unix::fs::PermissionsExt as _, path::Path};

use tokio::process::Command;
use waterwheel::proto::{DetachedJob, DetachedJobFilter, DetachedStats, JobState};

use super::{CONFIG, Jobs, delayed, outcomes, serve, work};
use crate::{
    ops_pages,
    process::{Process, config_file},
    service::Caller,
    support::Cluster,
};

/// Runs `waterwheel store`. Returns whether it succeeded, and its output.
fn store(verb: &str, directory: &Path) -> (bool, String) {
    store_of(verb, directory, "jobs.db")
}

fn store_of(verb: &str, directory: &Path, file: &str) -> (bool, String) {
    store_with(&["store", verb, file], directory)
}

fn store_with(args: &[&str], directory: &Path) -> (bool, String) {
    let ended = std::process::Command::new(env!("CARGO_BIN_EXE_waterwheel"))
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap();
    (ended.status.success(), String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap())
}

#[tokio::test]
async fn a_store_file_can_be_checked_and_exported_unless_a_server_uses_it() {
    let (dir, path) = config_file(CONFIG);
    assert!(!store("export", dir.path()).0 && !dir.path().join("jobs.db").exists(), "export creates the missing file");
    for other in ["none.db", "waterwheel.toml"] {
        let (_, output) = store_of("check", dir.path(), other);
        assert!(output.contains("name the file of `store.path`"), "{output}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a check leaves a file");
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let done = jobs.created(work("echo", "hello")).await;
    jobs.ended(&done).await;
    let (running, _) = (jobs.created(work("sleep", "60000")).await, jobs.created(work("refuses", "")).await);
    let (is_fine, output) = store("check", dir.path());
    assert!(!is_fine && output.contains("is in use"), "{output}");

    process.killed().await;
    let (is_fine, output) = store("check", dir.path());
    assert!(is_fine && output.starts_with("intact\nschema  1, the newest\njobs    3 jobs, "), "{output}");
    let (is_fine, output) = store("export", dir.path());
    let lines: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(is_fine && lines.len() == 3, "{output}");
    let of = |id: &str| lines.iter().find(|job| job["job_id"] == id).unwrap();
    // "hello" in base64, as the JSON mapping of protobuf writes bytes.
    let shown = [&of(&done)["state"], &of(&done)["output"], &of(&done)["job"]["payload"], &of(&running)["state"]];
    assert_eq!(shown, ["JOB_STATE_SUCCEEDED", "aGVsbG8=", "aGVsbG8=", "JOB_STATE_READY"]);
}

#[tokio::test]
async fn jobs_of_a_stopped_server_are_cancelled_and_those_of_a_damaged_file_salvaged() {
    let (dir, path) = config_file(CONFIG);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let wait = |payload: &'static str| delayed("600s", work("echo", payload));
    let (first, poison) = (jobs.created(wait("one-payload")).await, jobs.created(wait("poison")).await);
    process.killed().await;
    let cancel = |id: &str| store_with(&["store", "cancel", "jobs.db", id], dir.path());
    assert_eq!(cancel(&poison), (true, format!("{poison}: cancelled\n")));
    assert_eq!(cancel("none"), (false, "none: there is no such job\n".to_owned()));

    let file = dir.path().join("jobs.db");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(11).position(|bytes| bytes == b"one-payload").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (is_fine, output) = store("check", dir.path());
    let named =
        format!("job {first} is unreadable: its payload is damaged\n`waterwheel store salvage jobs.db NEW_FILE` keeps");
    assert!(!is_fine && output.starts_with("damaged\nrow ") && output.contains(&named), "{output}");
    let salvage = || store_with(&["store", "salvage", "jobs.db", "saved.db"], dir.path());
    let (is_fine, output) = salvage();
    assert!(is_fine && output.ends_with("its payload is damaged\n2 jobs in saved.db\n"), "{output}");
    let (is_fine, output) = salvage();
    assert!(!is_fine && output.contains("it exists already"), "{output}");
    assert!(store_of("export", dir.path(), "saved.db").1.contains(&poison));

    bytes.truncate(bytes.len() - 5000);
    std::fs::write(&file, bytes).unwrap();
    let (is_fine, output) = store("check", dir.path());
    assert!(!is_fine && output.contains("damaged"), "{output}");
}

const DOCS: &str = include_str!("../../../docs/jobs.md");

/// The command in a row of the table, for SQLite (0) or PostgreSQL (1).
fn documented(row: &str, store: usize) -> &'static str {
    let row = DOCS.lines().find(|line| line.starts_with(&format!("| {row} |"))).expect("the row");
    row.split('|').nth(2 + store).and_then(|cell| cell.split('`').nth(1)).expect("a command")
}

/// Runs a shell command, which must succeed and print no errors.
async fn run(line: &str, directory: &Path, env: &[(&str, &str)]) {
    let mut command = Command::new("sh");
    let program = Path::new(env!("CARGO_BIN_EXE_waterwheel")).parent().unwrap().display();
    let path = format!("{program}:/usr/bin:/bin");
    command.args(["-c", line]).current_dir(directory).env_clear().env("PATH", path).kill_on_drop(true);
    let ended = command.envs(env.iter().copied()).output().await.unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && stderr.is_empty(), "{line}: {}: {stderr}", ended.status);
}

/// Checks that a restore brings back the jobs of the backup, and removes jobs that were created later.
async fn assert_restored(config: &str, directory: &Path, store: usize, env: &[(&str, &str)]) {
    let path = directory.join("waterwheel.toml");
    std::fs::write(&path, config).unwrap();
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let done = jobs.created(work("echo", "one")).await;
    jobs.ended(&done).await;
    let open = jobs.created(delayed("600s", work("echo", "two"))).await;
    run(documented("back up", store), directory, env).await;
    jobs.created(work("echo", "three")).await;
    process.killed().await;

    run(documented("restore", store), directory, env).await;
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let (old, waiting) = (jobs.get(&done).await, jobs.get(&open).await);
    assert_eq!((old.state(), &*old.output, waiting.state()), (JobState::Succeeded, &b"one"[..], JobState::Scheduled));
    assert_eq!(jobs.list(DetachedJobFilter::default()).await.len(), 2);
    let new = jobs.created(work("echo", "four")).await;
    assert_eq!(jobs.ended(&new).await.state(), JobState::Succeeded);
}

#[tokio::test]
async fn a_store_file_is_backed_up_while_its_server_runs_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    assert_restored(&CONFIG.replace("jobs.db", "waterwheel.db"), dir.path(), 0, &[]).await;
}

#[tokio::test]
async fn a_database_is_created_and_backed_up_while_its_server_runs_and_restored() {
    let Some(cluster) = Cluster::start().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let url = cluster.url("jobs").replace("test@", "waterwheel@");
    let host = url.split(['@', '/']).nth(3).unwrap().replace("%2F", "/");
    let (_, sql) = DOCS.split_once("```sql\n").unwrap();
    std::fs::write(dir.path().join("make.sql"), sql.split("```").next().unwrap()).unwrap();
    let superuser = [("PGHOST", host.as_str()), ("PGUSER", "test")];
    run("psql --quiet --set=ON_ERROR_STOP=1 --file=make.sql postgres", dir.path(), &superuser).await;
    let config = CONFIG.replace("store.path = \"jobs.db\"", &format!("store.url = \"{url}\""));
    assert_restored(&config, dir.path(), 1, &[("PGHOST", &host), ("PGUSER", "waterwheel")]).await;
}

#[tokio::test]
async fn a_backup_is_a_new_file_that_only_its_owner_may_read_or_goes_to_standard_output() {
    let (dir, path) = config_file(CONFIG);
    let process = Process::serve_file(&path).await;
    let id = Jobs::of(&process).await.created(delayed("600s", work("echo", "x"))).await;
    let dir = dir.path();
    let backup = |file, new| store_with(&["store", "backup", file, new], dir);
    assert_eq!(backup("jobs.db", "copy.db"), (true, "1 job in copy.db\n".to_owned()));
    assert_eq!(std::fs::metadata(dir.join("copy.db")).unwrap().permissions().mode() & 0o777, 0o600);
    let (is_fine, output) = backup("jobs.db", "copy.db");
    assert!(!is_fine && output.contains("it exists already"), "{output}");
    let (is_fine, output) = backup("missing.db", "other.db");
    assert!(!is_fine && output.contains("No such file") && !dir.join("other.db").exists(), "{output}");
    run("waterwheel store backup jobs.db - > piped.db", dir, &[]).await;
    for copy in ["copy.db", "piped.db"] {
        assert!(store_of("export", dir, copy).1.contains(&id), "{copy}");
    }
    let left = std::fs::read_dir(dir).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(left, 0, "the copy for standard output is removed");
}

const SCHEDULES: &str = r#"
    pool.one.workers = 2
    kind.echo = { pool = "one", builtin = "echo" }
    store.path = "jobs.db"
    [kind.refuses]
    pool = "one"
    exec = ["/bin/sh", "-c", "exit 65"]
    [schedule.often]
    cron = "* * * * * *"
    kind = "echo"
    payload = "tick"
    [schedule.rare]
    cron = "0 0 1 1 *"
    timezone = "Europe/Berlin"
    kind = "echo"
"#;

async fn runs(jobs: &Jobs, schedule: &str) -> Vec<DetachedJob> {
    let (label_key, label_value) = ("schedule".to_owned(), schedule.to_owned());
    jobs.list_by(1000, DetachedJobFilter { label_key, label_value, ..DetachedJobFilter::default() }).await
}

#[tokio::test]
async fn each_tick_of_a_schedule_runs_once_although_the_server_is_killed() {
    let (_dir, path) = config_file(SCHEDULES);
    for least in [2, 4] {
        let process = Process::serve_file(&path).await;
        let jobs = Jobs::of(&process).await;
        let mut seen = Vec::new();
        while seen.len() < least {
            seen = runs(&jobs, "often").await;
        }
        let ids: BTreeSet<_> = seen.iter().map(|job| &*job.job_id).collect();
        assert_eq!(ids.len(), seen.len());
        for id in ids {
            assert!(id.starts_with("schedule/often/20") && id.ends_with('Z'), "{id}");
            let job = jobs.ended(id).await;
            assert_eq!(
                (job.state(), &*job.output, outcomes(&job)),
                (JobState::Succeeded, &b"tick"[..], vec!["COMPLETED"])
            );
        }
        assert_eq!(runs(&jobs, "rare").await, [], "a new schedule does not run ticks from before its creation");
        process.killed().await;
    }
}

#[tokio::test]
async fn a_tick_without_room_in_the_store_is_logged_and_no_other_tick() {
    let (process, jobs) = serve(&format!("store.max_jobs = 1\n{SCHEDULES}")).await;
    while runs(&jobs, "often").await.len() < 2 {}
    let log = process.log();
    assert!(!log.contains("the job of a schedule was not created"), "{log}");
    while jobs.create(delayed("3600s", work("echo", ""))).await.is_err() {}
    process.logged("the job of a schedule was not created: the store is full").await;
}

#[tokio::test]
async fn stats_count_detached_jobs_and_metrics_count_calls_of_job_service() {
    let (process, jobs) =
        serve(&SCHEDULES.replace("[schedule.often]", "[schedule.daily]").replace("* * * * * *", "0 3 * * *")).await;
    jobs.ended(&jobs.created(work("refuses", "")).await).await;
    let caller = Caller::of(process.public).await;
    let dead = |kinds: &[waterwheel::proto::KindStats]| {
        let kind = kinds.iter().find(|kind| kind.name == "refuses").unwrap();
        kind.detached.unwrap() == DetachedStats { dead: 1, ..DetachedStats::default() }
    };
    caller.until(|pool| dead(&pool.kinds)).await;
    let metrics = ops_pages::metrics(process.ops).await;
    for (method, calls) in [("CreateJob", 1.0), ("WaitJob", 1.0)] {
        let name = format!(
            r#"rpc_server_call_duration_seconds_count{{rpc_method="waterwheel.v1.JobService/{method}",kind="_OTHER",rpc_status_code="OK"}}"#
        );
        assert_eq!(
            metrics.get(&name).copied(),
            Some(calls),
            "{name}: {:?}",
            metrics.keys().filter(|key| key.contains("JobService")).collect::<Vec<_>>()
        );
    }
}
