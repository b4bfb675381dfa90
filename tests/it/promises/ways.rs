//! The ways in: how a job reaches the service, and how its end is told.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use waterwheel::proto::{
    CreateJobRequest, CreateJobResponse, CreateJobsRequest, DetachedJob, DetachedJobFilter, GetJobRequest, Job,
    JobOptions, JobServiceListJobsRequest, JobState, RetryPolicy, StreamRequest, SubmitManyRequest, SubmitRequest,
    WaitJobRequest, create_jobs_response, job_service_client::JobServiceClient, stream_response::Event,
    submit_many_response,
};

use super::runs::Everything;
use crate::{
    json::caller as json,
    process::PATIENCE,
    refusal::{Refusal, rebuilt},
};

/// A way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Submit,
    Stream,
    SubmitMany,
    CreateJob,
    CreateJobs,
    /// `Submit` and `CreateJob` by HTTP and JSON.
    SubmitByJson,
    CreateByJson,
    /// A tick, which has no caller.
    Schedule,
}

/// How a job ended, as its caller is told.
#[derive(Debug)]
pub(super) struct End {
    pub(super) reason: String,
    /// What the status says of the execution; `None` for a job that completed, and for a detached job.
    pub(super) execution: Option<String>,
    pub(super) code: i32,
    pub(super) output: Vec<u8>,
    /// The detached job.
    pub(super) job: Option<DetachedJob>,
}

impl Way {
    /// Those of callers.
    pub(super) const ALL: [Self; 7] = [
        Self::Submit,
        Self::Stream,
        Self::SubmitMany,
        Self::SubmitByJson,
        Self::CreateJob,
        Self::CreateJobs,
        Self::CreateByJson,
    ];
    pub(super) const EVERY: [Self; 8] = [
        Self::Submit,
        Self::Stream,
        Self::SubmitMany,
        Self::SubmitByJson,
        Self::CreateJob,
        Self::CreateJobs,
        Self::CreateByJson,
        Self::Schedule,
    ];

    /// Whether the job is stored.
    pub(super) fn is_detached(self) -> bool {
        matches!(self, Self::CreateJob | Self::CreateJobs | Self::CreateByJson | Self::Schedule)
    }

    /// Sends a job, and waits for its end.
    pub(super) async fn end(self, of: &Everything, job: Job) -> End {
        let ended = tokio::time::timeout(PATIENCE, self.ended(of, job.clone()));
        match ended.await.unwrap_or_else(|_| panic!("{self:?}: {job:?} does not end")) {
            Ok(end) => end,
            Err(refusal) => End {
                reason: refusal.reason(),
                execution: refusal.facts().remove("execution"),
                code: refusal.code() as i32,
                output: Vec::new(),
                job: None,
            },
        }
    }

    async fn ended(self, of: &Everything, job: Job) -> Result<End, Refusal> {
        match self {
            Self::Submit => submit(of, job).await,
            Self::Stream => stream(of, job).await,
            Self::SubmitMany => submit_many(of, job).await,
            Self::SubmitByJson => {
                let answer = json::submit(of.service.public, Some(job), &[]).await?;
                Ok(completed(answer.result.expect("a result").output))
            }
            Self::CreateJob | Self::CreateJobs | Self::CreateByJson => {
                let id = self.create(of, job).await?;
                Ok(wait(of, &id).await)
            }
            Self::Schedule => unreachable!("a schedule has a table of its own"),
        }
    }

    /// Creates a detached job, and returns its id.
    pub(super) async fn create(self, of: &Everything, job: Job) -> Result<String, Refusal> {
        let mut client = jobs(of).await;
        let retry = Some(RetryPolicy { max_attempts: 1, ..RetryPolicy::default() });
        let options = Some(JobOptions { retry, ..JobOptions::default() });
        if self != Self::CreateJobs {
            let request = CreateJobRequest { job: Some(job), options, ..CreateJobRequest::default() };
            if self == Self::CreateByJson {
                let created = json::call(of.service.public, "JobService/CreateJob", &request, &[]).await;
                return created.map(|created: CreateJobResponse| created.job_id);
            }
            let created = client.create_job(request).await.map_err(|status| Refusal::of_call(status, true))?;
            return Ok(created.into_inner().job_id);
        }
        let request = CreateJobsRequest { job: Some(job), options, ..CreateJobsRequest::default() };
        let answers = client.create_jobs(tokio_stream::iter([request])).await;
        let mut answers = answers.map_err(|status| Refusal::of_call(status, true))?.into_inner();
        let answer = answers.message().await.map_err(|status| Refusal::of_call(status, false))?;
        match answer.and_then(|answer| answer.outcome).expect("an outcome") {
            create_jobs_response::Outcome::Created(created) => Ok(created.job_id),
            create_jobs_response::Outcome::Failure(failure) => Err(Refusal::of_call(rebuilt(failure), false)),
        }
    }
}

