//! What enters by `JobService` is bounded: texts, times, policies and messages. What is accepted reads back as it was
//! sent.

use std::time::{Duration, SystemTime};

use prost::Message as _;
use prost_types::Timestamp;
use tonic::{Code, Status};
use waterwheel::proto::{
    CancelJobsRequest, CancelJobsResponse, CreateJobRequest, CreateJobsRequest, Criticality, DetachedJobFilter,
    GetJobRequest, Job, JobOptions, JobState, PurgeJobsRequest, RetryPolicy, job_options::Start,
};

use super::{CONFIG, Jobs, delayed, millis, outcomes, serve, with, work};
use crate::{refusal::Refusal, service::job};

/// The field of a refusal for an invalid field.
fn field(refused: &Refusal) -> String {
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    refused.details().bad_request().unwrap().field_violations[0].field.clone()
}

async fn purge(jobs: &Jobs, filter: DetachedJobFilter) -> Result<u64, Status> {
    let answer =
        jobs.0.clone().purge_jobs(PurgeJobsRequest { filter: Some(filter), ..PurgeJobsRequest::default() }).await;
    answer.map(|answer| answer.into_inner().removed)
}

#[tokio::test]
async fn each_text_of_a_filter_has_the_bounds_of_its_field() {
    let (_process, jobs) = serve(CONFIG).await;
    let filter = DetachedJobFilter::default;
    let label = |key: &str, value: &str| DetachedJobFilter {
        label_key: key.to_owned(),
        label_value: value.to_owned(),
        ..DetachedJobFilter::default()
    };
    for (filter, name) in [
        (DetachedJobFilter { kind: "k".repeat(65), ..filter() }, "filter.kind"),
        (DetachedJobFilter { kind: "a\0b".into(), ..filter() }, "filter.kind"),
        (DetachedJobFilter { tenant: Some("t".repeat(129)), ..filter() }, "filter.tenant"),
        (DetachedJobFilter { tenant: Some("a\nb".into()), ..filter() }, "filter.tenant"),
        (label(&"k".repeat(65), "x"), "filter.label_key"),
        (label("a\0b", "x"), "filter.label_key"),
        // SQLite reads a key as a path: these would be broken ones, or match the label `k`.
        (label("k\"", "x"), "filter.label_key"),
        (label("k\\", "x"), "filter.label_key"),
        (label("$.\"k\"", "x"), "filter.label_key"),
        (label("[k]", "x"), "filter.label_key"),
        (label("k", &"v".repeat(257)), "filter.label_value"),
        (label("k", "a\0b"), "filter.label_value"),
        (DetachedJobFilter { request_id: "a b".into(), ..filter() }, "filter.request_id"),
        (DetachedJobFilter { request_id: "r".repeat(129), ..filter() }, "filter.request_id"),
        (DetachedJobFilter { created_from: Some(year_10_000()), ..filter() }, "filter.created_from"),
        (DetachedJobFilter { ended_from: Some(year_10_000()), ..filter() }, "filter.ended_from"),
        (DetachedJobFilter { ended_before: Some(year_10_000()), ..filter() }, "filter.ended_before"),
        (DetachedJobFilter { outcome: Some("BROKEN".into()), ..filter() }, "filter.outcome"),
        (DetachedJobFilter { message: Some("m".repeat(4097)), ..filter() }, "filter.message"),
        (filter(), "filter"),
    ] {
        let refused = purge(&jobs, filter.clone()).await.map_err(|status| Refusal::of_call(status, true));
        assert_eq!(field(&refused.unwrap_err()), name, "{filter:?}");
    }
    let longest = DetachedJobFilter {
        kind: "k".repeat(64),
        tenant: Some("t".repeat(128)),
        ..label(&"k".repeat(64), &"v".repeat(256))
    };
    assert_eq!(purge(&jobs, longest).await.unwrap(), 0);
}

