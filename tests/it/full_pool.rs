//! A full pool keeps to its bounds and to the policy that the job asks for.

use std::time::Duration;

use tokio::time::Instant;
use waterwheel::{
    Criticality, Job, JobError, Output, Pool, Rejection, WhenFull,
    handler::Kind,
    model::{Execution, Outcome, RejectionReason},
    pool::{Settings, Ticket},
};

use crate::{
    process::Process,
    service::{Caller, job, queued, waiting},
    support::{Counter, Gate, assert_balanced, assert_idle, kind, pass_time, pool, until},
};

/// A kind that runs until its gate lets it pass.
fn gated(gate: &Gate) -> Kind {
    let gate = gate.clone();
    kind("gated", move |job, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(Output::new(job.payload))
        }
    })
}

/// One worker, which is busy, behind a queue of `queue_jobs` with `waiting` places for callers.
struct Full {
    pool: Pool,
    gate: Gate,
    jobs: tokio::task::JoinSet<Result<String, JobError>>,
}

impl Full {
    fn new(settings: Settings) -> Self {
        let gate = Gate::new();
        let pool =
            pool(1).settings(Settings { workers: std::num::NonZeroUsize::MIN, ..settings }).kind(gated(&gate)).build();
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

    /// The names of the jobs that complete from now on, in order.
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
    refused.expect_err("there is no room").reason
}

fn small(queue_jobs: usize, queue_waiting: usize) -> Settings {
    Settings { queue_jobs, queue_waiting, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn reject_refuses_at_once_and_says_when_to_come_back() {
    let mut full = Full::new(small(2, 2));
    full.put("first").expect("room");
    full.put("second").expect("room");
    let refused = full.put("third").expect_err("no room");
    assert_eq!(refused.reason, RejectionReason::QueueFull);
    let retry_after = refused.retry_after.expect("it may come back");
    // However long its deadline is, it is told the wait that others have, and not the shortest one.
    assert!((Duration::from_millis(20)..Duration::from_secs(8)).contains(&retry_after), "{retry_after:?}");
    assert_eq!(full.pool.stats().counts.rejected[RejectionReason::QueueFull.index()], 1);
    assert_eq!(full.rest().await, ["running", "first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn wait_gets_room_in_order_and_is_bounded_too() {
    let mut full = Full::new(small(1, 2));
    full.put("queued").expect("room");
    for name in ["first", "second"] {
        full.give(Full::job(name).when_full(WhenFull::Wait)).expect("a place to wait");
    }
    let refused = full.give(Full::job("third").when_full(WhenFull::Wait));
    assert_eq!(reason(refused), RejectionReason::QueueFull);
    let stats = full.pool.stats();
    assert_eq!((stats.waiting, stats.counts.accepted), (2, 2), "callers that wait are not accepted");

    full.gate.let_pass(1);
    until(|| full.pool.stats().waiting == 1).await;
    assert_eq!(reason(full.put("late")), RejectionReason::QueueFull, "nobody overtakes those who wait");
    assert_eq!(full.rest().await, ["running", "queued", "first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn no_room_in_time_is_a_refusal() {
    let mut full = Full::new(small(0, 8));
    let start = Instant::now();
    let job = Full::job("waits").when_full(WhenFull::Wait).timeout(Duration::from_secs(2));
    let error = full.pool.submit(job).await.expect_err("the worker stays busy");
    let JobError::Rejected(rejection) = error else { panic!("{error}") };
    assert_eq!(rejection.reason, RejectionReason::NoRoomInTime);
    assert_eq!(start.elapsed(), Duration::from_millis(1_970), "the margin before the deadline");
    let stats = full.pool.stats();
    assert_eq!((stats.waiting, stats.counts.accepted), (0, 1));
    full.give(Full::job("leaves").when_full(WhenFull::Wait)).expect("a place to wait");
    full.jobs.shutdown().await;
    assert_eq!(full.pool.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_queue_callers_that_wait_get_the_worker() {
    let mut full = Full::new(small(0, 8));
    assert_eq!(reason(full.put("refused")), RejectionReason::QueueFull);
    for name in ["first", "second", "third"] {
        full.give(Full::job(name).when_full(WhenFull::Wait)).expect("a place to wait");
    }
    assert_eq!(full.rest().await, ["running", "first", "second", "third"]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_gets_the_worker_past_a_queue_of_blocked_jobs() {
    let (keyed, free) = (Gate::new(), Gate::new());
    let started = Counter::new();
    let begun = started.clone();
    let gates = (keyed.clone(), free.clone());
    let held = kind("held", move |job, _| {
        let ((keyed, free), begun) = (gates.clone(), begun.clone());
        async move {
            begun.add();
            let gate = if job.ordering_key.is_empty() { free } else { keyed };
            gate.pass().await;
            Ok(Output::default())
        }
    });
    let pool = pool(2).queue_jobs(1).kind(held).build();
    let job = || Job::new("held", "");
    let mut jobs = tokio::task::JoinSet::new();
    for job in [job().ordering_key("key"), job(), job().ordering_key("key"), job().when_full(WhenFull::Wait)] {
        jobs.spawn(pool.try_submit(job).expect("room"));
    }
    started.reached(2).await;
    assert_eq!((pool.stats().queued, pool.stats().waiting), (1, 1));
    free.let_pass(1);
    started.reached(3).await;
    assert_eq!((pool.stats().queued, pool.stats().waiting), (1, 0), "the worker does not idle beside a caller");
    keyed.open();
    free.open();
    while let Some(job) = jobs.join_next().await {
        job.expect("no panic").expect("it completes");
    }
    assert_idle(&pool, 2);
}

#[tokio::test(start_paused = true)]
async fn shed_evicts_the_newest_of_the_lowest_class_below() {
    let mut full = Full::new(Settings { when_full: WhenFull::Shed, ..small(3, 0) });
    let low = full.pool.try_submit(Full::job("low").criticality(Criticality::Sheddable)).expect("room");
    let lower = full.pool.try_submit(Full::job("newer").criticality(Criticality::Sheddable)).expect("room");
    full.give(Full::job("plus").criticality(Criticality::CriticalPlus)).expect("room");

    full.put("critical").expect("it takes the place of the newest below it");
    let JobError::Failed(failure) = lower.await.expect_err("it was evicted") else { panic!("accepted before") };
    assert_eq!(failure.outcome, Outcome::Shed);
    assert!(failure.retry_after > Some(Duration::ZERO));
    assert_eq!(failure.execution, Execution::NotStarted);

    full.put("next").expect("it takes the place of the other");
    assert!(matches!(low.await, Err(JobError::Failed(failure)) if failure.outcome == Outcome::Shed));
    assert_eq!(reason(full.put("last")), RejectionReason::QueueFull, "its equals do not give way");
    assert_eq!(full.pool.stats().counts.shed, 2);
    assert_eq!(full.rest().await, ["running", "plus", "critical", "next"]);
}

#[tokio::test(start_paused = true)]
async fn payload_bytes_are_bounded_whatever_the_number_of_jobs() {
    let mut full = Full::new(Settings { queue_bytes: 100, max_payload: 60, ..small(10, 10) });
    let sized = |size: usize| Job::new("gated", vec![b'x'; size]);
    let limit = full.give(sized(61));
    assert_eq!(reason(limit), RejectionReason::PayloadTooLarge { size: 61, limit: 60 });

    full.give(sized(60)).expect("60 bytes are queued; those of what runs are not");
    assert_eq!(reason(full.give(sized(41))), RejectionReason::QueueFull);
    full.give(sized(40)).expect("100 bytes are queued");
    assert_eq!(full.pool.stats().queued_bytes, 100);
    for _ in 0..2 {
        full.give(sized(50).when_full(WhenFull::Wait)).expect("callers that wait have as much again");
    }
    assert_eq!(reason(full.give(sized(1).when_full(WhenFull::Wait))), RejectionReason::QueueFull);
    assert_eq!(full.pool.stats().queued_bytes, 100);
    assert_eq!(full.rest().await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_payload_limit_above_the_bytes_of_the_pool_is_lowered_to_them() {
    let mut full = Full::new(Settings { queue_bytes: 10, ..small(1, 1) });
    let refused = full.give(Job::new("gated", vec![0; 11]));
    assert_eq!(reason(refused), RejectionReason::PayloadTooLarge { size: 11, limit: 10 });
    assert_eq!(full.rest().await, ["running"]);
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_make_way_for_others() {
    let mut full = Full::new(small(1, 1));
    let queued = full.pool.try_submit(Full::job("queued")).expect("room");
    let waiting = full.pool.try_submit(Full::job("waiting").when_full(WhenFull::Wait)).expect("a place to wait");
    drop(queued);
    assert_eq!((full.pool.stats().queued, full.pool.stats().waiting), (1, 0), "who waited has the room");
    drop(waiting);
    full.put("next").expect("room");
    pass_time(Duration::from_secs(1)).await;
    assert_eq!(full.rest().await, ["running", "next"]);
}

#[tokio::test]
async fn unknown_and_unsound_jobs_are_counted_as_refused() {
    let pool = pool(1).kind(gated(&Gate::new())).build();
    let refused = pool.try_submit(Job::new("gatde", "")).expect_err("no such kind");
    assert_eq!(refused.reason, RejectionReason::UnknownKind { suggestion: Some("gated".into()) });
    let refused = pool.try_submit(Job::new("gated", "").tenant("t".repeat(200))).expect_err("too long");
    assert!(matches!(refused.reason, RejectionReason::Invalid { violations } if violations[0].field == "job.tenant"));
    let counts = pool.stats().counts;
    assert_eq!((counts.rejected.iter().sum::<u64>(), counts.accepted), (2, 0));
}

/// A job of a tenant that runs for 100 ms, with so much time, from outside.
async fn submit(caller: Caller, tenant: &'static str, timeout: Duration) -> Result<(), tonic::Status> {
    let job = waterwheel::proto::Job { tenant: tenant.into(), ..job("sleep", "100") };
    let mut request = tonic::Request::new(waterwheel::proto::SubmitRequest { job: Some(job) });
    request.set_timeout(timeout);
    caller.0.clone().submit(request).await.map(drop)
}

#[tokio::test]
async fn a_tenant_is_served_beside_hundreds_of_callers_of_another_one() {
    const FLOOD: usize = 300;
    let config = r#"
        [pool.one]
        workers = 2
        queue = { jobs = 40 }
        when_full = "wait"
        [kind.sleep]
        pool = "one"
        builtin = "sleep"
    "#;
    let process = Process::serve(config).await;
    let caller = Caller::of(process.public).await;
    submit(caller.clone(), "light", Duration::from_secs(20)).await.expect("an idle pool");
    let busy = [(); 2].map(|()| caller.leave(job("sleep", "60000")));
    caller.until(|pool| pool.in_flight == 2).await;
    let mut flood = tokio::task::JoinSet::new();
    // A connection takes 256 calls at a time.
    for _ in 0..2 {
        let caller = Caller::of(process.public).await;
        for _ in 0..FLOOD / 2 {
            flood.spawn(submit(caller.clone(), "flood", Duration::from_secs(300)));
        }
    }
    caller.until(|pool| queued(pool) + waiting(pool) == FLOOD as u64).await;
    // The flood takes 15 s of both workers: more than half of the time that the others have.
    let mut light = tokio::task::JoinSet::new();
    for _ in 0..8 {
        light.spawn(submit(caller.clone(), "light", Duration::from_secs(20)));
    }
    busy.into_iter().for_each(|call| call.abort());
    while let Some(served) = light.join_next().await {
        served.unwrap().expect("it has a place in the queue");
    }
    let pool = caller.pool().await;
    assert!(waiting(&pool) > 0, "the flood was served first: {pool:?}");
}
