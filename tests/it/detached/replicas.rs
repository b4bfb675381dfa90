//! Replicas of the service that share a database: they, and the database, are killed.

// tidy: real time, because blows fall while other processes work.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all, stream};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use waterwheel::proto::{CreateJobRequest, JobState, SubmitRequest, health::health_check_response::ServingStatus};

use super::{CONFIG, Jobs, outcomes, work};
use crate::{
    health,
    process::{Process, program},
    service::{Caller, job},
    support::{Cluster, size},
};

/// Time between two jobs while the store is away.
const PAUSE: Duration = Duration::from_millis(20);

/// A configuration whose store is in a new database. With two workers, the backlog of a long run would take minutes.
fn place(cluster: &Cluster) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waterwheel.toml");
    let url = format!("store.url = \"{}\"", cluster.url("postgres"));
    let config = CONFIG.replace("store.path = \"jobs.db\"", &url).replace("workers = 2", "workers = 64");
    std::fs::write(&path, config).unwrap();
    (dir, path)
}

/// What a caller was told of its jobs.
#[derive(Default)]
struct Told {
    acknowledged: BTreeSet<String>,
    refused: usize,
}

/// What a caller was told of one job.
enum Answer {
    Acknowledged,
    Refused,
    ServerGone,
}

/// Creates a job. A refusal must say that the store is away, and when to try again.
async fn ask(jobs: &Jobs, job_id: &str) -> Answer {
    match jobs.create(CreateJobRequest { job_id: job_id.to_owned(), ..work("echo", "x") }).await {
        Ok(_) => Answer::Acknowledged,
        Err(refusal) if refusal.details().error_info().is_none() => Answer::ServerGone,
        Err(refusal) => {
            assert_eq!((refusal.code(), &*refusal.reason()), (Code::Unavailable, "STORE_UNAVAILABLE"));
            assert!(refusal.pushback() > Some(0), "{refusal:?}");
            Answer::Refused
        }
    }
}

/// Creates jobs one after another until it is stopped, or its server is gone.
async fn create(jobs: Jobs, name: String, stop: CancellationToken) -> Told {
    let mut told = Told::default();
    while !stop.is_cancelled() {
        let job_id = format!("{name}-{}-{}", told.acknowledged.len(), told.refused);
        match ask(&jobs, &job_id).await {
            Answer::Acknowledged => {
                told.acknowledged.insert(job_id);
            }
            Answer::ServerGone => return told,
            Answer::Refused => {
                told.refused += 1;
                sleep(PAUSE).await;
            }
        }
    }
    told
}

/// Lets two replicas work for so many rounds. In one of `every`, the database is killed, in each other a replica.
async fn disturb(cluster: &Cluster, path: &Path, rounds: usize, every: usize) -> Told {
    let mut random = StdRng::seed_from_u64(7);
    let mut replicas = [Process::serve_file(path).await, Process::serve_file(path).await];
    let (mut all, mut kills, mut restarts) = (Told::default(), 0, 0);
    for round in 0..rounds {
        let is_restart = round % every == every / 2;
        let (mut callers, stop) = (Vec::new(), CancellationToken::new());
        for (number, replica) in replicas.iter().enumerate() {
            for caller in 0..4 {
                let jobs = Jobs::of(replica).await;
                callers.push(create(jobs, format!("{round}-{number}-{caller}"), stop.clone()));
            }
        }
        let victim = random.random_range(0..2);
        let pause = Duration::from_millis(random.random_range(100..1000));
        let strike = async {
            sleep(pause).await;
            if is_restart {
                restarts += 1;
                cluster.halt().await;
                sleep(pause).await;
                cluster.resume().await;
            } else {
                kills += 1;
                replicas[victim].signal(Signal::KILL);
            }
            sleep(pause).await;
            stop.cancel();
        };
        let (told, ()) = tokio::join!(join_all(callers), strike);
        for told in told {
            all.acknowledged.extend(told.acknowledged);
            all.refused += told.refused;
        }
        if !is_restart {
            replicas[victim] = Process::serve_file(path).await;
        }
    }
    eprintln!("{kills} kills, {restarts} restarts, {} acknowledged, {} refused", all.acknowledged.len(), all.refused);
    all
}

