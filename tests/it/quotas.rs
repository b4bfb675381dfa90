//! Quotas of tenants: what is over one is refused with the time of the next room, and who keeps to it gets in.

// tidy: real time, because the pushback is a promise about the clock of real callers.

use std::time::Duration;

use tokio::time::{Instant, sleep};
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
    rate = 4
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

/// After its burst a tenant is told when there is room, on each way in; a caller that waits so long gets in, while
/// another tenant notices nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_over_its_rate_is_told_when_to_come_back() {
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
        let told = refusal.details().retry_info().unwrap().retry_delay.unwrap();
        assert!(told > Duration::ZERO && told <= Duration::from_millis(250), "{told:?}");
        if !refusal.inside {
            assert_eq!(refusal.pushback(), i64::try_from(told.as_millis()).ok());
        }
        assert!(completes(&caller, of("someone-else", job("echo", "x"))).await, "{way:?}");
        // It counts from the refusal, which was before this moment.
        sleep(told + Duration::from_millis(1)).await;
        assert!(completes(&caller, of(&tenant, job("echo", "x"))).await, "{way:?} after {told:?}");
    }
    for _ in 0..20 {
        assert!(completes(&caller, of("wide", job("echo", "x"))).await, "bounds of its own");
    }
}

/// Jobs that are queued or run count, on whatever call; the next gets in when one of them ends. Nobody knows when, so
/// that a retry on the clock is not asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_so_many_jobs_at_once_and_no_more() {
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
        assert!(completes(&caller, of("narrow", job("echo", "x"))).await, "an end gives its room back");
    }
}

/// Neither the room of a tenant nor its name is taken by a job with a field that no job may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsound_job_leaves_nothing_in_the_table() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    for way in Way::ALL {
        for _ in 0..10 {
            let unsound = Job { content_type: "x".repeat(200), ..of("sound", job("echo", "x")) };
            for job in [of(&"t".repeat(1_000), job("echo", "x")), unsound] {
                let refusal = way.fail(&caller.0, Some(job), &[]).await;
                assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::InvalidArgument, "INVALID_FIELD"));
            }
        }
    }
    for _ in 0..4 {
        assert!(completes(&caller, of("sound", job("echo", "x"))).await, "all of its burst is left");
    }
}

/// Callers that obey what they are told, all at once, are all served at the rate, each after few tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_obey_are_served_at_the_rate() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    let begin = Instant::now();
    let calls = (0..12).map(|_| {
        let mut client = caller.0.clone();
        tokio::spawn(async move {
            for tries in 1.. {
                let job = of("crowd", job("echo", "x"));
                let Err(status) = client.submit(SubmitRequest { job: Some(job) }).await else { return tries };
                let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap();
                sleep(Duration::from_millis(pushback.parse::<u64>().unwrap() + 2)).await;
            }
            unreachable!()
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut tries = Vec::new();
    for call in calls {
        tries.push(call.await.unwrap());
    }
    // Four of the burst, then eight at four a second.
    assert!(begin.elapsed() >= Duration::from_millis(1_900), "{:?}", begin.elapsed());
    assert!(tries.iter().all(|tries| *tries <= 4), "{tries:?}");
}