#[tokio::test]
async fn a_message_without_a_job_is_small_however_it_is_packed() {
    let (_process, jobs) = serve(CONFIG).await;
    for compressed in [false, true] {
        let filter = DetachedJobFilter { label_key: "k".repeat(4 << 20), ..DetachedJobFilter::default() };
        let mut client = jobs.0.clone();
        if compressed {
            client = client.send_compressed(tonic::codec::CompressionEncoding::Gzip);
        }
        let refused = client
            .purge_jobs(PurgeJobsRequest { filter: Some(filter), ..PurgeJobsRequest::default() })
            .await
            .unwrap_err();
        let refused = Refusal::of_call(refused, true);
        assert_eq!((refused.code(), refused.reason().as_str()), (Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"));
    }
    for id in ["a\0b".to_owned(), "x".repeat(4000), "a b".to_owned(), String::new()] {
        let request = GetJobRequest { job_id: id.clone(), with_payload: false };
        let refused = jobs.0.clone().get_job(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{id:?}");
        let refused = jobs.cancel(&id).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{id:?}");
    }
}

fn year_10_000() -> Timestamp {
    Timestamp { seconds: 253_402_300_800, nanos: 0 }
}

#[tokio::test]
async fn far_times_and_endless_retries_are_refused() {
    let (_process, jobs) = serve(CONFIG).await;
    let with_options = |options| with(options, work("echo", ""));
    let options = JobOptions::default;
    let start = |start| with_options(JobOptions { start: Some(start), ..options() });
    let retry = |retry| with_options(JobOptions { retry: Some(retry), ..options() });
    let policy = RetryPolicy::default;
    for (request, name) in [
        (start(Start::Delay("315576000000s".parse().unwrap())), "options.delay"),
        (start(Start::StartTime(year_10_000())), "options.start_time"),
        (with_options(JobOptions { expire_time: Some(year_10_000()), ..options() }), "options.expire_time"),
        (retry(RetryPolicy { max_attempts: 101, ..policy() }), "options.retry.max_attempts"),
        (retry(RetryPolicy { initial: Some("601s".parse().unwrap()), ..policy() }), "options.retry.initial"),
        (retry(RetryPolicy { max: Some("315576000000s".parse().unwrap()), ..policy() }), "options.retry.max"),
    ] {
        assert_eq!(field(&jobs.create(request).await.unwrap_err()), name);
    }
    let bounded =
        RetryPolicy { max_attempts: 100, initial: Some("600s".parse().unwrap()), max: Some("600s".parse().unwrap()) };
    jobs.created(with(JobOptions { retry: Some(bounded), ..options() }, delayed("600s", work("echo", "")))).await;
}

#[tokio::test]
async fn a_job_reads_back_as_it_was_sent() {
    let (_process, jobs) = serve(CONFIG).await;
    let sent = Job {
        content_type: "text/plain".into(),
        run_timeout: Some("7s".parse().unwrap()),
        criticality: Criticality::Critical.into(),
        tenant: "tenant".into(),
        ordering_key: "key".into(),
        limit_key: "limit".into(),
        labels: [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())].into(),
        ..job("echo", "payload")
    };
    let expire_time = Timestamp::from(SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000));
    let retry =
        RetryPolicy { max_attempts: 3, initial: Some("2s".parse().unwrap()), max: Some("30s".parse().unwrap()) };
    let options = JobOptions {
        start: Some(Start::Delay("600s".parse().unwrap())),
        expire_time: Some(expire_time),
        retry: Some(retry),
        retain_for: Some("7200s".parse().unwrap()),
        group: String::new(),
    };
    let request = CreateJobRequest { job: Some(sent.clone()), job_id: "mine".into(), options: Some(options) };
    let mut call = tonic::Request::new(request);
    call.metadata_mut().insert("x-request-id", "request-1".parse().unwrap());
    jobs.0.clone().create_job(call).await.unwrap();
    let read = jobs.get("mine").await;
    let (created, due) = (read.create_time.unwrap(), read.due_time.unwrap());
    assert_eq!((due.seconds, due.nanos), (created.seconds + 600, created.nanos));
    let expected = waterwheel::proto::DetachedJob {
        job_id: "mine".into(),
        job: Some(sent),
        state: JobState::Scheduled.into(),
        request_id: "request-1".into(),
        create_time: Some(created),
        due_time: Some(due),
        expire_time: Some(expire_time),
        retry: Some(retry),
        payload_bytes: 7,
        ..Default::default()
    };
    assert_eq!(read, expected);
    jobs.cancel("mine").await.unwrap();
    let ended = jobs.get("mine").await;
    assert_eq!(ended.purge_time.unwrap().seconds, ended.end_time.unwrap().seconds + 7200);
}

#[tokio::test]
async fn a_dead_letter_is_kept_as_long_as_its_caller_asks() {
    let (_process, jobs) = serve(CONFIG).await;
    let options = JobOptions { retain_for: Some("7200s".parse().unwrap()), ..JobOptions::default() };
    let dead = jobs.ended(&jobs.created(with(options, work("refuses", ""))).await).await;
    assert_eq!((dead.state(), outcomes(&dead)), (JobState::Failed, vec!["HANDLER_FAILED"]));
    assert_eq!(dead.purge_time.unwrap().seconds, dead.end_time.unwrap().seconds + 7200);
    let dead = jobs.ended(&jobs.created(work("refuses", "")).await).await;
    assert_eq!(dead.purge_time.unwrap().seconds, dead.end_time.unwrap().seconds + 7 * 86_400);
    assert!(millis(&dead).0 > 0);
}

#[tokio::test]
async fn a_page_of_large_jobs_fits_into_the_message_that_clients_accept_by_default() {
    let (_process, jobs) = serve(CONFIG).await;
    let labels = (0..16).map(|number| (format!("k{number}"), "v".repeat(256))).collect();
    let job = Some(Job { labels, ..job("sleep", "1") });
    let options = delayed("600s", work("sleep", "")).options;
    let sent = vec![CreateJobsRequest { job, options, ..CreateJobsRequest::default() }; 1000];
    let mut answers = jobs.0.clone().create_jobs(tokio_stream::iter(sent)).await.unwrap().into_inner();
    while answers.message().await.unwrap().is_some() {}
    let (filter, mut token, mut pages) = (DetachedJobFilter::default(), String::new(), Vec::new());
    while pages.is_empty() || !token.is_empty() {
        let page = jobs.page(1000, &filter, token).await;
        assert!(page.encoded_len() < 4 << 20, "{} bytes", page.encoded_len());
        pages.push(page.jobs.len());
        token = page.next_page_token;
    }
    assert_eq!(pages.iter().sum::<usize>(), 1000);
    assert!(pages.len() > 1 && !pages.contains(&0), "{pages:?}");
}

async fn cancel(jobs: &Jobs, request: CancelJobsRequest) -> CancelJobsResponse {
    jobs.0.clone().cancel_jobs(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn the_jobs_that_match_a_filter_are_cancelled_page_by_page() {
    let (_process, jobs) = serve(CONFIG).await;
    let running = [jobs.created(work("sleep", "600000")).await, jobs.created(work("sleep", "600000")).await];
    for id in &running {
        while jobs.get(id).await.state() != JobState::Running {}
    }
    let mut sent = Vec::new();
    for number in 0..1200 {
        let labels = [("half".to_owned(), (number % 2).to_string())].into();
        let waiting =
            CreateJobRequest { job: Some(Job { labels, ..job("sleep", "1") }), ..CreateJobRequest::default() };
        sent.push(CreateJobsRequest {
            job: waiting.job,
            options: delayed("600s", work("sleep", "")).options,
            ..Default::default()
        });
    }
    let mut call = tonic::Request::new(tokio_stream::iter(sent));
    call.metadata_mut().insert("x-request-id", "request-1".parse().unwrap());
    let mut answers = jobs.0.clone().create_jobs(call).await.unwrap().into_inner();
    while answers.message().await.unwrap().is_some() {}

    let filter = |change: &dyn Fn(&mut DetachedJobFilter)| {
        let mut filter = DetachedJobFilter { kind: "sleep".into(), ..DetachedJobFilter::default() };
        change(&mut filter);
        CancelJobsRequest { filter: Some(filter), ..CancelJobsRequest::default() }
    };
    let all = || filter(&|_| {});
    let first = cancel(&jobs, CancelJobsRequest { dry_run: true, ..all() }).await;
    assert_eq!((first.cancelled, first.asked_to_stop), (1000, 0), "{first:?}");
    let next = CancelJobsRequest { dry_run: true, page_token: first.next_page_token, ..all() };
    let next = cancel(&jobs, next).await;
    assert_eq!((next.cancelled, next.asked_to_stop, next.next_page_token.as_str()), (200, 2, ""));

    let half = filter(&|filter| (filter.label_key, filter.label_value) = ("half".into(), "0".into()));
    let half = cancel(&jobs, half).await;
    assert_eq!((half.cancelled, half.asked_to_stop), (600, 0));
    let ended = filter(&|filter| filter.states = vec![JobState::Cancelled.into()]);
    assert_eq!(cancel(&jobs, ended).await, CancelJobsResponse::default());
    let of_request = cancel(&jobs, filter(&|filter| filter.request_id = "request-1".into())).await;
    assert_eq!((of_request.cancelled, of_request.asked_to_stop), (600, 0));
    assert_eq!(jobs.get(&running[0]).await.state(), JobState::Running);
    let rest = cancel(&jobs, all()).await;
    assert_eq!((rest.cancelled, rest.asked_to_stop), (0, 2));
    for id in running {
        assert_eq!(jobs.ended(&id).await.state(), JobState::Cancelled);
    }
}
