//! Replicas of the service that share a database. The tests kill replicas and the database.

// tidy: real time, because faults occur while other processes run.

mod limits;
mod shares;
mod suspensions;

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
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use waterwheel::proto::{CreateJobRequest, JobState, SubmitRequest, health::health_check_response::ServingStatus};

use super::{CONFIG, Jobs, outcomes, work};
use crate::{
    health,
    process::{PATIENCE, Process, Ran, config_file, program},
    service::{Caller, job},
    support::{Cluster, size},
};

/// Time between two attempts to create a job while the store is unavailable.
const PAUSE: Duration = Duration::from_millis(20);

/// Number of jobs that are created before each fault, at least.
const CREATED: usize = 40;

/// Writes a configuration whose store is in a new database. With two workers, the backlog of a long run would take
/// minutes.
fn replica_file(cluster: &Cluster) -> (TempDir, PathBuf) {
    let url = format!("store.url = \"{}\"", cluster.url("postgres"));
    config_file(&CONFIG.replace("store.path = \"jobs.db\"", &url).replace("workers = 2", "workers = 64"))
}

/// The response to one create.
enum Answer {
    Acknowledged,
    Refused,
    ServerGone,
}

/// Creates a job. A refusal must have the reason `STORE_UNAVAILABLE` and a time to retry.
async fn try_create(jobs: &Jobs, job_id: &str) -> Answer {
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

/// Creates jobs one after another until `stop`, or until the server is gone. Returns the ids of acknowledged jobs.
async fn create(jobs: Jobs, name: String, tally: &Tally, stop: &CancellationToken) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for number in 0.. {
        let job_id = format!("{name}-{number}");
        match try_create(&jobs, &job_id).await {
            Answer::Acknowledged => {
                tally.acknowledged.fetch_add(1, Relaxed);
                acknowledged.insert(job_id);
            }
            Answer::ServerGone => break,
            Answer::Refused => {
                tally.refused.fetch_add(1, Relaxed);
                sleep(PAUSE).await;
            }
        }
        if stop.is_cancelled() {
            break;
        }
    }
    acknowledged
}

/// Runs two replicas for a number of rounds. The database is killed in one of `every` rounds, and a replica in the
/// others.
async fn run_with_kills(cluster: &Cluster, path: &Path, rounds: usize, every: usize) -> BTreeSet<String> {
    let mut random = StdRng::seed_from_u64(7);
    let mut replicas = [Process::serve_file(path).await, Process::serve_file(path).await];
    let (mut all, mut refused, mut kills, mut restarts) = (BTreeSet::new(), 0, 0, 0);
    for round in 0..rounds {
        let is_restart = round % every == every / 2;
        let (tally, stop) = (Tally::default(), CancellationToken::new());
        let mut callers = Vec::new();
        for (number, replica) in replicas.iter().enumerate() {
            for caller in 0..4 {
                let jobs = Jobs::of(replica).await;
                callers.push(create(jobs, format!("{round}-{number}-{caller}"), &tally, &stop));
            }
        }
        let victim = random.random_range(0..2);
        let pause = Duration::from_millis(random.random_range(100..1000));
        let fault = async {
            sleep(pause).await;
            tally.until(|tally| tally.acknowledged.load(Relaxed) >= CREATED).await;
            if is_restart {
                restarts += 1;
                cluster.halt().await;
                sleep(pause).await;
                tally.until(|tally| tally.refused.load(Relaxed) > 0).await;
                cluster.resume().await;
            } else {
                kills += 1;
                replicas[victim].signal(Signal::KILL);
            }
            sleep(pause).await;
            stop.cancel();
        };
        let (acknowledged, ()) = tokio::join!(join_all(callers), fault);
        all.extend(acknowledged.into_iter().flatten());
        refused += tally.refused.into_inner();
        if !is_restart {
            replicas[victim] = Process::serve_file(path).await;
        }
    }
    eprintln!("{kills} kills, {restarts} restarts, {} acknowledged, {refused} refused", all.len());
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_ends_once_although_replicas_and_their_database_are_killed() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = replica_file(&cluster);
    let rounds = size("WATERWHEEL_ROUNDS", 3);
    let acknowledged = run_with_kills(&cluster, &path, rounds, rounds.clamp(5, 11)).await;
    let process = Process::serve_file(&path).await;
    let found = Jobs::of(&process).await.all_ended_once(acknowledged).await;
    eprintln!("0 lost; {found} found, each ended once");
}

/// Counts of the responses to several callers of one server.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
    submitted: AtomicUsize,
}

