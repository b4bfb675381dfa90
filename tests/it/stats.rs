//! The statistics of a pool while it works, in process and over `Stats` and `WatchStats`, and where the time of a job
//! went.

// tidy: real time, because a real server measures ages and run times.

use std::time::Duration;

use futures_util::{StreamExt, poll};
use waterwheel::{
    Job, Output, Pool,
    handler::KindOptions,
    model::HandlerError,
    phase::Phase,
    pool::{Distribution, PoolStats, Settings, WorkerState, WorkerStats},
    proto::{
        self, StatsRequest, StreamRequest, SubmitManyRequest, SubmitRequest, WatchStatsRequest, Waterfall, WhenFull,
        stream_response::Event, submit_many_response::Outcome,
    },
};

use crate::{
    process::Process,
    refusal::request,
    service::{Caller, counts, job, queued},
    support::{Gate, assert_balanced, assert_idle, echo, gated, kind, pass_time, pool, slow},
};

const SECOND: Duration = Duration::from_secs(1);

fn worker(pool: &Pool, id: usize) -> WorkerStats {
    pool.stats().workers.swap_remove(id)
}

fn near(found: Duration, expected: Duration) -> bool {
    found.abs_diff(expected) <= expected / 50
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_worker_goes_from_idle_to_stopped() {
    let gate = Gate::new();
    let pool = pool(1).kind(gated("gated", &gate)).build();
    assert_eq!((worker(&pool, 0).state, worker(&pool, 0).job), (WorkerState::Idle, None));

    let mut ticket = pool.try_submit(Job::new("gated", "")).expect("accepted");
    assert!(poll!(&mut ticket).is_pending());
    pass_time(3 * SECOND).await;
    let busy = worker(&pool, 0);
    assert_eq!((busy.state, busy.job, busy.job_age), (WorkerState::Busy, Some(ticket.job()), 3 * SECOND));
    assert_eq!((busy.completed, busy.total_run), (0, Duration::ZERO));
    let stats = pool.stats();
    assert_eq!((stats.in_flight, stats.phase, stats.utilization), (1, Phase::Serving, 1.0));

    pool.drain();
    assert_eq!(worker(&pool, 0).state, WorkerState::Draining);
    gate.let_pass(1);
    ticket.await.expect("it completes");
    let stopped = worker(&pool, 0);
    assert_eq!((stopped.state, stopped.job, stopped.job_age), (WorkerState::Stopped, None, Duration::ZERO));
    assert_eq!((stopped.completed, stopped.total_run, stopped.mean_run), (1, 3 * SECOND, 3 * SECOND));
    assert_eq!(pool.stats().utilization, 0.0);
}

#[tokio::test(start_paused = true)]
async fn output_and_progress_reports_reset_the_time_since_progress() {
    let gate = Gate::new();
    let held = gate.clone();
    let reports = kind("reports", move |_, cx| {
        let held = held.clone();
        async move {
            held.pass().await;
            cx.progress(0.5, "half");
            held.pass().await;
            cx.write("chunk").await?;
            held.pass().await;
            Ok(Output::default())
        }
    });
    let pool = pool(1).kind(reports).build();
    let mut ticket = pool.try_submit(Job::new("reports", "")).expect("accepted");
    assert!(poll!(&mut ticket).is_pending());
    for _ in 0..2 {
        pass_time(2 * SECOND).await;
        assert_eq!(worker(&pool, 0).since_progress, 2 * SECOND);
        gate.let_pass(1);
        assert!(poll!(&mut ticket).is_pending());
        assert_eq!(worker(&pool, 0).since_progress, Duration::ZERO);
    }
    gate.let_pass(1);
    ticket.await.expect("it completes");
    pass_time(SECOND).await;
    assert_eq!(worker(&pool, 0).since_progress, SECOND);
    assert_eq!(worker(&pool, 0).mean_run, 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_queue_reports_its_jobs_bytes_and_oldest_age() {
    let settings =
        Settings { workers: 1.try_into().expect("one"), queue_jobs: 7, queue_bytes: 100, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(slow()).build();
    let mut tickets = Vec::new();
    for size in [1, 2, 4] {
        let mut ticket = pool.try_submit(Job::new("slow", vec![0; size])).expect("accepted");
        assert!(poll!(&mut ticket).is_pending());
        tickets.push(ticket);
        pass_time(SECOND).await;
    }
    let PoolStats { queued, queue_jobs, queued_bytes, queue_bytes, waiting, oldest_age, in_flight, .. } = pool.stats();
    assert_eq!((queued, queue_jobs, queued_bytes, queue_bytes), (2, 7, 6, 100));
    assert_eq!((waiting, in_flight, oldest_age), (0, 1, 2 * SECOND));
    assert_balanced(&pool.stats());
    drop(tickets.remove(1));
    assert_eq!((pool.stats().oldest_age, pool.stats().queued_bytes), (SECOND, 4));
}

#[tokio::test(start_paused = true)]
async fn queue_wait_and_run_time_are_measured_per_kind() {
    let sleeps = kind("sleeps", |_, _| async {
        tokio::time::timeout(SECOND, std::future::pending::<()>()).await.map_err(|_| HandlerError::invalid("late"))?;
        Ok(Output::default())
    });
    let pool = pool(1).kind(sleeps).kind(echo()).build();
    let callers = (0..4).map(|_| pool.submit(Job::new("sleeps", "")));
    assert!(futures_util::future::join_all(callers).await.iter().all(Result::is_err));
    let stats = pool.stats();
    let [sleeps, echo] = &stats.kinds[..] else { panic!("{stats:#?}") };
    assert_eq!((&*sleeps.name, &*echo.name), ("sleeps", "echo"));
    assert_eq!((sleeps.queue_wait.count, sleeps.run_time.count), (4, 4));
    assert!(near(sleeps.run_time.p50, SECOND) && near(sleeps.run_time.max, SECOND), "{:?}", sleeps.run_time);
    assert!(near(sleeps.queue_wait.max, 3 * SECOND), "{:?}", sleeps.queue_wait);
    assert_eq!((echo.queue_wait, echo.run_time), (Distribution::default(), Distribution::default()));
    assert_eq!(stats.counts.failed, 4);
    assert_eq!((stats.workers[0].failed, stats.workers[0].total_run), (4, 4 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_times_out_is_measured_once() {
    let options = KindOptions { run_timeout: Some(SECOND), ..KindOptions::default() };
    let pool = pool(1).kind(slow().options(options)).build();
    pool.submit(Job::new("slow", "")).await.expect_err("it takes too long");
    pass_time(5 * SECOND).await;
    let stats = pool.stats();
    assert_eq!(stats.kinds[0].run_time.count, 1);
    assert_eq!((stats.workers[0].failed, stats.workers[0].total_run), (1, SECOND));
    assert_idle(&pool, 1);
}

#[tokio::test]
async fn a_poll_that_blocks_its_thread_is_counted() {
    let clock = || tokio::time::Instant::now();
    let holds = kind("holds", move |_, _| async move {
        let start = clock();
        while start.elapsed() < Duration::from_millis(110) {
            std::hint::spin_loop();
        }
        Ok(Output::default())
    });
    let pool = pool(1).kind(holds).kind(echo()).build();
    let start = clock();
    pool.submit(Job::new("echo", "")).await.expect("it completes");
    let before = pool.stats().slow_polls;
    assert!(before == 0 || start.elapsed() > Duration::from_millis(100), "{before}");
    pool.submit(Job::new("holds", "")).await.expect("it completes");
    assert_eq!(pool.stats().slow_polls, before + 1);
}

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    drain = { notice = "0s", finish = "30s", kill = "1s" }
    [pool.one]
    workers = 2
    queue = { jobs = 3, bytes = "8MiB", waiting = 5 }
    cancel_grace = "50ms"
"#;

fn time(sent: Option<prost_types::Duration>) -> Duration {
    sent.expect("sent").try_into().unwrap()
}

#[tokio::test]
async fn a_busy_pool_reports_its_queue_and_workers() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let begin = tokio::time::Instant::now();
    caller.leave(job("sleep", "100")).await.unwrap().unwrap();
    let slept = begin.elapsed();
    caller.occupy(2).await;
    for ahead in 0..3 {
        caller.queue(job("echo", vec![0; 1 << 10]), ahead).await;
    }
    let full = caller.leave(job("echo", "")).await.unwrap().unwrap_err();
    assert_eq!(full.code(), tonic::Code::ResourceExhausted);
    caller.leave(proto::Job { when_full: WhenFull::Wait.into(), ..job("echo", "") });
    caller.until(|pool| crate::service::waiting(pool) == 1).await;

    let pool = caller.pool().await;
    assert_eq!((pool.in_flight, pool.utilization), (2, 1.0));
    let queue = pool.queue.unwrap();
    assert_eq!((queue.jobs, queue.jobs_capacity, queue.bytes_capacity), (3, 3, 8 << 20));
    assert_eq!((queue.waiting, queue.waiting_capacity), (1, 5));
    assert_eq!(pool.kinds.iter().map(|kind| kind.name.as_str()).collect::<Vec<_>>(), ["echo", "sleep"]);
    assert_eq!(queue.bytes, 3 * 1024, "payloads of running jobs do not count");
    assert!(time(queue.oldest_age) > Duration::ZERO);
    // The pool knows a service time of `sleep`, at least 100 ms, and none of `echo`.
    let expected = time(queue.expected_wait);
    assert!(expected > Duration::from_millis(50) && expected < 10 * slept, "{expected:?}");
    assert_eq!(counts(&pool).accepted, 6);
    let rejected: Vec<_> = counts(&pool).rejected.iter().map(|one| (one.reason.as_str(), one.count)).collect();
    assert_eq!(rejected, [("QUEUE_FULL", 1)]);
    let ids: Vec<_> = pool.workers.iter().map(|worker| worker.job_id.as_str()).collect();
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() > 16), "{ids:?}");
    for worker in &pool.workers {
        assert_eq!(worker.state(), proto::WorkerState::Busy);
        assert!(time(worker.job_age) > Duration::ZERO && time(worker.job_age) < Duration::from_secs(20));
        assert!(time(worker.since_progress) <= time(worker.job_age) + Duration::from_millis(1));
    }
}

#[tokio::test]
async fn each_outcome_is_counted_once() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let short = Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 });
    for _ in 0..3 {
        caller.leave(job("sleep", "20")).await.unwrap().unwrap();
    }
    caller.leave(job("sleep", "not a number")).await.unwrap().unwrap_err();
    caller.leave(proto::Job { run_timeout: short, ..job("sleep", "60000") }).await.unwrap().unwrap_err();
    caller.leave(job("no-such-kind", "")).await.unwrap().unwrap_err();
    let left = caller.leave(job("sleep", "60000"));
    caller.until(|pool| pool.in_flight == 1).await;
    left.abort();
    caller.until(|pool| pool.in_flight == 0).await;

    let pool = caller.pool().await;
    let proto::JobCounts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected } =
        counts(&pool).clone();
    assert_eq!((accepted, completed, failed, cancelled, expired), (6, 3, 1, 1, 1));
    assert_eq!((panicked, shed, rejected.len()), (0, 0, 0), "an unknown kind is counted by no pool");
    let sleep = pool.kinds.iter().find(|kind| kind.name == "sleep").unwrap();
    let (waits, runs) = (sleep.queue_wait.unwrap(), sleep.run_time.unwrap());
    assert_eq!((waits.count, runs.count), (6, 6));
    let proto::Distribution { p50, p90, p99, max, .. } = runs;
    let steps = [p50, p90, p99, max].map(time);
    assert!(steps.is_sorted() && steps[0] >= Duration::from_millis(19), "{steps:?}");
    assert!(steps[3] >= Duration::from_millis(49), "{steps:?}");
    workers_add_up(&pool);
}

