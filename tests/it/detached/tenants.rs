//! An authenticated caller sees only the detached jobs of its own tenant.

use std::collections::BTreeSet;

use tonic::{Code, Status, transport::Channel};
use waterwheel::proto::{
    CloseGroupRequest, CreateGroupRequest, CreateJobRequest, DetachedJobFilter, GetGroupRequest, GetJobRequest,
    GroupJobsRequest, Job, JobOptions, JobServiceCancelJobRequest, JobServiceListJobsRequest, JobState,
    PurgeJobsRequest, RetryJobsRequest, WaitJobRequest, job_service_client::JobServiceClient,
};

use super::{delayed, with, work};
use crate::{
    service::{Service, job},
    support::{Files, Name, TlsClient},
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
    rpcs = ["CreateJob", "GetJob", "WaitJob", "JobService.ListJobs", "JobService.CancelJob", "PurgeJobs", "GroupJobs", "RetryJobs", "CreateGroup", "CloseGroup", "GetGroup"]
    [auth.rule.b]
    principals = ["spiffe://prod/b"]
    rpcs = ["CreateJob", "GetJob", "WaitJob", "JobService.ListJobs", "JobService.CancelJob", "CloseGroup", "GetGroup"]
    kinds = ["echo"]
    [auth.rule.groups-of-b]
    principals = ["spiffe://prod/b"]
    rpcs = ["CreateGroup"]
    kinds = ["sha256"]
"#;

/// A caller that has a job that ends, and a job that is due in ten minutes.
#[derive(Clone)]
struct Tenant {
    name: &'static str,
    client: JobServiceClient<Channel>,
    ends: String,
    due: String,
}

impl Tenant {
    async fn new(name: &'static str, channel: Channel) -> Self {
        let mut client = JobServiceClient::new(channel);
        let mut create = async |request| client.create_job(request).await.unwrap().into_inner().job_id;
        let ends = create(work("echo", name)).await;
        let due = create(delayed("600s", work("echo", name))).await;
        Self { name, client, ends, due }
    }

    async fn create(&mut self, request: CreateJobRequest) -> Code {
        self.client.create_job(request).await.unwrap_err().code()
    }

    /// The result of a call that waits for a job, the one that reads it, and the one that cancels it.
    async fn touch(&mut self, id: &str) -> [Result<JobState, Status>; 3] {
        let job_id = || id.to_owned();
        let waited = self.client.wait_job(WaitJobRequest { job_id: job_id() }).await;
        let read = self.client.get_job(GetJobRequest { job_id: job_id(), with_payload: false }).await;
        let cancelled =
            self.client.cancel_job(JobServiceCancelJobRequest { job_id: job_id(), reason: String::new() }).await;
        [
            waited.map(|answer| answer.into_inner().job.unwrap().state()),
            read.map(|answer| answer.into_inner().job.unwrap().state()),
            cancelled.map(|answer| answer.into_inner().state()),
        ]
    }

    /// The ids of the jobs that match the filter.
    async fn list(&mut self, filter: DetachedJobFilter) -> Result<BTreeSet<String>, Code> {
        let request = JobServiceListJobsRequest { filter: Some(filter), ..Default::default() };
        let answer = self.client.list_jobs(request).await.map_err(|status| status.code())?;
        Ok(answer.into_inner().jobs.into_iter().map(|job| job.job_id).collect())
    }

    fn own(&self) -> BTreeSet<String> {
        [self.ends.clone(), self.due.clone()].into()
    }
}

fn echoes() -> DetachedJobFilter {
    DetachedJobFilter { kind: "echo".into(), ..Default::default() }
}

async fn only_its_tenant_sees_a_group(a: &mut Tenant, b: &mut Tenant) {
    let group_id = || "parts".to_owned();
    let open = || CreateGroupRequest { job: Some(job("echo", "")), group_id: group_id(), ..Default::default() };
    assert_eq!(b.client.create_group(open()).await.unwrap_err().code(), Code::PermissionDenied);
    let opened = a.client.create_group(open()).await.unwrap().into_inner().job_id;
    let joins = JobOptions { group: group_id(), ..JobOptions::default() };
    assert_eq!(b.create(with(joins, work("echo", ""))).await, Code::FailedPrecondition);
    assert_eq!(b.list(DetachedJobFilter { group: group_id(), ..echoes() }).await, Err(Code::NotFound));
    let seen = b.client.get_group(GetGroupRequest { group_id: group_id() }).await;
    let closed = b.client.close_group(CloseGroupRequest { group_id: group_id() }).await;
    assert_eq!((seen.unwrap_err().code(), closed.unwrap_err().code()), (Code::NotFound, Code::NotFound));
    let cancel = JobServiceCancelJobRequest { job_id: opened.clone(), reason: String::new() };
    a.client.cancel_job(cancel).await.unwrap();
    let purge = DetachedJobFilter { label_key: "group".into(), label_value: group_id(), ..echoes() };
    let purge = PurgeJobsRequest { filter: Some(purge), ..PurgeJobsRequest::default() };
    assert_eq!(a.client.purge_jobs(purge).await.unwrap().into_inner().removed, 1);
}

#[tokio::test]
async fn a_caller_can_read_list_wait_for_cancel_and_purge_only_jobs_of_its_tenant() {
    let (files, ca) = Files::of_server();
    let service = Service::start(&format!("{KINDS}{}{RULES}", files.tls_section(Some("required"))), Vec::new());
    let tenant = async |name| {
        let leaf = ca.client(&Name::Spiffe(name));
        Tenant::new(name, TlsClient::new(&ca, Some(&leaf)).channel(service.public.0).await.unwrap()).await
    };
    let (mut a, mut b) = (tenant("spiffe://prod/a").await, tenant("spiffe://prod/b").await);
    for (mut own, other) in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
        let wait = WaitJobRequest { job_id: own.ends.clone() };
        let done = own.client.wait_job(wait).await.unwrap().into_inner().job.unwrap();
        assert_eq!((done.job.unwrap().tenant.as_str(), &*done.output), (own.name, own.name.as_bytes()));
        assert_eq!(own.list(echoes()).await, Ok(own.own()));
        for id in other.own() {
            let codes = own.touch(&id).await.map(|result| result.unwrap_err().code());
            assert_eq!(codes, [Code::NotFound; 3], "{} and the job {id} of {}", own.name, other.name);
        }
        // An id of another tenant is refused, even for an equal job.
        let same = CreateJobRequest { job_id: other.ends.clone(), ..work("echo", other.name) };
        assert_eq!(own.create(same).await, Code::AlreadyExists);
        let of_other = Job { tenant: other.name.into(), ..job("echo", "") };
        let named = CreateJobRequest { job: Some(of_other), ..CreateJobRequest::default() };
        assert_eq!(own.create(named).await, Code::PermissionDenied);
        let of_other = DetachedJobFilter { tenant: Some(other.name.into()), ..echoes() };
        assert_eq!(own.list(of_other).await, Err(Code::PermissionDenied));
    }
    for tenant in [&mut a, &mut b] {
        let cancel = JobServiceCancelJobRequest { job_id: tenant.due.clone(), reason: String::new() };
        assert_eq!(tenant.client.cancel_job(cancel).await.unwrap().into_inner().state(), JobState::Cancelled);
        let [waited, read, again] = tenant.touch(&tenant.due.clone()).await;
        assert_eq!([waited.unwrap(), read.unwrap()], [JobState::Cancelled; 2]);
        assert_eq!(again.unwrap_err().code(), Code::FailedPrecondition);
    }

    only_its_tenant_sees_a_group(&mut a, &mut b).await;

    // The rule of b allows one kind, and no purge.
    assert_eq!(b.create(work("sha256", "")).await, Code::PermissionDenied);
    assert_eq!(b.list(DetachedJobFilter::default()).await, Err(Code::PermissionDenied));
    assert_eq!(a.list(DetachedJobFilter::default()).await, Ok(a.own()));
    let group = GroupJobsRequest::default;
    let found = a.client.group_jobs(group()).await.unwrap().into_inner().groups;
    let found: Vec<_> = found.iter().map(|group| (&*group.outcome, group.count, &*group.tenants[0])).collect();
    assert_eq!(found, [("", 1, a.name), ("COMPLETED", 1, a.name)]);
    assert_eq!(b.client.group_jobs(group()).await.unwrap_err().code(), Code::PermissionDenied);
    let retry = |name: &str| {
        let filter = DetachedJobFilter { tenant: Some(name.to_owned()), ..echoes() };
        RetryJobsRequest { filter: Some(filter), dry_run: true, ..RetryJobsRequest::default() }
    };
    assert_eq!(b.client.retry_jobs(retry(b.name)).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(a.client.retry_jobs(retry(b.name)).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(a.client.retry_jobs(retry(a.name)).await.unwrap().into_inner().retried, 1);
    let all = || DetachedJobFilter { all: true, ..DetachedJobFilter::default() };
    let purge = || PurgeJobsRequest { filter: Some(all()), ..PurgeJobsRequest::default() };
    assert_eq!(b.client.purge_jobs(purge()).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(a.client.purge_jobs(purge()).await.unwrap().into_inner().removed, 2);
    assert_eq!((a.list(echoes()).await, b.list(echoes()).await), (Ok(BTreeSet::new()), Ok(b.own())));
}
