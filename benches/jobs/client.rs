//! Callers of `JobService`.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use waterwheel::proto::{
    CloseGroupRequest, CreateGroupRequest, CreateJobRequest, CreateJobsRequest, DetachedJob, DetachedJobFilter,
    GetJobRequest, Job, JobOptions, JobServiceCancelJobRequest, JobServiceListJobsRequest, JobState, SubmitRequest,
    WaitJobRequest, create_jobs_response::Outcome, job_service_client::JobServiceClient,
    worker_pool_service_client::WorkerPoolServiceClient,
};

use crate::{Failure, child::Server};

/// Page size of a list of jobs.
const PAGE: u32 = 1000;
/// Number of concurrent callers of `Submit`.
const SUBMITTERS: usize = 16;

pub(crate) struct Client(JobServiceClient<Channel>);

async fn channel(server: &Server) -> Result<Channel, Failure> {
    Ok(Channel::from_shared(format!("http://{}", server.address))?.connect().await?)
}

fn job(kind: &str, payload: &str) -> Option<Job> {
    Some(Job { kind: kind.to_owned(), payload: payload.to_owned().into(), ..Job::default() })
}

impl Client {
    pub(crate) async fn of(server: &Server) -> Result<Self, Failure> {
        Ok(Self(JobServiceClient::new(channel(server).await?).max_decoding_message_size(usize::MAX)))
    }

    pub(crate) async fn create(&mut self, kind: &str, payload: &str) -> Result<String, Failure> {
        let request = CreateJobRequest { job: job(kind, payload), ..CreateJobRequest::default() };
        Ok(self.0.create_job(request).await?.into_inner().job_id)
    }

    pub(crate) async fn cancel(&mut self, id: &str) -> Result<(), Failure> {
        self.0.cancel_job(JobServiceCancelJobRequest { job_id: id.to_owned(), reason: String::new() }).await?;
        Ok(())
    }

    /// Opens a group, and returns the id of the job that waits for it.
    pub(crate) async fn open_group(&mut self, group_id: &str) -> Result<String, Failure> {
        let request = CreateGroupRequest { job: job("echo", ""), group_id: group_id.to_owned(), ..Default::default() };
        Ok(self.0.create_group(request).await?.into_inner().job_id)
    }

    pub(crate) async fn close_group(&mut self, group_id: &str) -> Result<(), Failure> {
        self.0.close_group(CloseGroupRequest { group_id: group_id.to_owned() }).await?;
        Ok(())
    }

    /// Waits until the job runs.
    pub(crate) async fn running(&mut self, id: &str) -> Result<(), Failure> {
        loop {
            let request = GetJobRequest { job_id: id.to_owned(), ..GetJobRequest::default() };
            let job = self.0.get_job(request).await?.into_inner().job;
            if job.is_some_and(|job| job.state() == JobState::Running) {
                return Ok(());
            }
        }
    }

    /// Waits until the job has ended.
    pub(crate) async fn ended(&mut self, id: &str) -> Result<(), Failure> {
        loop {
            let request = WaitJobRequest { job_id: id.to_owned() };
            let job = self.0.wait_job(request).await?.into_inner().job.unwrap_or_default();
            match job.state() {
                JobState::Succeeded => return Ok(()),
                // The job runs longer than one call may take.
                JobState::Scheduled | JobState::Ready | JobState::Running => {}
                other => return Err(format!("{id} is {other:?}").into()),
            }
        }
    }

    /// Waits until no job of the kind is open.
    pub(crate) async fn all_ended(&mut self, kind: &str) -> Result<(), Failure> {
        let states = [JobState::Scheduled, JobState::Ready, JobState::Running].map(i32::from).to_vec();
        let filter = DetachedJobFilter { states, kind: kind.to_owned(), ..DetachedJobFilter::default() };
        loop {
            let request =
                JobServiceListJobsRequest { filter: Some(filter.clone()), page_size: 1, ..Default::default() };
            let open = self.0.list_jobs(request).await?.into_inner().jobs;
            // The newest job ends last.
            let Some(newest) = open.first() else { return Ok(()) };
            self.ended(&newest.job_id).await?;
        }
    }