fn workers_add_up(pool: &proto::PoolStats) {
    let completed: u64 = pool.workers.iter().map(|worker| worker.completed).sum();
    let failed: u64 = pool.workers.iter().map(|worker| worker.failed).sum();
    assert_eq!((completed, failed), (3, 3), "{:?}", pool.workers);
    for worker in &pool.workers {
        let jobs = u32::try_from(worker.completed + worker.failed).unwrap();
        let (total, mean) = (time(worker.total_run_time), time(worker.mean_run_time));
        assert_eq!(mean, total.checked_div(jobs).unwrap_or_default(), "{worker:?}");
    }
    let total: Duration = pool.workers.iter().map(|worker| time(worker.total_run_time)).sum();
    assert!(total >= Duration::from_millis(3 * 19 + 49), "{total:?}");
}

#[tokio::test]
async fn a_drain_is_visible_in_the_statistics() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let mut client = caller.0.clone();
    let request = WatchStatsRequest { pool: "one".into(), interval_ms: 100 };
    let mut watch = client.watch_stats(request).await.unwrap().into_inner();
    let call = caller.leave(job("sleep", "60000"));
    caller.until(|pool| pool.in_flight == 1).await;
    process.signal(rustix::process::Signal::TERM);
    let (mut draining, mut last) = (0, None);
    while let Some(snapshot) = watch.message().await.unwrap() {
        let stats = snapshot.stats.unwrap();
        let pool = &stats.pools[0];
        if stats.phase() == proto::Phase::Draining && pool.phase() == proto::Phase::Draining {
            draining += 1;
            let states: Vec<_> = pool.workers.iter().map(proto::WorkerStats::state).collect();
            assert!(states.contains(&proto::WorkerState::Draining) || pool.in_flight == 0, "{states:?}");
        }
        last = Some(stats);
        if draining == 3 {
            call.abort();
        }
    }
    assert!(draining >= 3, "{draining} snapshots of the drain");
    assert!(last.unwrap().phase() >= proto::Phase::Draining);
    assert_eq!(process.ended().await.code, Some(0));
}

