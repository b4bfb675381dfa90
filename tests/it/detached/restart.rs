//! The jobs of a store survive kills, drains and restarts of their server.

use std::collections::BTreeSet;

use rustix::process::Signal;
use tokio::time::Instant;
use waterwheel::proto::{CreateJobsRequest, DetachedJobFilter, JobState, create_jobs_response::Outcome};

use super::{CONFIG, Jobs, delayed, outcomes, work};
use crate::{
    process::{Process, config_file},
    service::job,
    support::size,
};

#[tokio::test]
async fn every_acknowledged_job_ends_once_after_the_server_is_killed() {
    let (_dir, path) = config_file(CONFIG);
    let (mut acknowledged, mut ended) = (BTreeSet::new(), Vec::new());
    for round in 0..3 {
        let process = Process::serve_file(&path).await;
        let jobs = Jobs::of(&process).await;
        let first = jobs.created(work("echo", "first")).await;
        acknowledged.insert(first.clone());
        for number in 1..40 {
            let kind = if number % 4 == 0 { "sleep" } else { "echo" };
            acknowledged.insert(jobs.created(work(kind, "20")).await);
        }
        ended.push(jobs.ended(&first).await);
        // The server is killed while some jobs run, some are queued and some have ended.
        assert_eq!(acknowledged.len(), 40 * (round + 1));
        process.killed().await;
    }
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    for job in ended {
        assert_eq!(jobs.ended(&job.job_id).await, job, "a reported end does not change");
    }
    for id in &acknowledged {
        let job = jobs.ended(id).await;
        let completed = outcomes(&job).iter().filter(|outcome| **outcome == "COMPLETED").count();
        assert_eq!((job.state(), completed), (JobState::Succeeded, 1), "{job:?}");
    }
    let all = jobs.list(DetachedJobFilter::default()).await;
    assert_eq!(all.into_iter().map(|job| job.job_id).collect::<BTreeSet<_>>(), acknowledged);
}

/// Creates jobs, and kills the server once it has acknowledged `most`. Returns all acknowledged ids.
async fn create_until_killed(process: &Process, round: usize, most: usize) -> Vec<String> {
    let sent = (0..).map(move |number: usize| {
        let job_id = format!("{round}-{number}");
        CreateJobsRequest { job: Some(job("echo", "x")), job_id, ..CreateJobsRequest::default() }
    });
    let mut client = Jobs::of(process).await.0;
    let mut answers = client.create_jobs(tokio_stream::iter(sent)).await.unwrap().into_inner();
    let mut acknowledged = Vec::new();
    while let Ok(Some(answer)) = answers.message().await {
        let Some(Outcome::Created(created)) = answer.outcome else { continue };
        acknowledged.push(created.job_id);
        if acknowledged.len() == most {
            process.signal(Signal::KILL);
        }
    }
    acknowledged
}

#[tokio::test]
#[ignore = "it takes minutes; docs/benchmarks.md has the command"]
async fn detached_jobs_survive_many_kills() {
    let (rounds, jobs) = (size("WATERWHEEL_ROUNDS", 20), size("WATERWHEEL_JOBS", 5_000));
    let config = CONFIG.replace("retain_for = \"1h\"", "retain_for = \"24h\"");
    // With two workers, the backlog at the end would take an hour.
    let (_dir, path) = config_file(&config.replace("workers = 2", "workers = 64"));
    let (mut acknowledged, begin) = (BTreeSet::new(), Instant::now());
    for round in 0..rounds {
        let process = Process::serve_file(&path).await;
        acknowledged.extend(create_until_killed(&process, round, jobs).await);
        process.killed().await;
    }
    let (count, took) = (acknowledged.len(), begin.elapsed());
    assert!(count >= rounds * jobs, "{count}");
    let process = Process::serve_file(&path).await;
    let started = process.served_after;
    let found = Jobs::of(&process).await.all_ended_once(acknowledged).await;
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
