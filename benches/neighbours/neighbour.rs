//! The tenant beside the attacker: a few calls a second, each timed.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use waterwheel::proto::{CreateJobRequest, GetJobRequest, Job, JobState, SubmitRequest};

use crate::{Failure, tenant::Tenant};

/// Time between two rounds of calls.
const PAUSE: Duration = Duration::from_millis(20);
/// Detached jobs that run the whole time.
const HELD: usize = 4;

/// Times of the calls, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Times {
    submits: Vec<f64>,
    creates: Vec<f64>,
    gets: Vec<f64>,
}

impl Times {
    pub(crate) fn names() -> [&'static str; 3] {
        ["Submit", "CreateJob", "GetJob"]
    }

    /// The 99th percentiles of these and of others.
    pub(crate) fn pairs(&self, others: &Self) -> [[f64; 2]; 3] {
        let pair = |own: &[f64], others: &[f64]| [p99(own), p99(others)];
        [pair(&self.submits, &others.submits), pair(&self.creates, &others.creates), pair(&self.gets, &others.gets)]
    }
}

fn p99(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}

fn job(kind: &str, payload: &str) -> Option<Job> {
    Some(Job { kind: kind.to_owned(), payload: payload.to_owned().into(), ..Job::default() })
}

/// Starts jobs that run to the end of the measurement, and returns their ids.
pub(crate) async fn hold(tenant: &Tenant) -> Result<Vec<String>, Failure> {
    let mut ids = Vec::new();
    for _ in 0..HELD {
        let request = CreateJobRequest { job: job("sleep", "3600000"), ..CreateJobRequest::default() };
        ids.push(tenant.jobs().await?.create_job(request).await?.into_inner().job_id);
    }
    Ok(ids)
}

/// Fails unless each job is in its first attempt.
pub(crate) async fn still_runs(tenant: &Tenant, held: &[String]) -> Result<(), Failure> {
    for id in held {
        let request = GetJobRequest { job_id: id.clone(), ..GetJobRequest::default() };
        let job = tenant.jobs().await?.get_job(request).await?.into_inner().job.unwrap_or_default();
        if job.state() != JobState::Running || !job.attempts.iter().all(|attempt| attempt.number == 1) {
            return Err(format!("a running job was stopped: {job:?}").into());
        }
    }
    println!("{} running jobs were not disturbed", held.len());
    Ok(())
}

/// Calls for a time. Each kind of call has its own connection and its own pace.
pub(crate) async fn call(tenant: &Tenant, lasts: Duration) -> Result<Times, Failure> {
    let (mut pool, mut jobs, mut reader) = (tenant.pool().await?, tenant.jobs().await?, tenant.jobs().await?);
    let request = CreateJobRequest { job: job("echo", "x"), ..CreateJobRequest::default() };
    let known = jobs.create_job(request.clone()).await?.into_inner().job_id;
    let submits = timed(lasts, async || pool.submit(SubmitRequest { job: job("echo", "x") }).await.map(drop));
    let creates = timed(lasts, async || jobs.create_job(request.clone()).await.map(drop));
    let get = GetJobRequest { job_id: known, ..GetJobRequest::default() };
    let gets = timed(lasts, async || reader.get_job(get.clone()).await.map(drop));
    let (submits, creates, gets) = tokio::join!(submits, creates, gets);
    let failures = [&submits, &creates, &gets].map(|(_, failures)| failures.len());
    let first = [&submits, &creates, &gets].into_iter().find_map(|(_, failures)| failures.first().cloned());
    if let Some(first) = first {
        println!("failed calls of the neighbour: {failures:?}, the first: {first}");
    }
    Ok(Times { submits: submits.0, creates: creates.0, gets: gets.0 })
}

/// The times of the calls that were answered, in milliseconds, and the failures of the others.
async fn timed(
    lasts: Duration,
    mut call: impl AsyncFnMut() -> Result<(), tonic::Status>,
) -> (Vec<f64>, Vec<tonic::Status>) {
    let (end, mut pace) = (Instant::now() + lasts, interval(PAUSE));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut times, mut failures) = (Vec::new(), Vec::new());
    while Instant::now() < end {
        pace.tick().await;
        let begin = Instant::now();
        match call().await {
            Ok(()) => times.push(begin.elapsed().as_secs_f64() * 1e3),
            Err(status) => failures.push(status),
        }
    }
    (times, failures)
}