/// Checks the jobs by a further replica.
async fn assert_ended_once(path: &Path, told: Told) {
    let process = Process::serve_file(path).await;
    let found = Jobs::of(&process).await.all_ended_once(told.acknowledged).await;
    eprintln!("0 lost; {found} found, each ended once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_their_database_are_killed_and_every_job_ends_once() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = place(&cluster);
    let told = disturb(&cluster, &path, 3, 5).await;
    assert!(told.acknowledged.len() > 100 && told.refused > 0, "{} and {}", told.acknowledged.len(), told.refused);
    assert_ended_once(&path, told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes; docs/benchmarks.md has the command"]
async fn replicas_outlive_many_kills_and_restarts_of_their_database() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = place(&cluster);
    // 22 kills and 2 restarts by default.
    let told = disturb(&cluster, &path, size("WATERWHEEL_ROUNDS", 24), 11).await;
    assert_ended_once(&path, told).await;
}

/// What several callers of one server counted.
#[derive(Default)]
struct Tally {
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
    submitted: AtomicUsize,
}

impl Tally {
    /// Creates a job, again and again until it is acknowledged.
    async fn create(&self, jobs: &Jobs, job_id: String) -> String {
        loop {
            match ask(jobs, &job_id).await {
                Answer::Acknowledged => {
                    self.acknowledged.fetch_add(1, Relaxed);
                    return job_id;
                }
                Answer::Refused => {
                    self.refused.fetch_add(1, Relaxed);
                    sleep(PAUSE).await;
                }
                Answer::ServerGone => panic!("the server is gone"),
            }
        }
    }

    /// Sends jobs one after another until it is stopped. All must complete.
    async fn submit(&self, caller: Caller, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let request = SubmitRequest { job: Some(job("echo", "x")) };
            caller.0.clone().submit(request).await.expect("it needs no store");
            self.submitted.fetch_add(1, Relaxed);
        }
    }

    async fn until(&self, reached: impl Fn(&Self) -> bool) {
        while !reached(self) {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stops_amid_creates_keeps_what_it_acknowledged_and_submits_lose_nothing() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = place(&cluster);
    let process = Process::serve_file(&path).await;
    let (most, tally, stop) = (size("WATERWHEEL_JOBS", 2_000), Tally::default(), CancellationToken::new());
    let (mut clients, mut callers) = (Vec::new(), Vec::new());
    for client in 0..4 {
        let (jobs, tally) = (Jobs::of(&process).await, &tally);
        let created = stream::iter((client..most).step_by(4)).map(move |number| {
            let jobs = jobs.clone();
            async move { tally.create(&jobs, number.to_string()).await }
        });
        clients.push(created.buffer_unordered(16).collect::<Vec<_>>());
        callers.push(tally.submit(Caller::of(process.public).await, &stop));
    }
    let outage = async {
        tally.until(|tally| tally.acknowledged.load(Relaxed) >= most / 2).await;
        cluster.halt().await;
        let before = tally.submitted.load(Relaxed);
        tally.until(|tally| tally.refused.load(Relaxed) >= 64 && tally.submitted.load(Relaxed) >= before + 100).await;
        assert!(tally.acknowledged.load(Relaxed) < most, "the database stopped too late");
        let during = tally.submitted.load(Relaxed) - before;
        cluster.resume().await;
        during
    };
    let created = async {
        let (created, during) = tokio::join!(join_all(clients), outage);
        stop.cancel();
        (created.concat(), during)
    };
    let ((created, during), _) = tokio::join!(created, join_all(callers));
    assert_eq!(created.len(), most);
    let found = Jobs::of(&process).await.all_ended_once(created.into_iter().collect()).await;
    assert_eq!(found, most);
    eprintln!(
        "{most} jobs acknowledged after {} refusals, 0 lost, each ended once; {} calls of Submit completed, {during} of \
         them without a database, 0 failed",
        tally.refused.into_inner(),
        tally.submitted.into_inner()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_away_creates_are_refused_at_once_and_what_runs_is_kept() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = place(&cluster);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let running = jobs.created(work("sleep", "2000")).await;
    while jobs.get(&running).await.state() != JobState::Running {}
    // Some transactions are cut in the middle.
    let stop = CancellationToken::new();
    let busy = (0..8).map(|caller| create(jobs.clone(), format!("busy-{caller}"), stop.clone()));
    let halt = async {
        sleep(PAUSE * 10).await;
        cluster.halt().await;
        stop.cancel();
    };
    let (told, ()) = tokio::join!(join_all(busy), halt);
    let refused = jobs.create(work("echo", "")).await.unwrap_err();
    assert_eq!((refused.code(), refused.reason().as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
    assert!(refused.pushback() > Some(0), "{refused:?}");
    process.logged("the store of detached jobs fails").await;
    assert_eq!(health::check(process.public, "store").await, ServingStatus::NotServing);
    let check = program(&["check", "--env", "--config", path.to_str().unwrap()]).output().await.unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.code() == Some(1) && text.contains("the database is not available"), "{text}");
    let args = ["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--config", path.to_str().unwrap()];
    let second = program(&args).output().await.unwrap();
    let text = String::from_utf8(second.stderr).unwrap();
    assert!(text.contains("cannot open the store of detached jobs: the database is not available"), "{text}");

    cluster.resume().await;
    process.logged("the store of detached jobs answers again").await;
    let job = jobs.ended(&running).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Succeeded, vec!["COMPLETED"]));
    for id in told.iter().flat_map(|told| &told.acknowledged) {
        assert_eq!(jobs.ended(id).await.state(), JobState::Succeeded);
    }
    assert_eq!(health::check(process.public, "store").await, ServingStatus::Serving);
    jobs.created(work("echo", "")).await;
    let check = program(&["check", "--env", "--config", path.to_str().unwrap()]).output().await.unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(text.contains("PostgreSQL 1") && text.contains("schema 1"), "{text}");
}
