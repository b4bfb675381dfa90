//! A quota bounds the detached jobs that a tenant has stored, on every way in and in every store.

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_stream::iter;
use tonic::Code;
use waterwheel::proto::{
    CreateJobRequest, CreateJobsRequest, DetachedJobFilter, Job, JobState, RetryJobRequest,
    create_jobs_response::Outcome,
};

use super::{CONFIG, delayed, serve, work};
use crate::{refusal::Refusal, service::job, support::Cluster};

const QUOTAS: &str = r#"
    [quota]
    stored_jobs = 2
    [quota.tenant.big]
    stored_bytes = "10B"
"#;

fn of(tenant: &str, payload: &'static str) -> CreateJobRequest {
    let job = Job { tenant: tenant.to_owned(), ..job("echo", payload) };
    delayed("600s", CreateJobRequest { job: Some(job), ..CreateJobRequest::default() })
}

fn is_over(refused: &Refusal, facts: &[(&str, &str)]) {
    assert_eq!((refused.code(), refused.reason().as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"));
    assert!(refused.pushback() > Some(0), "{refused:?}");
    for (name, value) in facts {
        assert_eq!(refused.facts().get(*name).map(String::as_str), Some(*value), "{name} of {refused:?}");
    }
}

async fn is_held(config: &str) {
    let (process, jobs) = serve(&format!("{config}{QUOTAS}")).await;
    let held = [jobs.created(of("a", "x")).await, jobs.created(of("a", "x")).await];
    let over = [("stored_jobs", "2"), ("most_jobs", "2"), ("stored_bytes", "2")];
    is_over(&jobs.create(of("a", "x")).await.unwrap_err(), &over);
    let CreateJobRequest { job, options, .. } = of("a", "x");
    let message = CreateJobsRequest { job, options, ..CreateJobsRequest::default() };
    let answers = jobs.0.clone().create_jobs(iter([message])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(Outcome::Failure(failure)) = answer.outcome else { panic!("{answer:?}") };
    assert_eq!(failure.code, Code::ResourceExhausted as i32);
    assert!(failure.message.contains("quota of stored jobs"), "{failure:?}");

    // The job of a tenant that ends makes room. One that is retried takes it again.
    assert_eq!(jobs.cancel(&held[0]).await.unwrap(), JobState::Cancelled);
    jobs.created(of("a", "x")).await;
    let again =
        jobs.0.clone().retry_job(RetryJobRequest { job_id: held[0].clone(), reason: String::new() }).await.unwrap_err();
    is_over(&Refusal::of_call(again, true), &over[..2]);

    jobs.created(of("big", "1234567")).await;
    is_over(&jobs.create(of("big", "1234")).await.unwrap_err(), &[("stored_bytes", "7"), ("most_bytes", "10")]);
    jobs.ended(&jobs.created(CreateJobRequest { job: of("b", "").job, ..work("echo", "") }).await).await;

    process.configure(&format!("{config}{}", QUOTAS.replace("stored_jobs = 2", "stored_jobs = 3")));
    assert_eq!(process.run("reload").await.code, Some(0));
    jobs.created(of("a", "x")).await;
    is_over(&jobs.create(of("a", "x")).await.unwrap_err(), &[("most_jobs", "3")]);
}

#[tokio::test]
async fn a_tenant_stores_no_more_than_its_quota() {
    is_held(&CONFIG.replace("store.path = \"jobs.db\"", "store.memory = true")).await;
    is_held(CONFIG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_stores_no_more_than_its_quota_in_a_database() {
    let Some(cluster) = Cluster::start().await else { return };
    let url = format!("store.url = \"{}\"", cluster.url("postgres"));
    is_held(&CONFIG.replace("store.path = \"jobs.db\"", &url)).await;
}

/// The jobs of schedules have no tenant. Two wait, and further ticks are refused.
#[tokio::test]
async fn schedules_store_no_more_than_the_quota_of_jobs_without_a_tenant() {
    let schedule = r#"
        [schedule.often]
        cron = "* * * * * *"
        kind = "sleep"
        payload = "600000"
        overlap = "queue"
    "#;
    let (process, jobs) = serve(&format!("{CONFIG}{QUOTAS}{schedule}")).await;
    process.logged("the job of a schedule was not created").await;
    assert_eq!(jobs.list(DetachedJobFilter::default()).await.len(), 2);
    jobs.created(of("a", "x")).await;
}

/// A job runs again as often as a caller retries it, so a retry counts like a new job.
#[tokio::test]
async fn retries_count_for_the_rate_of_their_tenant() {
    const RETRIES: usize = 100;
    let quota = "[quota.tenant.a]\nrate = 1\nburst = 2\n";
    let (_process, jobs) = serve(&format!("{CONFIG}{quota}")).await;
    let begin = Instant::now();
    for (tenant, is_bound) in [("a", true), ("b", false)] {
        let job = Some(Job { tenant: tenant.to_owned(), ..job("echo", "") });
        let job_id = jobs.created(CreateJobRequest { job, ..CreateJobRequest::default() }).await;
        jobs.ended(&job_id).await;
        let retries = (0..RETRIES).map(async |_| {
            jobs.0.clone().retry_job(RetryJobRequest { job_id: job_id.clone(), reason: String::new() }).await
        });
        let refused = join_all(retries).await.into_iter().filter_map(Result::err);
        let refused = refused.map(|status| Refusal::of_call(status, true));
        let over: Vec<_> = refused.filter(|refused| refused.reason() == "QUOTA_EXCEEDED").collect();
        let most = if is_bound { 2 + begin.elapsed().as_secs() as usize } else { RETRIES };
        assert!(RETRIES - over.len() <= most, "{tenant}: {} of {RETRIES} are over the quota", over.len());
        assert_eq!(over.is_empty(), !is_bound, "{tenant}");
        assert!(
            over.iter().all(|over| over.code() == Code::ResourceExhausted && over.pushback() > Some(0)),
            "{over:?}"
        );
    }
}
