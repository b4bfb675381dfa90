//! Invalid jobs; stores that are missing, full, damaged or in use; kills, drains and restarts, which jobs survive.

use std::{
    collections::BTreeSet,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{process::Command, time::Instant};
use tonic::Code;
use waterwheel::proto::{
    CreateJobRequest, CreateJobsRequest, DetachedJob, Job, JobOptions, JobState, WhenFull,
    create_jobs_response::Outcome, health::health_check_response::ServingStatus, job_options::Start,
};

use super::{CONFIG, Jobs, delayed, outcomes, serve, with, work};
use crate::{
    health,
    process::{Process, Ran, config_file, program, until},
    service::job,
    support::{size, skipped},
};

#[tokio::test]
async fn without_a_store_creates_are_refused_and_the_help_names_the_key_to_set() {
    let config = CONFIG.replace("store.path", "server.tls.reload = \"1s\" #");
    let (_process, jobs) = serve(&config).await;
    let refused = jobs.create(work("echo", "")).await.unwrap_err();
    assert_eq!((refused.code(), refused.reason().as_str()), (Code::FailedPrecondition, "NO_STORE"));
    assert!(format!("{:?}", refused.details()).contains("store.path"), "{refused:?}");
}

#[tokio::test]
async fn a_refusal_names_the_invalid_field() {
    let (_process, jobs) = serve(CONFIG).await;
    let echo = || work("echo", "");
    let with_job = |job: Job| CreateJobRequest { job: Some(job), ..CreateJobRequest::default() };
    let negative = Start::Delay("-1s".parse().unwrap());
    for (request, field) in [
        (CreateJobRequest::default(), "job"),
        (work("tow", ""), "job.kind"),
        (CreateJobRequest { job_id: "a b".into(), ..echo() }, "job_id"),
        (with_job(Job { when_full: WhenFull::Wait.into(), ..job("echo", "") }), "job.when_full"),
        (with_job(Job { queue_timeout: Some("1s".parse().unwrap()), ..job("echo", "") }), "job.queue_timeout"),
        (with_job(Job { tenant: "t".repeat(129), ..job("echo", "") }), "job.tenant"),
        (with(JobOptions { start: Some(negative), ..JobOptions::default() }, echo()), "options.delay"),
    ] {
        let refused = jobs.create(request).await.unwrap_err();
        let violations = refused.details().bad_request().unwrap().field_violations.clone();
        assert_eq!((refused.code(), violations[0].field.as_str()), (Code::InvalidArgument, field));
    }
}

#[tokio::test]
async fn a_full_store_refuses_new_jobs_and_completes_its_jobs() {
    let config = format!("store.max_jobs = 2\n{}", CONFIG.replace("store.path = \"jobs.db\"", "store.memory = true"));
    let (_process, jobs) = serve(&config).await;
    let held =
        [jobs.created(delayed("5s", work("echo", "x"))).await, jobs.created(delayed("600s", work("echo", "x"))).await];
    let full = jobs.create(work("echo", "")).await.unwrap_err();
    assert_eq!((full.code(), full.reason().as_str()), (Code::ResourceExhausted, "STORE_FULL"));
    assert!(full.pushback() > Some(0));
    assert_eq!(jobs.ended(&held[0]).await.state(), JobState::Succeeded);
    jobs.created(work("echo", "")).await;
}

/// Starts a server, which must refuse to start because of its store. Returns its error message.
async fn refusal(config: &Path) -> String {
    let args = ["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--config"];
    let Ran { code, err, .. } = Ran::of(program(&[&args[..], &[config.to_str().unwrap()]].concat())).await;
    assert!(code == Some(1) && !err.contains("panicked"), "{code:?}: {err}");
    let (_, message) =
        err.split_once("error: cannot open the store of detached jobs: ").unwrap_or_else(|| panic!("{err}"));
    message.trim_end().to_owned()
}

/// Changes one bit.
fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_server_refuses_to_start_on_a_store_file_that_is_in_use_damaged_or_too_new() {
    let (dir, path) = config_file(CONFIG);
    let [file, log] = ["jobs.db", "jobs.db-wal"].map(|name| dir.path().join(name));
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let kept = jobs.created(delayed("600s", work("echo", "x"))).await;
    let used = format!("{} is in use by another server; give each its own `store.path`", file.display());
    assert!(refusal(&path).await.starts_with(&used));
    let done = jobs.created(work("echo", "y")).await;
    assert_eq!(jobs.ended(&done).await.state(), JobState::Succeeded);
    process.killed().await;

    // Damage the first page of the log, which has later transactions behind it.
    flip(&log, 32 + 24 + 10);
    let damaged = format!(
        "{file} is damaged: frame 1 of its log is broken; `waterwheel store salvage {file} NEW_FILE` keeps",
        file = file.display()
    );
    let message = refusal(&path).await;
    assert!(message.starts_with(&damaged), "{message}");
    flip(&log, 32 + 24 + 10);
    let set_version = |version: i64| {
        rusqlite::Connection::open(&file).unwrap().pragma_update(None, "user_version", version).unwrap();
    };
    set_version(99);
    assert_eq!(refusal(&path).await, "the store has version 99, and this program knows 1; use a newer program");
    set_version(1);

    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let states = [jobs.get(&kept).await.state(), jobs.get(&done).await.state()];
    assert_eq!(states, [JobState::Scheduled, JobState::Succeeded]);
}

/// A disk of 128 MiB, which is unmounted when this is dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts the disk. If this user may not, prints that the test is skipped and returns `None`.
    async fn mount() -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        if disk.run("mount", &["-t", "tmpfs", "-o", "size=128m", "tmpfs"]).await {
            return Some(disk);
        }
        skipped("a small disk cannot be mounted; run the tests as root");
        None
    }

    async fn run(&self, program: &str, args: &[&str]) -> bool {
        let ended = Command::new(program).args(args).arg(self.0.path()).output().await;
        ended.is_ok_and(|ended| ended.status.success())
    }

    /// Fills the disk with a file.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.path().join("ballast");
        let mut file = File::create(&ballast).unwrap();
        while file.write(&[0; 1 << 16]).is_ok_and(|written| written > 0) {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn no_job_is_lost_on_a_full_disk_or_a_read_only_disk() {
    let Some(disk) = SmallDisk::mount().await else { return };
    let file_of = |name: &str| {
        let store = format!("store.path = \"{}/{name}\"", disk.0.path().display());
        let config = CONFIG.replace("store.path = \"jobs.db\"", &store);
        config_file(&(config + "[kind.sha256]\npool = \"one\"\nbuiltin = \"sha256\"\n"))
    };
    let others = disk.0.path().join("others");
    std::fs::write(&others, vec![1; 32 << 20]).unwrap();
    let (_dir, path) = file_of("jobs.db");
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let mut accepted = vec![jobs.created(delayed("2s", work("sleep", "100"))).await];
    let large = || work("sha256", vec![7; 2 << 20]);
    let full = loop {
        match jobs.create(large()).await {
            Ok(created) => accepted.push(created.job_id),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((full.code(), full.reason().as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
    assert_eq!(full.facts()["execution"], "NOT_STARTED");
    assert!(full.message().contains("disk of the store of detached jobs is full") && full.pushback() > Some(0));
    process.logged("disk of the store of detached jobs is full; its operator has to make room").await;
    assert_eq!(health::check(process.public, "store").await, ServingStatus::NotServing);
    // Accepted jobs complete, also after a crash.
    process.killed().await;
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    for id in &accepted {
        assert_eq!(jobs.ended(id).await.state(), JobState::Succeeded);
    }
    assert_eq!(jobs.create(large()).await.unwrap_err().reason(), "STORE_UNAVAILABLE");
    process.killed().await;

    let ballast = disk.fill();
    assert_eq!(refusal(&file_of("other.db").1).await, "the disk of the store is full; make room on it");
    std::fs::remove_file(ballast).unwrap();
    std::fs::remove_file(others).unwrap();
    let file = disk.0.path().join("jobs.db");
    assert!(disk.run("mount", &["-o", "remount,ro"]).await);
    let message = refusal(&path).await;
    let expected = format!("{} cannot be written; set `store.path` to a file in a writable directory", file.display());
    assert!(message.starts_with(&expected), "{message}");
    assert!(disk.run("mount", &["-o", "remount,rw"]).await);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    for id in &accepted {
        assert_eq!(jobs.get(id).await.state(), JobState::Succeeded);
    }
    jobs.created(work("echo", "")).await;
}

/// Creates jobs, and kills the server once it has acknowledged `most`. Some jobs have ended then, some run, and some
/// are queued. Returns all acknowledged ids, and the end of the first job.
async fn create_until_killed(process: &Process, round: usize, most: usize) -> (Vec<String>, DetachedJob) {
    let sent = (0..).map(move |number: usize| {
        let job = if number % 4 == 3 { job("sleep", "20") } else { job("echo", "x") };
        CreateJobsRequest { job: Some(job), job_id: format!("{round}-{number}"), ..CreateJobsRequest::default() }
    });
    let mut jobs = Jobs::of(process).await;
    let mut answers = jobs.0.create_jobs(tokio_stream::iter(sent)).await.unwrap().into_inner();
    let (mut acknowledged, mut first) = (Vec::new(), None);
    while let Ok(Some(answer)) = answers.message().await {
        let Some(Outcome::Created(created)) = answer.outcome else { continue };
        acknowledged.push(created.job_id);
        if acknowledged.len() == most {
            first = Some(jobs.ended(&acknowledged[0]).await);
            process.signal(Signal::KILL);
        }
    }
    (acknowledged, first.expect("enough jobs"))
}

#[tokio::test]
async fn detached_jobs_survive_many_kills() {
    let (rounds, jobs) = (size("WATERWHEEL_ROUNDS", 3), size("WATERWHEEL_JOBS", 200));
    let config = CONFIG.replace("retain_for = \"1h\"", "retain_for = \"24h\"");
    // With two workers, the backlog at the end of a long run would take an hour.
    let (_dir, path) = config_file(&config.replace("workers = 2", "workers = 64"));
    let (mut acknowledged, mut ended, begin) = (BTreeSet::new(), Vec::new(), Instant::now());
    for round in 0..rounds {
        let process = Process::serve_file(&path).await;
        let (ids, first) = create_until_killed(&process, round, jobs).await;
        acknowledged.extend(ids);
        ended.push(first);
        process.killed().await;
    }
    let (count, took) = (acknowledged.len(), begin.elapsed());
    assert!(count >= rounds * jobs, "{count}");
    let process = Process::serve_file(&path).await;
    let (started, jobs) = (process.served_after, Jobs::of(&process).await);
    for job in ended {
        assert_eq!(jobs.ended(&job.job_id).await, job, "a reported end does not change");
    }
    let found = jobs.all_ended_once(acknowledged).await;
    eprintln!(
        "{rounds} kills in {took:.0?}: {count} jobs acknowledged, 0 lost; {found} found, each ended once; \
         the last start took {started:.1?}, all took {:.0?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn a_drain_returns_unfinished_jobs_to_the_store() {
    let config = format!("drain = {{ notice = \"0s\", finish = \"500ms\", kill = \"2s\" }}\n{CONFIG}");
    let (_dir, path) = config_file(&config.replace("workers = 2", "workers = 1"));
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let long = jobs.created(work("sleep", "60000")).await;
    while jobs.get(&long).await.state() != JobState::Running {}
    let ready = [jobs.created(work("echo", "1")).await, jobs.created(work("echo", "2")).await];
    let later = jobs.created(delayed("600s", work("echo", ""))).await;
    process.signal(Signal::TERM);
    let ended = process.ended().await;
    assert_eq!((ended.code, &ended.receipt["lost"]), (Some(0), &serde_json::json!([])), "{}", ended.receipt);
    let stopped: Vec<_> = ended.receipt["given_back"].as_array().unwrap().iter().map(|run| &run["job"]).collect();
    assert_eq!(stopped, [&long], "jobs that had not begun are not named");

    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let job = jobs.get(&long).await;
    assert_eq!((job.failures, outcomes(&job)[0]), (0, "DRAIN_KILLED"), "{job:?}");
    assert_eq!(jobs.get(&later).await.state(), JobState::Scheduled);
    while jobs.get(&long).await.state() != JobState::Running {}
    jobs.cancel(&long).await.unwrap();
    for id in ready {
        let job = jobs.ended(&id).await;
        assert_eq!((job.state(), job.failures), (JobState::Succeeded, 0));
    }
}

#[tokio::test]
async fn a_detached_job_that_a_drain_kills_is_logged_with_its_own_id() {
    let config = r#"
        drain = { notice = "0s", finish = "100ms" }
        store.path = "jobs.db"
        pool.one = { workers = 1, cancel_grace = "100ms" }
        [kind.deaf]
        pool = "one"
        exec = ["/bin/sh", "-c", "read file; trap '' TERM; echo run > $file; while :; do sleep 0.1; done"]
    "#;
    let (process, jobs) = serve(config).await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("runs");
    let request = CreateJobRequest { job_id: "deaf-1".into(), ..work("deaf", format!("{}\n", file.display())) };
    jobs.created(request).await;
    until("a run", async || file.exists()).await;
    process.signal(Signal::TERM);
    let log = process.last_log().await;
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let line = lines.find(|line| line["reason"] == "STOP_IGNORED").unwrap_or_else(|| panic!("no line: {log}"));
    assert_eq!((&line["detached_job"], &line["kind"]), (&"deaf-1".into(), &"deaf".into()), "{line}");
    assert!(line["request_id"].is_string() && line["job"] != line["detached_job"], "{line}");
}
