//! The pool never runs foreign code under its lock, so that code may call the pool.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use futures_util::poll;
use tracing::{Id, Subscriber};
use tracing_subscriber::{Layer, layer, layer::SubscriberExt, registry};
use waterwheel::{
    Job, Output, Pool, WhenFull,
    model::{Call, HandlerError},
};

use crate::support::{BlockingGate, Counter, deaf, holding_clock, kind, pass_time, pool, until};

/// Reads the statistics of the pool whenever a span ends.
struct StatsAtSpanEnd {
    pool: Pool,
    ended: Counter,
}

impl<S: Subscriber> Layer<S> for StatsAtSpanEnd {
    fn on_close(&self, _: Id, _: layer::Context<'_, S>) {
        let _ = self.pool.stats();
        self.ended.add();
    }
}

/// Runs `body` on a new thread, and panics if it does not end in time, as a thread in a deadlock does not.
fn run_in_time(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let body = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "deadlock");
    body.join().expect("no panic");
}

async fn end_jobs_in_every_way(pool: Pool, started: Counter, gate: BlockingGate) {
    let job = |kind: &str| {
        let mut job = Job::new(kind, "").when_full(WhenFull::Wait);
        job.call = Some(Arc::new(Call { span: tracing::info_span!("call"), ..Call::here() }));
        job
    };
    pool.submit(job("quick")).await.expect("it completes");
    drop(pool.try_submit(job("quick")).expect("accepted"));

    let mut stuck = pool.try_submit(job("deaf").run_timeout(Duration::from_secs(1))).expect("accepted");
    assert!(poll!(&mut stuck).is_pending());
    holding_clock(started.reached(1)).await;
    let unpolled: Vec<_> = (0..2).map(|_| pool.try_submit(job("quick")).expect("accepted")).collect();
    let mut polled: Vec<_> = (0..2).map(|_| pool.try_submit(job("quick")).expect("accepted")).collect();
    for ticket in &mut polled {
        assert!(poll!(ticket).is_pending());
    }
    drop((unpolled, polled));
    stuck.await.expect_err("it takes too long");
    pass_time(Duration::from_secs(2)).await;
    gate.let_pass(1);
    until(|| pool.stats().in_flight == 0).await;

    let mut stream = pool.stream(job("quick")).await.expect("accepted");
    while stream.next().await.expect("it completes").is_some() {}
    pool.submit(job("fails")).await.expect_err("it fails");
}

#[test]
fn a_subscriber_may_read_the_statistics_when_a_span_ends() {
    let (started, gate, ended) = (Counter::new(), BlockingGate::default(), Counter::new());
    let deaf = deaf(&started, &gate);
    let quick = kind("quick", |_, _| async { Ok(Output::default()) });
    let fails = kind("fails", |_, _| async { Err(HandlerError::invalid("no")) });
    let pool = pool(1).queue_jobs(3).kind(deaf).kind(quick).kind(fails).build();
    let subscriber = registry().with(StatsAtSpanEnd { pool: pool.clone(), ended: ended.clone() });
    run_in_time(move || {
        // The worker's thread may drop the last reference to a span. The span keeps its dispatcher for that.
        let _guard = tracing::subscriber::set_default(subscriber);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(end_jobs_in_every_way(pool, started, gate));
    });
    assert!(ended.get() >= 9, "every call's span ended: {}", ended.get());
}