impl Tally {
    /// Creates a job, and retries until it is acknowledged.
    async fn create(&self, jobs: &Jobs, job_id: String) -> String {
        loop {
            match try_create(jobs, &job_id).await {
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

    /// Submits jobs one after another until `stop`. All must complete.
    async fn submit(&self, caller: Caller, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let request = SubmitRequest { job: Some(job("echo", "x")) };
            caller.0.clone().submit(request).await.expect("Submit needs no store");
            self.submitted.fetch_add(1, Relaxed);
        }
    }

    async fn until(&self, reached: impl Fn(&Self) -> bool) {
        let reached = async {
            while !reached(self) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(4 * PATIENCE, reached).await.unwrap_or_else(|_| panic!("not reached: {self:?}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_database_stops_no_acknowledged_job_is_lost_and_submit_still_works() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = replica_file(&cluster);
    let process = Process::serve_file(&path).await;
    let (most, tally) = (size("WATERWHEEL_JOBS", 2_000), Tally::default());
    let (halted, stop) = (CancellationToken::new(), CancellationToken::new());
    let (mut clients, mut callers) = (Vec::new(), Vec::new());
    for client in 0..4 {
        let (jobs, tally, halted) = (Jobs::of(&process).await, &tally, &halted);
        let created = stream::iter((client..most).step_by(4)).map(move |number| {
            let jobs = jobs.clone();
            async move {
                // The last jobs are created without a database, however fast the machine is.
                if number >= most / 4 * 3 {
                    halted.cancelled().await;
                }
                tally.create(&jobs, number.to_string()).await
            }
        });
        clients.push(created.buffer_unordered(16).collect::<Vec<_>>());
        callers.push(tally.submit(Caller::of(process.public).await, &stop));
    }
    let outage = async {
        tally.until(|tally| tally.acknowledged.load(Relaxed) >= most / 2).await;
        cluster.halt().await;
        halted.cancel();
        let before = tally.submitted.load(Relaxed);
        tally.until(|tally| tally.refused.load(Relaxed) >= 64 && tally.submitted.load(Relaxed) >= before + 100).await;
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

/// Its connections stay open, and nothing answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_database_stands_still_creates_are_refused_and_submit_still_works() {
    let stand_still = |cluster: &Cluster, is_over| cluster.signal(if is_over { Signal::CONT } else { Signal::STOP });
    refuses_and_goes_on("it has not answered for 5 s", stand_still).await;
}

/// It answers, but no commit ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_database_waits_for_its_standby_creates_are_refused_and_submit_still_works() {
    let wait = |cluster: &Cluster, is_over| {
        let names = if is_over { "" } else { "*" };
        cluster.put("postgresql.auto.conf", &format!("synchronous_standby_names = '{names}'\n"));
        cluster.signal(Signal::HUP);
    };
    refuses_and_goes_on("it takes no writes: it is a standby, or waits for one", wait).await;
}

async fn refuses_and_goes_on(cause: &str, set: impl Fn(&Cluster, bool)) {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = replica_file(&cluster);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let running = jobs.created(work("sleep", "2000")).await;
    while jobs.get(&running).await.state() != JobState::Running {}
    set(&cluster, false);
    let begin = Instant::now();
    let refused = loop {
        // The database may read its new setting late.
        match jobs.create(work("echo", "")).await {
            Ok(_) => assert!(begin.elapsed() < PATIENCE),
            Err(refused) => break refused,
        }
    };
    eprintln!("refused after {:.1?}", begin.elapsed());
    assert_eq!((refused.code(), refused.reason().as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
    assert!(refused.pushback() > Some(0) && begin.elapsed() < PATIENCE, "{refused:?}");
    process.logged(cause).await;
    assert_eq!(health::check(process.public, "store").await, ServingStatus::NotServing);
    Caller::of(process.public).await.0.submit(SubmitRequest { job: Some(job("echo", "x")) }).await.unwrap();

    set(&cluster, true);
    process.logged("the store of detached jobs answers again").await;
    let job = jobs.ended(&running).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Succeeded, vec!["COMPLETED"]));
    jobs.created(work("echo", "")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_unavailable_creates_are_refused_and_running_jobs_complete() {
    let Some(cluster) = Cluster::start().await else { return };
    let (_dir, path) = replica_file(&cluster);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let running = jobs.created(work("sleep", "2000")).await;
    while jobs.get(&running).await.state() != JobState::Running {}
    // The database stops in the middle of some transactions.
    let (tally, stop) = (Tally::default(), CancellationToken::new());
    let busy = (0..8).map(|caller| create(jobs.clone(), format!("busy-{caller}"), &tally, &stop));
    let halt = async {
        tally.until(|tally| tally.acknowledged.load(Relaxed) >= CREATED).await;
        cluster.halt().await;
        stop.cancel();
    };
    let (acknowledged, ()) = tokio::join!(join_all(busy), halt);
    let refused = jobs.create(work("echo", "")).await.unwrap_err();
    assert_eq!((refused.code(), refused.reason().as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
    assert!(refused.pushback() > Some(0), "{refused:?}");
    process.logged("the store of detached jobs fails").await;
    assert_eq!(health::check(process.public, "store").await, ServingStatus::NotServing);
    let check = ["check", "--env", "--config", path.to_str().unwrap()];
    let ran = Ran::of(program(&check)).await;
    let waits = ran.out.contains("the database is not available") && ran.out.contains("a server starts, and waits");
    assert!(ran.code == Some(0) && waits, "{}", ran.out);
    // A server starts as well, and needs no hand later.
    let second = Process::serve_file(&path).await;
    second.logged("the store of detached jobs fails").await;
    assert_eq!(health::check(second.public, "store").await, ServingStatus::NotServing);
    Caller::of(second.public).await.0.submit(SubmitRequest { job: Some(job("echo", "x")) }).await.unwrap();

    cluster.resume().await;
    for server in [&process, &second] {
        server.logged("the store of detached jobs answers again").await;
    }
    let id = Jobs::of(&second).await.created(work("echo", "")).await;
    assert_eq!(jobs.ended(&id).await.state(), JobState::Succeeded);
    let job = jobs.ended(&running).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Succeeded, vec!["COMPLETED"]));
    for id in acknowledged.iter().flatten() {
        assert_eq!(jobs.ended(id).await.state(), JobState::Succeeded);
    }
    assert_eq!(health::check(process.public, "store").await, ServingStatus::Serving);
    jobs.created(work("echo", "")).await;
    let ran = Ran::of(program(&check)).await;
    assert!(ran.out.contains("PostgreSQL 1") && ran.out.contains("schema 1"), "{}", ran.out);
}