pub(super) async fn jobs(of: &Everything) -> JobServiceClient<tonic::transport::Channel> {
    JobServiceClient::new(of.service.public.channel().await)
}

fn completed(output: Vec<u8>) -> End {
    End { reason: "COMPLETED".to_owned(), execution: None, code: Code::Ok as i32, output, job: None }
}

async fn submit(of: &Everything, job: Job) -> Result<End, Refusal> {
    let answer = of.service.public.client().await.submit(SubmitRequest { job: Some(job) }).await;
    let answer = answer.map_err(|status| Refusal::of_call(status, true))?;
    Ok(completed(answer.into_inner().result.expect("a result").output))
}

async fn stream(of: &Everything, job: Job) -> Result<End, Refusal> {
    let events = of.service.public.client().await.stream(StreamRequest { job: Some(job) }).await;
    let mut events = events.map_err(|status| Refusal::of_call(status, true))?.into_inner();
    let mut output = Vec::new();
    while let Some(event) = events.message().await.map_err(|status| Refusal::of_call(status, false))? {
        if let Some(Event::OutputChunk(chunk)) = event.event {
            output.extend_from_slice(&chunk.data);
        }
    }
    Ok(completed(output))
}

async fn submit_many(of: &Everything, job: Job) -> Result<End, Refusal> {
    // The request stream stays open until the result is there, because its end could end the job.
    let (sender, sent) = mpsc::channel(1);
    sender.try_send(SubmitManyRequest { tag: "it".into(), job: Some(Box::new(job)) }).expect("there is room");
    let results = of.service.public.client().await.submit_many(ReceiverStream::new(sent)).await;
    let mut results = results.map_err(|status| Refusal::of_call(status, true))?.into_inner();
    let result = results.message().await.map_err(|status| Refusal::of_call(status, false))?;
    match result.and_then(|result| result.outcome).expect("an outcome") {
        submit_many_response::Outcome::Result(result) => Ok(completed(result.output)),
        submit_many_response::Outcome::Failure(failure) => Err(Refusal::of_call(rebuilt(failure), false)),
    }
}

/// Waits for the end of a detached job.
pub(super) async fn wait(of: &Everything, id: &str) -> End {
    let job = loop {
        let mut request = tonic::Request::new(WaitJobRequest { job_id: id.to_owned() });
        request.set_timeout(Duration::from_secs(20));
        let job = jobs(of).await.wait_job(request).await.unwrap().into_inner().job.expect("a job");
        if job.state() >= JobState::Succeeded {
            break job;
        }
    };
    let last = job.attempts.last();
    End {
        reason: last.map(|attempt| attempt.outcome.clone()).unwrap_or_default(),
        execution: None,
        code: last.map(|attempt| attempt.code).unwrap_or_default(),
        output: job.output.to_vec(),
        job: Some(job),
    }
}

/// Waits for the end of the first job of a schedule.
pub(super) async fn scheduled(of: &Everything, schedule: &str) -> End {
    let (key, name) = ("schedule".to_owned(), schedule.to_owned());
    let filter = DetachedJobFilter { label_key: key, label_value: name, ..DetachedJobFilter::default() };
    let mut client = jobs(of).await;
    let id = tokio::time::timeout(PATIENCE, async {
        loop {
            let request =
                JobServiceListJobsRequest { filter: Some(filter.clone()), ..JobServiceListJobsRequest::default() };
            let page = client.list_jobs(request).await.unwrap().into_inner();
            match page.jobs.into_iter().next_back() {
                Some(job) => break job.job_id,
                None => tokio::task::yield_now().await,
            }
        }
    });
    wait(of, &id.await.expect("a tick makes a job")).await
}

pub(super) async fn get(of: &Everything, id: &str) -> DetachedJob {
    let request = GetJobRequest { job_id: id.to_owned(), with_payload: false };
    jobs(of).await.get_job(request).await.unwrap().into_inner().job.expect("a job")
}
