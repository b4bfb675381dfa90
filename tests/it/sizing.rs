//! Pools that choose their number of workers.

use std::{num::NonZeroUsize, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;
use waterwheel::{Job, Output, Pool, pool::PoolBuilder};

use crate::support::{kind, pass_time};

fn count(workers: usize) -> NonZeroUsize {
    NonZeroUsize::new(workers).expect("a pool has workers")
}

fn elastic(min: usize, max: usize) -> PoolBuilder {
    Pool::builder("elastic").elastic(count(min), count(max)).queue_jobs(10_000)
}

/// Open-loop load of jobs of 100 ms: they arrive at random times, independently of earlier jobs.
struct Load<'a> {
    pool: &'a Pool,
    random: StdRng,
}

impl Load<'_> {
    /// Submits `rate` jobs per second. Returns the number of workers at the end of each second.
    async fn run(&mut self, rate: f64, seconds: u64) -> Vec<usize> {
        let begin = Instant::now();
        let mut sizes = Vec::new();
        let mut next = begin;
        for second in 1..=seconds {
            // Just after the full second, when the pool has sampled its load.
            let end = begin + Duration::from_secs(second) + Duration::from_millis(1);
            loop {
                next += Duration::from_secs_f64(-self.random.random::<f64>().max(1e-9).ln() / rate);
                if next >= end {
                    break;
                }
                pass_time(next - Instant::now()).await;
                // A refused job is not retried.
                let _ = self.pool.send(Job::new("work", ""));
            }
            next = end;
            pass_time(end - Instant::now()).await;
            sizes.push(self.pool.stats().size.workers);
        }
        sizes
    }
}

/// The tests of the scheduler show which size a pool chooses. This one shows that it takes that size.
#[tokio::test(start_paused = true)]
async fn a_pool_follows_its_load_and_a_resize_sets_new_bounds() {
    let work = kind("work", |_, _| async {
        pass_time(Duration::from_millis(100)).await;
        Ok(Output::default())
    });
    let pool = elastic(1, 1).kind(work).build();
    let mut load = Load { pool: &pool, random: StdRng::seed_from_u64(2) };
    assert_eq!(load.run(40.0, 10).await, [1; 10]);
    assert!(pool.resize(count(1), count(6)));
    let up = load.run(40.0, 10).await;
    assert!(up[9] >= 4 && up.is_sorted(), "{up:?}");
    assert!(pool.stats().size.slowdown < 1.5, "{:?}", pool.stats().size);
    let down = load.run(1.0, 60).await;
    assert!(down[..25].iter().all(|size| *size == up[9]), "it shrank too early: {down:?}");
    assert!(down[59] < 4 && down.iter().rev().is_sorted(), "{down:?}");
    assert!(pool.resize(count(3), count(3)));
    assert_eq!(load.run(5.0, 60).await, [3; 60], "equal bounds fix the size");
    pool.pause();
    assert!(pool.resize(count(1), count(6)));
    assert_eq!(load.run(40.0, 5).await, [3; 5], "a paused pool keeps its size");
}
