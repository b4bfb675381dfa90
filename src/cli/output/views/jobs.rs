//! The answer of `ListJobs` as JSON.

use serde::Serialize;

use super::{Seconds, seconds};
use crate::proto::{ListJobsResponse, ListedJob, TenantRate};

#[derive(Serialize)]
pub(crate) struct ListJobsView<'a> {
    jobs: Vec<ListedJobView<'a>>,
    all: u64,
    order: &'static str,
    tenants: Vec<TenantRateView<'a>>,
}

impl<'a> From<&'a ListJobsResponse> for ListJobsView<'a> {
    fn from(answer: &'a ListJobsResponse) -> Self {
        Self {
            jobs: answer.jobs.iter().map(Into::into).collect(),
            all: answer.all,
            order: answer.order().as_str_name(),
            tenants: answer.tenants.iter().map(Into::into).collect(),
        }
    }
}

#[derive(Serialize)]
struct ListedJobView<'a> {
    job_id: &'a str,
    request_id: &'a str,
    pool: &'a str,
    kind: &'a str,
    tenant: &'a str,
    stage: &'static str,
    age: Seconds,
    run: Seconds,
    outcome: &'a str,
}

impl<'a> From<&'a ListedJob> for ListedJobView<'a> {
    fn from(job: &'a ListedJob) -> Self {
        let ListedJob { job_id, request_id, pool, kind, tenant, stage: _, age, run, outcome } = job;
        let (age, run) = (seconds(age.as_ref()), seconds(run.as_ref()));
        Self { job_id, request_id, pool, kind, tenant, stage: job.stage().as_str_name(), age, run, outcome }
    }
}

#[derive(Serialize)]
struct TenantRateView<'a> {
    tenant: &'a str,
    asks: f64,
    refusals: f64,
}

impl<'a> From<&'a TenantRate> for TenantRateView<'a> {
    fn from(rate: &'a TenantRate) -> Self {
        let TenantRate { tenant, asks, refusals } = rate;
        Self { tenant, asks: *asks, refusals: *refusals }
    }
}
