//! Quotas of tenants: a job over its quota is refused with a retry delay, and a retry after the delay is accepted.

// tidy: real time, because the pushback is a promise about the clock of real callers.

use std::time::Duration;

use tokio::time::sleep;
use tonic::Code;
use waterwheel::proto::{Job, SubmitRequest};

use crate::{
    refusal::Way,
    service::{Caller, Service, job},
};

const QUOTAS: &str = r#"
    drain = { notice = "0s", finish = "1s", kill = "0s" }
    pool.one.workers = 8
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sleep = { pool = "one", builtin = "sleep" }
    [quota]
    rate = 1
    burst = 4
    [quota.tenant.narrow]
    in_flight = 2
    [quota.tenant.wide]
    rate = 1000
    burst = 1000
"#;

fn of(tenant: &str, job: Job) -> Job {
    Job { tenant: tenant.into(), ..job }
}

async fn completes(caller: &Caller, job: Job) -> bool {
    caller.0.clone().submit(SubmitRequest { job: Some(job) }).await.is_ok()
}

/// Each RPC refuses a tenant after its burst, with a retry delay. A retry after the delay is accepted.
///
/// Other tenants are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_over_its_rate_is_refused_with_a_retry_delay() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    for (at, way) in Way::ALL.into_iter().enumerate() {
        let tenant = format!("tenant-{at}");
        for _ in 0..4 {
            assert!(completes(&caller, of(&tenant, job("echo", "x"))).await, "{way:?}");
        }
        let refusal = way.fail(&caller.0, Some(of(&tenant, job("echo", "x"))), &[("x-request-id", "it")]).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"));
        assert_eq!(refusal.facts()["execution"], "NOT_STARTED");
        assert_eq!(refusal.request_id(), Some("it"));
        let delay = refusal.details().retry_info().unwrap().retry_delay.unwrap();
        assert!(delay > Duration::ZERO && delay <= Duration::from_secs(1), "{delay:?}");
        if !refusal.inside {
            assert_eq!(refusal.pushback(), i64::try_from(delay.as_millis()).ok());
        }
        assert!(completes(&caller, of("another", job("echo", "x"))).await, "{way:?}");
        // The delay counts from the refusal.
        sleep(delay + Duration::from_millis(1)).await;
        assert!(completes(&caller, of(&tenant, job("echo", "x"))).await, "{way:?} after {delay:?}");
    }
    for _ in 0..20 {
        assert!(completes(&caller, of("wide", job("echo", "x"))).await, "its own quota is larger");
    }
}

/// The quota counts queued and running jobs of all calls. The next job is accepted when one of them ends.
///
/// The time of that end is unknown, so the refusal suggests no retry delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_over_its_concurrent_jobs_is_refused_until_one_ends() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    let held = [0, 1].map(|_| caller.leave(of("narrow", job("sleep", "60000"))));
    caller.until(|pool| pool.in_flight == 2).await;
    for way in Way::ALL {
        let refusal = way.fail(&caller.0, Some(of("narrow", job("echo", "x"))), &[]).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"));
        if !refusal.inside {
            assert_eq!(refusal.pushback(), Some(-1), "{way:?}");
        }
    }
    held.iter().for_each(tokio::task::JoinHandle::abort);
    caller.until(|pool| pool.in_flight == 0).await;
    assert!(completes(&caller, of("narrow", job("echo", "x"))).await);
    for _ in 0..3 {
        assert!(completes(&caller, of("narrow", job("echo", "x"))).await, "a job that ends gives its capacity back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_job_takes_nothing_from_its_quota() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    for way in Way::ALL {
        for _ in 0..10 {
            let invalid = Job { content_type: "x".repeat(200), ..of("valid", job("echo", "x")) };
            for job in [of(&"t".repeat(1_000), job("echo", "x")), invalid] {
                let refusal = way.fail(&caller.0, Some(job), &[]).await;
                assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::InvalidArgument, "INVALID_FIELD"));
            }
        }
    }
    for _ in 0..4 {
        assert!(completes(&caller, of("valid", job("echo", "x"))).await, "the burst is untouched");
    }
}