#[tokio::test]
async fn one_pool_can_be_selected_and_watched_at_an_interval() {
    let process = Process::serve(&format!("{CONFIG}\n[pool.two]\nworkers = 1\n")).await;
    let caller = Caller::of(process.public).await;
    let mut client = caller.0.clone();
    let names = |pools: &[proto::PoolStats]| pools.iter().map(|pool| pool.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&caller.stats().await.pools), ["one", "two"]);
    let two = client.stats(StatsRequest { pool: "two".into() }).await.unwrap().into_inner().stats.unwrap();
    assert_eq!(names(&two.pools), ["two"]);
    let request = WatchStatsRequest { pool: "two".into(), interval_ms: 100 };
    let mut watch = client.watch_stats(request).await.unwrap().into_inner();
    let begin = tokio::time::Instant::now();
    for _ in 0..4 {
        let stats = watch.message().await.unwrap().unwrap().stats.unwrap();
        assert_eq!(names(&stats.pools), ["two"]);
    }
    // The first message arrives at once, then one per interval. The first sample may be late.
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(queued(&caller.stats().await.pools[0]), 0);
}

/// Checks the parts of a job that had a budget of 20 s, waited in the queue, and ran for 20 ms.
fn assert_adds_up(waterfall: Option<Waterfall>, elapsed: Duration) {
    let waterfall = waterfall.expect("sent");
    let Waterfall { budget_seconds, queue_seconds, run_seconds, left_seconds, worker: _ } = waterfall;
    assert!(budget_seconds > 10.0 && budget_seconds <= 20.0, "{waterfall:?}");
    assert!(queue_seconds > 0.0 && run_seconds >= 0.019 && left_seconds > 0.0, "{waterfall:?}");
    assert!((queue_seconds + run_seconds + left_seconds - budget_seconds).abs() < 1e-6, "{waterfall:?}");
    assert!(queue_seconds + run_seconds <= elapsed.as_secs_f64(), "{waterfall:?} within {elapsed:?}");
}

