//! A dropped or drained pool leaves no thread, no handler and no reference cycle behind.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use futures_util::poll;
use tokio::task::JoinSet;
use waterwheel::{Job, Output, Pool};

use crate::support::{BlockingGate, Counter, deaf, echo, kind, pass_time, pool, slow, until};

/// Number of this process's threads whose names begin with `prefix`.
fn threads(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

async fn busy_threads(name: &str) -> Pool {
    let pool = Pool::builder(name).workers(3.try_into().expect("three"));
    let (started, gate) = (Counter::new(), BlockingGate::default());
    let pool = pool.kind(deaf(&started, &gate)).kind(echo()).build();
    pool.submit(Job::new("echo", "")).await.expect("it completes");
    assert_eq!(threads(name), 0, "a kind that is not blocking has threads");
    let mut callers = JoinSet::new();
    for _ in 0..6 {
        callers.spawn(pool.try_submit(Job::new("deaf", "")).expect("accepted"));
    }
    started.reached(3).await;
    assert_eq!(threads(name), 3, "one for each worker");
    gate.let_pass(6);
    while let Some(caller) = callers.join_next().await {
        caller.expect("no panic").expect("it completes");
    }
    assert_eq!(threads(name), 3, "threads are kept from job to job");
    pool
}

#[tokio::test]
async fn threads_end_with_their_workers_and_with_the_drain() {
    let pool = busy_threads("drainpool").await;
    assert!(pool.resize(NonZeroUsize::MIN, NonZeroUsize::MIN));
    until(|| threads("drainpool") == 1).await;
    pool.drain();
    pool.wait().await;
    until(|| threads("drainpool") == 0).await;
    assert!(pool.is_drained());
}

#[tokio::test]
async fn threads_end_with_the_last_handle_of_the_pool() {
    let pool = busy_threads("droppool").await;
    let other = pool.clone();
    drop(pool);
    other.submit(Job::new("echo", "")).await.expect("the pool still works");
    assert_eq!(threads("droppool"), 3);
    drop(other);
    until(|| threads("droppool") == 0).await;
}

#[test]
fn a_pool_that_is_never_used_needs_no_runtime() {
    drop(pool(2).kind(echo()).build());
    let pool = pool(2).kind(echo()).build();
    pool.drain();
    assert!(pool.is_drained());
}

#[tokio::test(start_paused = true)]
async fn a_pool_frees_its_handlers_and_factories_with_its_last_handle() {
    let alive = Arc::new(());
    let (made, ran) = (Arc::clone(&alive), Arc::clone(&alive));
    let holds = kind("holds", move |job, cx| {
        let ran = Arc::clone(&ran);
        async move {
            cx.write("chunk").await?;
            tokio::task::yield_now().await;
            drop(ran);
            Ok(Output::new(job.payload))
        }
    });
    // The task that samples the load of an elastic pool keeps no pool alive.
    let two = NonZeroUsize::new(2).expect("two");
    let pool = pool(2).elastic(NonZeroUsize::MIN, two).kind(holds).kind(slow()).build();
    drop(made);
    pool.submit(Job::new("holds", "")).await.expect("it completes");
    let mut stream = pool.stream(Job::new("holds", "")).await.expect("accepted");
    while stream.next().await.expect("it completes").is_some() {}
    let mut left = pool.try_submit(Job::new("slow", "")).expect("accepted");
    assert!(poll!(&mut left).is_pending());
    drop((left, stream));
    pass_time(Duration::from_secs(2)).await;
    assert!(Arc::strong_count(&alive) > 1, "the factory keeps a reference");
    drop(pool);
    pass_time(Duration::from_secs(2)).await;
    assert_eq!(Arc::strong_count(&alive), 1);
}
