//! Detached jobs, which outlive the calls that create them, as a caller of `JobService` sees them.

mod bounds;
mod churn;
mod clock;
mod faults;
mod file;
mod groups;
mod leases;
mod letters;
mod names;
mod operators;
mod outages;
mod poison;
mod quotas;
mod replicas;
mod results;
mod runs;
mod tenants;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use tempfile::TempDir;
use tonic::{Code, transport::Channel};
use waterwheel::proto::{
    CreateJobRequest, CreateJobResponse, CreateJobsRequest, DeleteJobRequest, DetachedJob, DetachedJobFilter,
    GetJobRequest, Job, JobOptions, JobServiceCancelJobRequest, JobServiceListJobsRequest, JobServiceListJobsResponse,
    JobState, PurgeJobsRequest, RetryJobRequest, RetryPolicy, WaitJobRequest, create_jobs_response::Outcome,
    job_options::Start, job_service_client::JobServiceClient,
};

use crate::{
    process::Process,
    refusal::Refusal,
    service::{Address, job},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    store.path = "jobs.db"
    [pool.one]
    workers = 2
    cancel_grace = "100ms"
    [kind.echo]
    pool = "one"
    builtin = "echo"
    retain_for = "1h"
    [kind.flaky]
    pool = "one"
    exec = ["/bin/sh", "-c", "read file; echo run >> $file; [ $(wc -l < $file) -ge 3 ]"]
    retry = { initial = "1ms", max_attempts = 3 }
    [kind.refuses]
    pool = "one"
    exec = ["/bin/sh", "-c", "echo no >&2; exit 65"]
"#;

/// A caller of `JobService`.
#[derive(Clone)]
struct Jobs(JobServiceClient<Channel>);

impl Jobs {
    async fn of(process: &Process) -> Self {
        Self::at(process.public).await
    }

    async fn at(address: Address) -> Self {
        Self(JobServiceClient::new(address.channel().await))
    }

    async fn create(&self, request: CreateJobRequest) -> Result<CreateJobResponse, Refusal> {
        let answer = self.0.clone().create_job(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Refusal::of_call(status, true))
    }

    async fn created(&self, request: CreateJobRequest) -> String {
        self.create(request).await.unwrap().job_id
    }

    async fn get(&self, id: &str) -> DetachedJob {
        let request = GetJobRequest { job_id: id.to_owned(), with_payload: true };
        self.0.clone().get_job(request).await.unwrap().into_inner().job.unwrap()
    }

    /// Waits until the job has ended.
    async fn ended(&self, id: &str) -> DetachedJob {
        let request = WaitJobRequest { job_id: id.to_owned() };
        let job = self.0.clone().wait_job(request).await.unwrap().into_inner().job.unwrap();
        assert!(job.state() >= JobState::Succeeded, "{job:?}");
        job
    }

    async fn cancel(&self, id: &str) -> Result<JobState, Refusal> {
        let answer = self
            .0
            .clone()
            .cancel_job(JobServiceCancelJobRequest { job_id: id.to_owned(), reason: String::new() })
            .await;
        answer.map(|answer| answer.into_inner().state()).map_err(|status| Refusal::of_call(status, true))
    }

    async fn retry(&self, id: &str) {
        self.0.clone().retry_job(RetryJobRequest { job_id: id.to_owned(), reason: String::new() }).await.unwrap();
    }

    async fn list(&self, filter: DetachedJobFilter) -> Vec<DetachedJob> {
        self.list_by(7, filter).await
    }

    /// All jobs of the filter, listed in pages of this size.
    async fn list_by(&self, page_size: u32, filter: DetachedJobFilter) -> Vec<DetachedJob> {
        let (mut jobs, mut token) = (Vec::new(), String::new());
        loop {
            let page = self.page(page_size, &filter, token).await;
            jobs.extend(page.jobs);
            token = page.next_page_token;
            if token.is_empty() {
                return jobs;
            }
        }
    }

    async fn page(&self, page_size: u32, filter: &DetachedJobFilter, page_token: String) -> JobServiceListJobsResponse {
        let filter = Some(filter.clone());
        let request = JobServiceListJobsRequest { filter, page_size, page_token, ..Default::default() };
        self.0.clone().list_jobs(request).await.unwrap().into_inner()
    }

    /// The newest job that matches. A page without jobs may have a token.
    async fn first(&self, filter: &DetachedJobFilter) -> Option<DetachedJob> {
        let mut page = self.page(1, filter, String::new()).await;
        while page.jobs.is_empty() && !page.next_page_token.is_empty() {
            page = self.page(1, filter, page.next_page_token).await;
        }
        page.jobs.pop()
    }

    /// Waits until all jobs have ended, and checks that each has succeeded once and that none of `acknowledged` is
    /// missing. Returns the number of jobs.
    async fn all_ended_once(&self, mut acknowledged: BTreeSet<String>) -> usize {
        let states = [JobState::Ready, JobState::Running, JobState::Scheduled].map(i32::from).to_vec();
        let open = DetachedJobFilter { states, ..DetachedJobFilter::default() };
        while let Some(job) = self.first(&open).await {
            // The job may still run when the call reaches its deadline, and the loop waits again.
            self.0.clone().wait_job(WaitJobRequest { job_id: job.job_id }).await.unwrap();
        }
        let (mut count, mut token) = (0, String::new());
        loop {
            let page = self.page(1000, &DetachedJobFilter::default(), token).await;
            for job in &page.jobs {
                let completed = outcomes(job).iter().filter(|outcome| **outcome == "COMPLETED").count();
                assert_eq!((job.state(), completed), (JobState::Succeeded, 1), "{job:?}");
                acknowledged.remove(&job.job_id);
            }
            (count, token) = (count + page.jobs.len(), page.next_page_token);
            if token.is_empty() {
                assert!(acknowledged.is_empty(), "{} lost: {acknowledged:?}", acknowledged.len());
                return count;
            }
        }
    }
}

async fn serve(config: &str) -> (Process, Jobs) {
    let process = Process::serve(config).await;
    let jobs = Jobs::of(&process).await;
    (process, jobs)
}

fn work(kind: &str, payload: impl Into<bytes::Bytes>) -> CreateJobRequest {
    CreateJobRequest { job: Some(job(kind, payload)), ..CreateJobRequest::default() }
}

fn with(options: JobOptions, request: CreateJobRequest) -> CreateJobRequest {
    CreateJobRequest { options: Some(options), ..request }
}

fn delayed(delay: &str, request: CreateJobRequest) -> CreateJobRequest {
    with(JobOptions { start: Some(Start::Delay(delay.parse().unwrap())), ..JobOptions::default() }, request)
}

fn millis(job: &DetachedJob) -> (i64, i32) {
    let created = job.create_time.unwrap();
    (created.seconds, created.nanos)
}

fn outcomes(job: &DetachedJob) -> Vec<&str> {
    job.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect()
}

/// A file for a kind that counts its runs there, and the payload that names it.
fn file(dir: &TempDir) -> (std::path::PathBuf, String) {
    let path = dir.path().join("runs");
    (path.clone(), format!("{}\n", path.display()))
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_created_job_runs_and_can_be_read() {
    let (_process, jobs) = serve(CONFIG).await;
    let (a, b) = (jobs.created(work("echo", "one")).await, jobs.created(work("echo", "two")).await);
    assert_ne!(a, b);
    let done = jobs.ended(&a).await;
    assert_eq!((done.state(), &*done.output, outcomes(&done)), (JobState::Succeeded, &b"one"[..], vec!["COMPLETED"]));
    assert!(
        done.attempts[0].worker.starts_with("one/")
            && done.purge_time.unwrap().seconds == done.end_time.unwrap().seconds + 3600,
        "{done:?}"
    );
    let read = jobs.get(&a).await;
    let work = read.job.clone().unwrap();
    assert_eq!((&*work.payload, work.criticality().as_str_name()), (&b"one"[..], "CRITICALITY_SHEDDABLE_PLUS"));
    assert_eq!(jobs.ended(&b).await.output, b"two");
}

#[tokio::test]
async fn an_invalid_filter_or_job_id_is_refused() {
    let (_process, jobs) = serve(CONFIG).await;
    jobs.ended(&jobs.created(work("echo", "")).await).await;
    let odd_state = DetachedJobFilter { states: vec![99], ..DetachedJobFilter::default() };
    let odd_label = DetachedJobFilter { label_value: "x".into(), ..DetachedJobFilter::default() };
    for filter in [odd_state, odd_label] {
        let purged =
            jobs.0.clone().purge_jobs(PurgeJobsRequest { filter: Some(filter), ..PurgeJobsRequest::default() }).await;
        assert_eq!(purged.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(jobs.list(DetachedJobFilter::default()).await.len(), 1);
    let tick = CreateJobRequest { job_id: "schedule/report/2030-01-01T00:00:00Z".into(), ..work("echo", "") };
    assert_eq!(jobs.create(tick).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn creating_a_job_again_with_the_same_id_returns_the_existing_job() {
    let (_process, jobs) = serve(CONFIG).await;
    let named = |payload: &'static str| CreateJobRequest { job_id: "mine".into(), ..work("echo", payload) };
    let first = jobs.create(named("one")).await.unwrap();
    assert_eq!((first.job_id.as_str(), first.already_existed), ("mine", false));
    assert!(jobs.create(named("one")).await.unwrap().already_existed);
    jobs.ended("mine").await;
    assert!(jobs.create(named("one")).await.unwrap().already_existed);
    let other = jobs.create(named("two")).await.unwrap_err();
    assert_eq!(
        (other.code(), other.reason().as_str(), other.pushback()),
        (Code::AlreadyExists, "JOB_EXISTS", Some(-1))
    );
    assert_eq!(outcomes(&jobs.get("mine").await), ["COMPLETED"]);
}

#[tokio::test]
async fn a_delayed_job_starts_after_its_delay_unless_it_expires_first() {
    let (_process, jobs) = serve(CONFIG).await;
    let later = jobs.created(delayed("5s", work("echo", "x"))).await;
    assert_eq!(jobs.get(&later).await.state(), JobState::Scheduled);
    let soon = std::time::SystemTime::now() + Duration::from_secs(5);
    let options = JobOptions {
        start: Some(Start::Delay("600s".parse().unwrap())),
        expire_time: Some(soon.into()),
        ..JobOptions::default()
    };
    let never = jobs.created(with(options, work("echo", "x"))).await;
    let (done, expired) = (jobs.ended(&later).await, jobs.ended(&never).await);
    assert_eq!(done.state(), JobState::Succeeded);
    assert!(done.due_time.unwrap().seconds > done.create_time.unwrap().seconds, "{done:?}");
    assert_eq!((expired.state(), expired.attempts.len()), (JobState::Expired, 0));
}

#[tokio::test]
async fn a_failed_job_is_retried_up_to_its_maximum_and_then_on_request() {
    let ((_process, jobs), dir) = (serve(CONFIG).await, tempfile::tempdir().unwrap());
    let (path, line) = file(&dir);
    let id = jobs.created(work("flaky", line.clone())).await;
    let done = jobs.ended(&id).await;
    assert_eq!(
        (done.state(), outcomes(&done)),
        (JobState::Succeeded, vec!["HANDLER_FAILED", "HANDLER_FAILED", "COMPLETED"])
    );
    assert_eq!((done.failures, done.attempts[0].code), (2, Code::Unknown as i32));

    std::fs::remove_file(&path).unwrap();
    let retry = Some(RetryPolicy { max_attempts: 2, ..RetryPolicy::default() });
    let id = jobs.created(with(JobOptions { retry, ..JobOptions::default() }, work("flaky", line))).await;
    let dead = jobs.ended(&id).await;
    assert_eq!((dead.state(), dead.attempts.len(), lines(&path)), (JobState::Failed, 2, 2));
    jobs.retry(&id).await;
    let done = jobs.ended(&id).await;
    assert_eq!((done.state(), done.attempts.len()), (JobState::Succeeded, 3));

    let refused = jobs.ended(&jobs.created(work("refuses", "")).await).await;
    assert_eq!((refused.state(), refused.attempts.len()), (JobState::Failed, 1));
    assert!(refused.attempts[0].message.contains("no"), "{refused:?}");
    assert_eq!(refused.attempts[0].code, Code::InvalidArgument as i32);
}

#[tokio::test]
async fn a_scheduled_job_and_a_running_job_can_be_cancelled() {
    let (_process, jobs) = serve(CONFIG).await;
    let waiting = jobs.created(delayed("600s", work("echo", ""))).await;
    assert_eq!(jobs.cancel(&waiting).await.unwrap(), JobState::Cancelled);
    assert_eq!(jobs.ended(&waiting).await.state(), JobState::Cancelled);
    let again = jobs.cancel(&waiting).await.unwrap_err();
    assert_eq!((again.code(), again.reason().as_str()), (Code::FailedPrecondition, "WRONG_STATE"));
    assert_eq!(again.facts()["state"], "CANCELLED");

    let running = jobs.created(work("sleep", "60000")).await;
    while jobs.get(&running).await.state() != JobState::Running {}
    assert_eq!(jobs.cancel(&running).await.unwrap(), JobState::Running);
    let ended = jobs.ended(&running).await;
    assert_eq!((ended.state(), outcomes(&ended)), (JobState::Cancelled, vec!["CANCELLED_BY_OPERATOR"]));
    let none = jobs.cancel("none").await.unwrap_err();
    assert_eq!((none.code(), none.reason().as_str()), (Code::NotFound, "NOT_FOUND"));
}

#[tokio::test]
async fn jobs_are_created_in_a_stream_and_listed_and_purged_by_filter() {
    let (_process, jobs) = serve(CONFIG).await;
    let sent = (0..50).map(|number| {
        let kind = if number == 13 { "unknown" } else { "echo" };
        let labels = [("half".to_owned(), (number % 2).to_string())].into();
        let job = Some(Job { labels, ..job(kind, number.to_string()) });
        CreateJobsRequest { job, job_id: format!("job-{number}"), tag: number.to_string(), options: None }
    });
    let mut answers =
        jobs.0.clone().create_jobs(tokio_stream::iter(sent.collect::<Vec<_>>())).await.unwrap().into_inner();
    let mut count = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        count += 1;
        match answer.outcome.unwrap() {
            Outcome::Created(created) => assert_eq!(created.job_id, format!("job-{}", answer.tag)),
            Outcome::Failure(failure) => assert_eq!((answer.tag.as_str(), failure.code), ("13", 3), "{failure:?}"),
        }
    }
    assert_eq!(count, 50);
    for number in (0..50).filter(|number| *number != 13) {
        assert_eq!(jobs.ended(&format!("job-{number}")).await.output, number.to_string().as_bytes());
    }
    let all = jobs.list(DetachedJobFilter::default()).await;
    assert_eq!(all.len(), 49);
    assert!(all.is_sorted_by(|a, b| millis(a) >= millis(b)) && all.iter().all(|job| job.output.is_empty()));
    for (page_size, length, is_last) in [(48, 48, false), (49, 49, true), (0, 49, true)] {
        let page = jobs.page(page_size, &DetachedJobFilter::default(), String::new()).await;
        assert_eq!((page.jobs.len(), page.next_page_token.is_empty()), (length, is_last), "{page_size}");
    }
    let even = DetachedJobFilter { label_key: "half".into(), label_value: "0".into(), ..Default::default() };
    assert_eq!(jobs.list(even.clone()).await.len(), 25);
    let waiting = DetachedJobFilter { states: vec![JobState::Ready.into()], ..Default::default() };
    assert_eq!(jobs.list(waiting).await.len(), 0);

    jobs.0.clone().delete_job(DeleteJobRequest { job_id: "job-0".into(), reason: String::new() }).await.unwrap();
    let purged = jobs
        .0
        .clone()
        .purge_jobs(PurgeJobsRequest { filter: Some(even), ..PurgeJobsRequest::default() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(purged.removed, 24);
    assert_eq!(jobs.list(DetachedJobFilter::default()).await.len(), 24);
}

#[tokio::test]
async fn a_page_of_large_jobs_fits_into_an_answer() {
    let (_process, jobs) = serve(CONFIG).await;
    let labels: BTreeMap<_, _> = (10..26).map(|number| (format!("{number:064}"), "x".repeat(256))).collect();
    let sent = (0..1000).map(|number| CreateJobsRequest {
        job: Some(Job { labels: labels.clone(), ..job("echo", "") }),
        job_id: format!("job-{number}"),
        ..CreateJobsRequest::default()
    });
    let created = jobs.0.clone().create_jobs(tokio_stream::iter(sent.collect::<Vec<_>>())).await.unwrap().into_inner();
    assert_eq!(tokio_stream::StreamExt::collect::<Vec<_>>(created).await.len(), 1000);

    let listed = jobs.list_by(1000, DetachedJobFilter::default()).await;
    assert_eq!(listed.iter().map(|job| &job.job_id).collect::<BTreeSet<_>>().len(), 1000);

    let page = jobs.page(0, &DetachedJobFilter::default(), String::new()).await;
    assert_eq!((page.jobs.len(), page.next_page_token.is_empty()), (100, false), "the default size of a page");

    let request = JobServiceListJobsRequest { page_token: "x".into(), ..Default::default() };
    let refused = jobs.0.clone().list_jobs(request).await.map_err(|status| Refusal::of_call(status, true)).unwrap_err();
    assert_eq!((refused.code(), refused.reason().as_str()), (Code::InvalidArgument, "INVALID_FIELD"), "{refused:?}");
}

#[tokio::test]
async fn a_wait_that_reaches_its_deadline_returns_the_state_and_the_job_still_runs() {
    // The margin leaves time for the response on a busy machine. The client starts no timer for a header.
    let (_process, jobs) = serve(&format!("deadline.reply_margin = \"1s\"\n{CONFIG}")).await;
    let id = jobs.created(work("sleep", "60000")).await;
    while jobs.get(&id).await.state() != JobState::Running {}
    let mut request = tonic::Request::new(WaitJobRequest { job_id: id.clone() });
    request.metadata_mut().insert("grpc-timeout", "3S".parse().unwrap());
    let job = jobs.0.clone().wait_job(request).await.unwrap().into_inner().job.unwrap();
    assert_eq!((job.state(), job.end_time), (JobState::Running, None));
    assert_eq!(jobs.get(&id).await.state(), JobState::Running);
}