    /// Times from acceptance to end of the jobs with this prefix of their ids.
    ///
    /// The start time in a store is that of the lease, which may be the time of acceptance.
    pub(crate) async fn waits(&mut self, prefix: &str) -> Result<Vec<Duration>, Failure> {
        let (mut waits, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = JobServiceListJobsRequest { page_size: PAGE, page_token, ..Default::default() };
            let page = self.0.list_jobs(request).await?.into_inner();
            let count = page.jobs.len();
            waits.extend(page.jobs.iter().filter(|job| job.job_id.starts_with(prefix)).filter_map(wait));
            page_token = page.next_page_token;
            if page_token.is_empty() || count == 0 {
                return Ok(waits);
            }
        }
    }
}

fn wait(job: &DetachedJob) -> Option<Duration> {
    let at = |time: Option<prost_types::Timestamp>| std::time::SystemTime::try_from(time?).ok();
    Some(at(job.end_time)?.duration_since(at(job.create_time)?).unwrap_or_default())
}

/// Jobs to create.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) jobs: usize,
    pub(crate) kind: &'static str,
    pub(crate) payload: &'static str,
    /// Prefix of the ids. The number of the call and of the job follow.
    pub(crate) prefix: String,
    /// Jobs per second. `None` means as fast as the server accepts them.
    pub(crate) rate: Option<f64>,
    /// The group that they join. Empty means none.
    pub(crate) group: String,
}

/// Creates jobs on `calls` concurrent calls. Returns when all are acknowledged.
pub(crate) async fn create(server: &Server, calls: usize, batch: &Batch) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for call in 0..calls {
        let mut client = Client::of(server).await?.0;
        let count = batch.jobs / calls + usize::from(call < batch.jobs % calls);
        let (send, sent) = mpsc::channel(1024);
        let batch = batch.clone();
        tokio::spawn(async move {
            for number in 0..count {
                if let Some(rate) = batch.rate {
                    let due = (number * calls + call) as f64 / rate;
                    sleep_until(start + Duration::from_secs_f64(due)).await;
                }
                let job_id = format!("{}-{call}-{number}", batch.prefix);
                let job = job(batch.kind, batch.payload);
                let options = JobOptions { group: batch.group.clone(), ..JobOptions::default() };
                let request = CreateJobsRequest { job, job_id, options: Some(options), ..Default::default() };
                // The call has ended, and its status has the reason.
                if send.send(request).await.is_err() {
                    break;
                }
            }
        });
        tasks.spawn(async move {
            let answers = client.create_jobs(ReceiverStream::new(sent)).await?.into_inner();
            acknowledged(answers, count).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn acknowledged(
    mut answers: tonic::Streaming<waterwheel::proto::CreateJobsResponse>,
    count: usize,
) -> Result<(), Failure> {
    let mut created = 0;
    while let Some(answer) = answers.message().await? {
        match answer.outcome {
            Some(Outcome::Created(_)) => created += 1,
            other => return Err(format!("{other:?}").into()),
        }
    }
    if created == count { Ok(()) } else { Err(format!("{created} of {count} were created").into()) }
}

/// Calls `Submit` for a time, and returns the number of answered calls.
pub(crate) async fn submit_for(server: &Server, lasts: Duration) -> Result<usize, Failure> {
    let (end, client) = (Instant::now() + lasts, WorkerPoolServiceClient::new(channel(server).await?));
    let mut tasks = JoinSet::new();
    for _ in 0..SUBMITTERS {
        let mut client = client.clone();
        tasks.spawn(async move {
            let mut calls = 0;
            while Instant::now() < end {
                client.submit(SubmitRequest { job: job("echo", "hello waterwheel") }).await?;
                calls += 1;
            }
            Ok::<usize, tonic::Status>(calls)
        });
    }
    let mut calls = 0;
    while let Some(done) = tasks.join_next().await {
        calls += done??;
    }
    Ok(calls)
}
