//! A full pool keeps its bounds, and follows the `when_full` policy of each job.

use std::time::Duration;

use tokio::time::Instant;
use waterwheel::{
    Job, JobError, Pool, Rejection, WhenFull,
    model::RejectionReason,
    pool::{Settings, Ticket},
};

use crate::{
    process::Process,
    service::{Caller, job, queued, waiting},
    support::{Gate, assert_balanced, assert_idle, gated, pool, until},
};

/// A pool whose only worker is busy.
struct Full {
    pool: Pool,
    gate: Gate,
    jobs: tokio::task::JoinSet<Result<String, JobError>>,
}

impl Full {
    fn new(settings: Settings) -> Self {
        let gate = Gate::new();
        let pool = pool(1)
            .settings(Settings { workers: std::num::NonZeroUsize::MIN, ..settings })
            .kind(gated("gated", &gate))
            .build();
        let mut full = Self { pool, gate, jobs: tokio::task::JoinSet::new() };
        full.put("running").expect("the worker is free");
        full
    }

    fn job(name: &str) -> Job {
        Job::new("gated", name.to_owned())
    }

    fn put(&mut self, name: &str) -> Result<(), Rejection> {
        self.give(Self::job(name))
    }

    fn give(&mut self, job: Job) -> Result<(), Rejection> {
        let ticket: Ticket = self.pool.try_submit(job)?;
        self.jobs.spawn(async move {
            ticket.await.map(|done| String::from_utf8(done.output.bytes.to_vec()).expect("text"))
        });
        assert_balanced(&self.pool.stats());
        Ok(())
    }

    /// Opens the gate, and returns the names of the jobs in the order in which they complete.
    async fn rest(mut self) -> Vec<String> {
        self.gate.open();
        let mut names = Vec::new();
        while let Some(job) = self.jobs.join_next().await {
            names.push(job.expect("no panic").expect("it completes"));
        }
        assert_idle(&self.pool, 1);
        names
    }
}

fn reason(refused: Result<(), Rejection>) -> RejectionReason {
    refused.expect_err("the job is refused").reason
}

