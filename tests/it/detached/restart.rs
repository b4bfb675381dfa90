//! The jobs of a store survive kills, drains and restarts of their server.

use std::collections::BTreeSet;

use rustix::process::Signal;
use tokio::time::Instant;
use waterwheel::proto::{CreateJobsRequest, DetachedJob, JobState, create_jobs_response::Outcome};

use super::{CONFIG, Jobs, delayed, outcomes, work};
use crate::{
    process::{Process, config_file},
    service::job,
    support::size,
};

/// Creates jobs, and kills the server once it has acknowledged `most`. Some jobs have ended then, some run, and some are
/// queued. Returns all acknowledged ids, and the end of the first job.
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
