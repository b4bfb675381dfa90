//! Code that is not the pool's own never runs under the lock of the pool: it may call the pool.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use futures_util::poll;
use parking_lot::Mutex;
use tracing::{Id, Metadata, Subscriber, span};
use waterwheel::{
    Job, Output, Pool, WhenFull,
    model::{Call, HandlerError},
};

use crate::support::{BlockingGate, Counter, blocking_kind, holding_clock, kind, pass_time, pool, until};

/// Looks at the pool whenever a span ends.
struct Looks {
    pool: Mutex<Option<Pool>>,
    ended: Counter,
}

impl Subscriber for Looks {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        let pool = self.pool.lock().clone();
        if let Some(pool) = pool {
            let _ = pool.stats();
            self.ended.add();
        }
        true
    }
}

/// Runs `body` on a thread of its own, and fails where it does not end: a thread that takes a lock twice never does.
fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let body = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "the pool waits for itself");
    body.join().expect("no panic");
}

async fn every_end(pool: Pool, started: Counter, gate: BlockingGate) {
    let job = |kind: &str| {
        let mut job = Job::new(kind, "").when_full(WhenFull::Wait);
        job.call = Some(Arc::new(Call { span: tracing::info_span!("call"), ..Call::here() }));
        job
    };
    pool.submit(job("quick")).await.expect("it completes");
    drop(pool.try_submit(job("quick")).expect("room"));

    let mut stuck = pool.try_submit(job("deaf").run_timeout(Duration::from_secs(1))).expect("room");
    assert!(poll!(&mut stuck).is_pending());
    holding_clock(started.reached(1)).await;
    let unpolled: Vec<_> = (0..2).map(|_| pool.try_submit(job("quick")).expect("room")).collect();
    let mut polled: Vec<_> = (0..2).map(|_| pool.try_submit(job("quick")).expect("room")).collect();
    for ticket in &mut polled {
        assert!(poll!(ticket).is_pending());
    }
    drop((unpolled, polled));
    stuck.await.expect_err("it takes too long");
    pass_time(Duration::from_secs(2)).await;
    gate.let_pass(1);
    until(|| pool.stats().in_flight == 0).await;

    let mut stream = pool.stream(job("quick")).await.expect("room");
    while stream.next().await.expect("it completes").is_some() {}
    pool.submit(job("fails")).await.expect_err("it fails");
}

#[test]
fn the_end_of_a_span_may_look_at_the_pool() {
    let (started, gate, ended) = (Counter::new(), BlockingGate::default(), Counter::new());
    let (begun, held) = (started.clone(), gate.clone());
    let deaf = blocking_kind("deaf", move |_, cx| {
        begun.add();
        held.pass();
        drop(cx);
        Ok(Output::default())
    });
    let quick = kind("quick", |_, _| async { Ok(Output::default()) });
    let fails = kind("fails", |_, _| async { Err(HandlerError::invalid("no")) });
    let pool = pool(1).queue_jobs(3).kind(deaf).kind(quick).kind(fails).build();
    let subscriber = Looks { pool: Mutex::new(Some(pool.clone())), ended: ended.clone() };
    in_time(move || {
        // The last reference to a span may go on the worker's own thread, hence the dispatcher travels with the span.
        let _guard = tracing::subscriber::set_default(subscriber);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(every_end(pool, started, gate));
    });
    assert!(ended.get() >= 9, "every call's span ended: {}", ended.get());
}