fn small(queue_jobs: usize, queue_waiting: usize) -> Settings {
    Settings { queue_jobs, queue_waiting, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn waiting_callers_enter_the_queue_in_order_and_their_number_is_bounded() {
    let mut full = Full::new(small(1, 2));
    full.put("queued").expect("accepted");
    for name in ["first", "second"] {
        full.give(Full::job(name).when_full(WhenFull::Wait)).expect("the job waits");
    }
    let refused = full.give(Full::job("third").when_full(WhenFull::Wait));
    assert_eq!(reason(refused), RejectionReason::QueueFull);
    let stats = full.pool.stats();
    assert_eq!((stats.waiting, stats.counts.accepted), (2, 2), "jobs of waiting callers are not accepted yet");

    full.gate.let_pass(1);
    until(|| full.pool.stats().waiting == 1).await;
    assert_eq!(reason(full.put("late")), RejectionReason::QueueFull, "a new job does not overtake waiting callers");
    assert_eq!(full.rest().await, ["running", "queued", "first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_is_refused_shortly_before_its_deadline() {
    let mut full = Full::new(small(0, 8));
    let start = Instant::now();
    let job = Full::job("waits").when_full(WhenFull::Wait).timeout(Duration::from_secs(2));
    let error = full.pool.submit(job).await.expect_err("the worker stays busy");
    let JobError::Rejected(rejection) = error else { panic!("{error}") };
    assert_eq!(rejection.reason, RejectionReason::NoRoomInTime);
    assert_eq!(start.elapsed(), Duration::from_millis(1_970), "the deadline less the margin");
    let stats = full.pool.stats();
    assert_eq!((stats.waiting, stats.counts.accepted), (0, 1));
    full.give(Full::job("leaves").when_full(WhenFull::Wait)).expect("the job waits");
    full.jobs.shutdown().await;
    assert_eq!(full.pool.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn payload_bytes_are_bounded_whatever_the_number_of_jobs() {
    let mut full = Full::new(Settings { queue_bytes: 100, max_payload: 60, ..small(10, 10) });
    let sized = |size: usize| Job::new("gated", vec![b'x'; size]);
    let limit = full.give(sized(61));
    assert_eq!(reason(limit), RejectionReason::PayloadTooLarge { size: 61, limit: 60 });

    full.give(sized(60)).expect("60 bytes are queued; the payload of the running job does not count");
    assert_eq!(reason(full.give(sized(41))), RejectionReason::QueueFull);
    full.give(sized(40)).expect("100 bytes are queued");
    assert_eq!(full.pool.stats().queued_bytes, 100);
    for _ in 0..2 {
        full.give(sized(50).when_full(WhenFull::Wait)).expect("waiting callers have a bound of the same size");
    }
    assert_eq!(reason(full.give(sized(1).when_full(WhenFull::Wait))), RejectionReason::QueueFull);
    assert_eq!(full.pool.stats().queued_bytes, 100);
    assert_eq!(full.rest().await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_payload_limit_is_at_most_the_queue_bytes_of_the_pool() {
    let mut full = Full::new(Settings { queue_bytes: 10, ..small(1, 1) });
    let refused = full.give(Job::new("gated", vec![0; 11]));
    assert_eq!(reason(refused), RejectionReason::PayloadTooLarge { size: 11, limit: 10 });
    assert_eq!(full.rest().await, ["running"]);
}

#[tokio::test]
async fn jobs_of_unknown_kinds_and_invalid_jobs_are_counted_as_refused() {
    let pool = pool(1).kind(gated("gated", &Gate::new())).build();
    let refused = pool.try_submit(Job::new("gatde", "")).expect_err("no such kind");
    assert_eq!(refused.reason, RejectionReason::UnknownKind { suggestion: Some("gated".into()) });
    let refused = pool.try_submit(Job::new("gated", "").tenant("t".repeat(200))).expect_err("too long");
    assert!(matches!(refused.reason, RejectionReason::Invalid { violations } if violations[0].field == "job.tenant"));
    let counts = pool.stats().counts;
    assert_eq!((counts.rejected.iter().sum::<u64>(), counts.accepted), (2, 0));
}

/// Submits a job of `tenant` that runs for 100 ms, with this timeout of the call.
async fn submit(caller: Caller, tenant: &'static str, timeout: Duration) -> Result<(), tonic::Status> {
    let job = waterwheel::proto::Job { tenant: tenant.into(), ..job("sleep", "100") };
    let mut request = tonic::Request::new(waterwheel::proto::SubmitRequest { job: Some(job) });
    request.set_timeout(timeout);
    caller.0.clone().submit(request).await.map(drop)
}

#[tokio::test]
async fn a_tenant_is_served_although_hundreds_of_callers_of_another_tenant_wait() {
    const FLOOD: usize = 300;
    let config = r#"
        kind.sleep = { pool = "one", builtin = "sleep" }
        [pool.one]
        workers = 2
        queue = { jobs = 40 }
        when_full = "wait"
    "#;
    let process = Process::serve(config).await;
    let caller = Caller::of(process.public).await;
    submit(caller.clone(), "light", Duration::from_secs(20)).await.expect("the pool is idle");
    let busy = [(); 2].map(|()| caller.leave(job("sleep", "60000")));
    caller.until(|pool| pool.in_flight == 2).await;
    let mut flood = tokio::task::JoinSet::new();
    // A connection accepts 256 concurrent calls.
    for _ in 0..2 {
        let caller = Caller::of(process.public).await;
        for _ in 0..FLOOD / 2 {
            flood.spawn(submit(caller.clone(), "flood", Duration::from_secs(300)));
        }
    }
    caller.until(|pool| queued(pool) + waiting(pool) == FLOOD as u64).await;
    // The flood keeps both workers busy for 15 s, more than half of the other tenant's timeout.
    let mut light = tokio::task::JoinSet::new();
    for _ in 0..8 {
        light.spawn(submit(caller.clone(), "light", Duration::from_secs(20)));
    }
    busy.into_iter().for_each(|call| call.abort());
    while let Some(served) = light.join_next().await {
        served.unwrap().expect("the job completes");
    }
    let pool = caller.pool().await;
    assert!(waiting(&pool) > 0, "the flood was served first: {pool:?}");
}