#[tokio::test]
async fn queue_run_and_rest_of_a_job_add_up_to_its_budget_in_the_answer_of_every_rpc() {
    let process = Process::serve(&CONFIG.replace("workers = 2", "workers = 1")).await;
    let caller = Caller::of(process.public).await;
    let [mut submits, mut streams, mut many] = [(); 3].map(|()| caller.0.clone());
    let headers = [("grpc-timeout", "20S")];
    let one = || Some(job("sleep", "20"));
    let begin = tokio::time::Instant::now();
    caller.leave(job("sleep", "100"));
    caller.until(|pool| pool.in_flight == 1).await;
    let submit = async {
        let answer = submits.submit(request(SubmitRequest { job: one() }, &headers)).await.unwrap();
        assert_adds_up(answer.into_inner().result.unwrap().waterfall, begin.elapsed());
    };
    let stream = async {
        let events = streams.stream(request(StreamRequest { job: one() }, &headers)).await.unwrap().into_inner();
        let last = events.map(Result::unwrap).fold(None, async |_, event| event.event).await;
        let Some(Event::Finished(finished)) = last else { panic!("{last:?}") };
        assert_adds_up(finished.waterfall, begin.elapsed());
    };
    let submit_many = async {
        let jobs = tokio_stream::once(SubmitManyRequest { tag: "it".into(), job: one().map(Box::new) });
        let mut results = many.submit_many(request(jobs, &headers)).await.unwrap().into_inner();
        let result = results.message().await.unwrap().unwrap();
        let Some(Outcome::Result(result)) = result.outcome else { panic!("{result:?}") };
        assert_adds_up(result.waterfall, begin.elapsed());
    };
    tokio::join!(submit, stream, submit_many);
}
