//! Replicas of the service that share a database: they, and the database, are killed.

// tidy: real time, because blows fall while other processes work.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use waterwheel::proto::{
    CreateJobRequest, DetachedJobFilter, JobState, WaitJobRequest, health::health_check_response::ServingStatus,
};

use super::{CONFIG, Jobs, outcomes, work};
use crate::{
    health,
    process::{Process, program},
    support::Cluster,
};

/// Time between two jobs while the store is away.
const PAUSE: Duration = Duration::from_millis(20);
const OPEN: [JobState; 3] = [JobState::Ready, JobState::Running, JobState::Scheduled];

/// A configuration whose store is in a new database.
fn place(cluster: &Cluster) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waterwheel.toml");
    let url = format!("store.url = \"{}\"", cluster.url("postgres"));
    std::fs::write(&path, CONFIG.replace("store.path = \"jobs.db\"", &url)).unwrap();
    (dir, path)
}

/// What a caller was told of its jobs.
#[derive(Default)]
struct Told {
    acknowledged: BTreeSet<String>,
    refused: usize,
}

/// Creates jobs one after another until it is stopped, or its server is gone. Each refusal must say that the store is
/// away.
async fn create(jobs: Jobs, name: String, stop: CancellationToken) -> Told {
    let mut told = Told::default();
    while !stop.is_cancelled() {
        let job_id = format!("{name}-{}-{}", told.acknowledged.len(), told.refused);
        match jobs.create(CreateJobRequest { job_id: job_id.clone(), ..work("echo", "x") }).await {
            Ok(_) => {
                told.acknowledged.insert(job_id);
            }
            // The server is gone.
            Err(refusal) if refusal.details().error_info().is_none() => return told,
            Err(refusal) => {
                told.refused += 1;
                assert_eq!((refusal.code(), &*refusal.reason()), (Code::Unavailable, "STORE_UNAVAILABLE"));
                assert!(refusal.pushback() > Some(0), "{refusal:?}");
                sleep(PAUSE).await;
            }
        }
    }
    told
}

/// Lets two replicas work for so many rounds. In each, one of them is killed, or the database is.
async fn disturb(cluster: &Cluster, path: &Path, rounds: usize) -> Told {
    let mut random = StdRng::seed_from_u64(7);
    let mut replicas = [Process::serve_file(path).await, Process::serve_file(path).await];
    let (mut all, mut kills, mut restarts) = (Told::default(), 0, 0);
    for round in 0..rounds {
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
            if round % 5 == 2 {
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
        let (told, ()) = tokio::join!(futures_util::future::join_all(callers), strike);
        for told in told {
            all.acknowledged.extend(told.acknowledged);
            all.refused += told.refused;
        }
        if round % 5 != 2 {
            replicas[victim] = Process::serve_file(path).await;
        }
    }
    eprintln!("{kills} kills, {restarts} restarts, {} acknowledged, {} refused", all.acknowledged.len(), all.refused);
    all
}

/// Every acknowledged job has ended, and every job once.
async fn assert_ended_once(path: &Path, told: Told) {
    let process = Process::serve_file(path).await;
    let jobs = Jobs::of(&process).await;
    let open = DetachedJobFilter { states: OPEN.map(i32::from).to_vec(), ..DetachedJobFilter::default() };
    while let Some(job) = jobs.list_by(1000, open.clone()).await.first() {
        // It may take longer than one call.
        jobs.0.clone().wait_job(WaitJobRequest { job_id: job.job_id.clone() }).await.unwrap();
    }
    let all = jobs.list_by(1000, DetachedJobFilter::default()).await;
    let all: HashMap<_, _> = all.iter().map(|job| (job.job_id.clone(), job)).collect();
    for id in &told.acknowledged {
        assert!(all.contains_key(id), "{id} is lost");
    }
    for job in all.values() {
        let completed = outcomes(job).iter().filter(|outcome| **outcome == "COMPLETED").count();
        assert_eq!((job.state(), completed), (JobState::Succeeded, 1), "{job:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_their_database_are_killed_and_every_job_ends_once() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = place(&cluster);
    let told = disturb(&cluster, &path, 3).await;
    assert!(told.acknowledged.len() > 100 && told.refused > 0, "{} and {}", told.acknowledged.len(), told.refused);
    assert_ended_once(&path, told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes"]
async fn replicas_outlive_twenty_kills_and_five_restarts_of_their_database() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = place(&cluster);
    let told = disturb(&cluster, &path, 27).await;
    assert_ended_once(&path, told).await;
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
    let (told, ()) = tokio::join!(futures_util::future::join_all(busy), halt);
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
