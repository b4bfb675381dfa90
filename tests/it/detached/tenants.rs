//! Where callers are authenticated, each sees the jobs of its own tenant.

use tonic::Code;
use waterwheel::proto::{
    CreateJobRequest, DetachedJobFilter, GetJobRequest, Job, JobServiceListJobsRequest, PurgeJobsRequest,
    WaitJobRequest, job_service_client::JobServiceClient,
};

use super::work;
use crate::{
    service::{Service, job},
    support::{Authority, Files, Name, TlsClient},
};

const KINDS: &str = r#"
    store.memory = true
    drain.notice = "0s"
    pool.one.workers = 2
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sha256 = { pool = "one", builtin = "sha256" }
"#;

const RULES: &str = r#"
    [auth.rule.a]
    principals = ["spiffe://prod/a"]
    rpcs = ["CreateJob", "GetJob", "WaitJob", "JobService.ListJobs", "PurgeJobs"]
    [auth.rule.b]
    principals = ["spiffe://prod/b"]
    rpcs = ["CreateJob", "GetJob", "WaitJob", "JobService.ListJobs", "JobService.CancelJob"]
    kinds = ["echo"]
"#;

#[tokio::test]
async fn a_tenant_sees_its_own_jobs_only() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &ca.pem());
    let service = Service::start(&format!("{KINDS}{}{RULES}", files.tls_section(Some("required"))), Vec::new());
    let client = async |name: &str| {
        let leaf = ca.client(&Name::Spiffe(name));
        JobServiceClient::new(TlsClient::new(&ca, Some(&leaf)).channel(service.public.0).await.unwrap())
    };
    let (mut a, mut b) = (client("spiffe://prod/a").await, client("spiffe://prod/b").await);
    let id = a.create_job(work("echo", "secret")).await.unwrap().into_inner().job_id;
    let done = a.wait_job(WaitJobRequest { job_id: id.clone() }).await.unwrap().into_inner().job.unwrap();
    assert_eq!((done.job.unwrap().tenant.as_str(), &*done.output), ("spiffe://prod/a", &b"secret"[..]));

    let get = GetJobRequest { job_id: id.clone(), with_payload: false };
    assert_eq!(b.get_job(get).await.unwrap_err().code(), Code::NotFound);
    // Not even that there is such a job.
    let same = CreateJobRequest { job_id: id.clone(), ..work("echo", "secret") };
    assert_eq!(b.create_job(same).await.unwrap_err().code(), Code::AlreadyExists);
    let of_a = Job { tenant: "spiffe://prod/a".into(), ..job("echo", "") };
    let named = CreateJobRequest { job: Some(of_a), ..CreateJobRequest::default() };
    assert_eq!(b.create_job(named).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(b.create_job(work("sha256", "")).await.unwrap_err().code(), Code::PermissionDenied);

    let list = |filter: DetachedJobFilter| JobServiceListJobsRequest { filter: Some(filter), ..Default::default() };
    let of_kind = DetachedJobFilter { kind: "echo".into(), ..Default::default() };
    assert_eq!(b.list_jobs(list(of_kind.clone())).await.unwrap().into_inner().jobs.len(), 0);
    assert_eq!(b.list_jobs(list(DetachedJobFilter::default())).await.unwrap_err().code(), Code::PermissionDenied);
    let of_a = DetachedJobFilter { tenant: Some("spiffe://prod/a".into()), ..of_kind };
    assert_eq!(b.list_jobs(list(of_a)).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(a.list_jobs(list(DetachedJobFilter::default())).await.unwrap().into_inner().jobs.len(), 1);
    assert_eq!(b.purge_jobs(PurgeJobsRequest::default()).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(a.purge_jobs(PurgeJobsRequest::default()).await.unwrap().into_inner().removed, 1);
}
