//! Servers that share a PostgreSQL, and the rates of their kinds and limit keys.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{cluster::Cluster, postgres::replica};
use crate::{
    model::{Job, Rate},
    store::{Bounds, Extent, JobStore, NewJob, Room, StoredLimit, Submission},
};

/// The bound holds for every window, and however long a claim takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_never_exceed_the_rate_of_a_kind_together() {
    let rate = Some(rate(4));
    starts_keep_the_rate(StoredLimit { rate, ..StoredLimit::default() }, 1, Duration::ZERO).await;
}

/// Two that look at a bucket at the same moment may both take its last token, if another one has just refilled it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_never_exceed_the_rate_of_a_limit_key_together() {
    let key_rate = Some(rate(12));
    starts_keep_the_rate(StoredLimit { key_rate, ..StoredLimit::default() }, 3, Duration::from_millis(12)).await;
}

fn rate(millis: u64) -> Rate {
    Rate { interval: Duration::from_millis(millis), burst: NonZeroU32::new(5).expect("five") }
}

/// Three servers claim as the dispatcher does.
async fn starts_keep_the_rate(limit: StoredLimit, keys: usize, tolerance: Duration) {
    const JOBS: usize = 120;
    let Rate { interval, burst } = limit.rate.or(limit.key_rate).expect("a rate");
    let burst = burst.get() as usize;
    let Some(cluster) = Cluster::start().await else { return };
    // By the clock of the database.
    let stores = [(); 3].map(|()| replica(&cluster, "postgres", Bounds::default()));
    let job = |id: usize| {
        let mut job = NewJob::new(id.to_string(), "p", Job::new("k", "p"));
        job.job.limit_key = (id % keys).to_string();
        job.policy.has_key_limit = limit.key_rate.is_some();
        job
    };
    for store in &stores {
        store.set_limits([("k".to_owned(), limit)].into());
    }
    let jobs = (0..JOBS).map(job).collect();
    stores[0].submit(Submission { jobs, session: None }).await.expect("jobs");
    let left = AtomicUsize::new(JOBS);
    let claim = async |store: &Arc<dyn JobStore>| {
        let session = store.open_session(Duration::from_secs(60)).await.expect("a session");
        let room = Room { session, kinds: [("k".to_owned(), 3)].into(), bytes: usize::MAX };
        while left.load(Relaxed) > 0 {
            let claimed = store.claim(room.clone()).await.expect("an answer").len();
            left.fetch_sub(claimed, Relaxed);
            if claimed == 0 && left.load(Relaxed) > 0 {
                let _ = timeout(Duration::from_secs(1), store.wakes().ready()).await;
            }
        }
    };
    join_all(stores.iter().map(claim)).await;
    for key in 0..keys {
        let mut starts = Vec::new();
        for id in (key..JOBS).step_by(keys) {
            let job = stores[0].get(&id.to_string(), Extent::Bare).await.expect("an answer").expect("the job");
            starts.push(job.started_at.expect("a start"));
        }
        starts.sort_unstable();
        for (first, from) in starts.iter().enumerate() {
            for (last, to) in starts.iter().enumerate().skip(first + burst) {
                let least = interval * (last - first + 1 - burst) as u32;
                let took = to.since(*from) + tolerance;
                assert!(took >= least, "{} starts in {took:?}", last - first + 1);
            }
        }
    }
    for store in stores {
        store.close().await;
    }
}
