//! `ListJobs`.

use std::time::Duration;

use tonic::{Response, Status};

use super::Admin;
use crate::{
    model::{JobStage, RequestId},
    pool::{EndedJob, JobFilter, JobNames, JobOrder, ListedJob, Listing, Stage, TenantRate},
    proto::{self, ListJobsRequest, ListJobsResponse},
    rpc::{
        convert::{duration, job_stage},
        stats::no_pool,
        status::invalid_field,
    },
};

/// Most jobs in an answer, also without a limit in the request.
const MAX_JOBS: u32 = 1000;
const USUAL: u32 = 100;
/// Most tenants in an answer.
const MAX_TENANTS: usize = 16;

/// Lists jobs that match a filter.
pub(super) fn list_jobs(admin: &Admin, request: ListJobsRequest) -> Result<Response<ListJobsResponse>, Status> {
    if !request.pool.is_empty() && admin.pools.get(&request.pool).is_none() {
        return Err(no_pool(&admin.pools, &request.pool));
    }
    let most = match request.limit {
        0 => USUAL,
        limit @ 1..=MAX_JOBS => limit,
        _ => return Err(invalid_field("limit", &format!("send up to {MAX_JOBS}"))),
    };
    let tenants = tenants(admin, &request.pool);
    let filter = filter(request)?;
    let Listing { jobs, all } = admin.pools.list(&filter, most as usize);
    let order = match filter.order {
        JobOrder::Newest => proto::JobOrder::Newest,
        JobOrder::Oldest => proto::JobOrder::Oldest,
    };
    let jobs = jobs.into_iter().map(listed).collect();
    Ok(Response::new(ListJobsResponse { jobs, all: all as u64, order: order.into(), tenants }))
}

fn filter(request: ListJobsRequest) -> Result<JobFilter, Status> {
    let order = match request.order() {
        proto::JobOrder::Unspecified | proto::JobOrder::Newest => JobOrder::Newest,
        proto::JobOrder::Oldest => JobOrder::Oldest,
    };
    let stages: Result<Vec<_>, _> = request.stages().map(stage).collect();
    let ListJobsRequest { stages: _, pool, kind, tenant, request_id, older, order: _, limit: _ } = request;
    let older = older.map(Duration::try_from).transpose();
    let named = |name: String| Some(name).filter(|name| !name.is_empty());
    let request_id = named(request_id).map(|id| id.parse::<RequestId>()).transpose();
    Ok(JobFilter {
        stages: stages?,
        pool: named(pool),
        kind: named(kind),
        tenant,
        request_id: request_id.map_err(|error| invalid_field("request_id", &error.to_string()))?,
        older: older.map_err(|_| invalid_field("older", "negative; send the smallest age"))?.unwrap_or_default(),
        order,
    })
}

fn stage(stage: proto::JobStage) -> Result<JobStage, Status> {
    match stage {
        proto::JobStage::Waiting => Ok(JobStage::Waiting),
        proto::JobStage::Queued => Ok(JobStage::Queued),
        proto::JobStage::Running => Ok(JobStage::Running),
        proto::JobStage::Completed => Ok(JobStage::Completed),
        proto::JobStage::Failed => Ok(JobStage::Failed),
        proto::JobStage::Unspecified => Err(invalid_field("stages", "not a stage; send values of the enum")),
    }
}

fn tenants(admin: &Admin, pool: &str) -> Vec<proto::TenantRate> {
    let pools = admin.pools.all().iter().filter(|entry| pool.is_empty() || &**entry.name() == pool);
    let mut tenants: Vec<proto::TenantRate> = Vec::new();
    for TenantRate { tenant, asks, refusals } in pools.flat_map(|pool| pool.tenant_rates()) {
        match tenants.iter_mut().find(|known| *known.tenant == *tenant) {
            Some(known) => (known.asks, known.refusals) = (known.asks + asks, known.refusals + refusals),
            None => tenants.push(proto::TenantRate { tenant: tenant.into(), asks, refusals }),
        }
    }
    tenants.sort_by(|a, b| b.asks.total_cmp(&a.asks));
    tenants.truncate(MAX_TENANTS);
    tenants
}

fn listed(listed: ListedJob) -> proto::ListedJob {
    let ListedJob { job, pool, kind, names, stage, age, .. } = listed;
    let JobNames { request_id, tenant, .. } = names;
    let (run, outcome) = match &stage {
        Stage::Waiting | Stage::Queued => (None, ""),
        Stage::Running { run, .. } => (Some(*run), ""),
        Stage::Ended(EndedJob { outcome, started, waterfall, .. }) => {
            (started.then_some(waterfall.run), outcome.reason().name())
        }
    };
    proto::ListedJob {
        job_id: job.into(),
        request_id: request_id.map(|id| id.as_str().to_owned()).unwrap_or_default(),
        pool: pool.to_string(),
        kind: kind.to_string(),
        tenant: tenant.as_deref().unwrap_or_default().to_owned(),
        stage: job_stage(stage.name()).into(),
        age: Some(duration(age)),
        run: run.map(duration),
        outcome: outcome.to_owned(),
    }
}
