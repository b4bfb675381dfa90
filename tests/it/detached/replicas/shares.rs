//! Servers that share a store divide the limits of calls, and each has the whole limit for detached jobs.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use tokio::{task::JoinHandle, time::timeout};
use waterwheel::{
    Job, Pool, Pools,
    detached::{Detached, KindPolicies},
    handler::KindOptions,
    model::{KindLimits, Limit, Share},
    store::{Bounds, JobStore, NewJob, StoredLimit, Timestamp, open_shared_memory},
};

use crate::{
    process::{PATIENCE, until},
    support::{Counter, Gate, gated_counting, pool},
};

/// A server with one kind, which divides this limit.
struct Server {
    pool: Pool,
    detached: Detached,
    begun: Counter,
    run: JoinHandle<()>,
}

impl Server {
    async fn start(store: &Arc<dyn JobStore>, limit: u32, gate: &Gate) -> Self {
        let begun = Counter::new();
        let all = Limit { concurrency: NonZeroU32::new(limit), rate: None };
        let limits = KindLimits { all, share: Share::Divide, ..KindLimits::default() };
        let kind = gated_counting("held", gate, &begun).options(KindOptions { limits, ..KindOptions::default() });
        let pool = pool(8).kind(kind).build();
        let clock = Arc::new(Timestamp::default);
        let detached = Detached::new(store.clone(), clock, Pools::new(vec![pool.clone()]), KindPolicies::default());
        let run = tokio::spawn(detached.clone().run());
        timeout(PATIENCE, detached.knows_suspended()).await.expect("a look");
        Self { pool, detached, begun, run }
    }

    fn part(&self) -> u32 {
        let limit = self.pool.stats().kinds[0].limit.expect("it has a limit").limits;
        limit.all.concurrency.expect("it has a concurrency").get()
    }
}

#[tokio::test]
async fn servers_of_a_store_divide_the_limits_of_calls_and_detached_jobs_have_them_whole() {
    let time = Arc::new(AtomicI64::new(1_700_000_000_000));
    let now = time.clone();
    let clock = Arc::new(move || Timestamp::from_millis(now.load(Relaxed)));
    let store = open_shared_memory(Bounds::default(), clock).unwrap();
    store.set_limits([("held".to_owned(), StoredLimit { all: Some(4), ..StoredLimit::default() })].into());
    let gate = Gate::new();
    let first = Server::start(&store, 4, &gate).await;
    assert_eq!(first.part(), 4);
    let second = Server::start(&store, 4, &gate).await;
    assert_eq!(second.part(), 2, "it divides before its first call");
    until("a smaller part", async || first.part() == 2).await;
    for server in [&first, &second] {
        for _ in 0..3 {
            server.pool.send(Job::new("held", "")).unwrap();
        }
        timeout(PATIENCE, server.begun.reached(2)).await.expect("its part");
        assert_eq!(server.pool.stats().queued, 1);
    }
    gate.let_pass(6);
    until("all calls end", async || [&first, &second].iter().all(|it| it.pool.stats().counts.completed == 3)).await;

    // The other one takes none of them.
    second.pool.pause();
    for id in 0..4 {
        first.detached.create(NewJob::new(id.to_string(), "test", Job::new("held", "x"))).await.unwrap();
    }
    timeout(PATIENCE, first.begun.reached(3 + 4)).await.expect("the whole limit");

    second.run.abort();
    assert_eq!(first.part(), 2, "its last calls may still run");
    time.fetch_add(31_000, Relaxed);
    until("the whole", async || first.part() == 4).await;
}
