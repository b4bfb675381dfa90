use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;
use waterwheel::{Job, Pool};

use crate::support::pass_time;

/// Jobs that come at random times, whether earlier ones have ended or not.
pub(super) struct Load<'a> {
    pool: &'a Pool,
    random: StdRng,
}

impl<'a> Load<'a> {
    pub(super) fn new(pool: &'a Pool, seed: u64) -> Self {
        Self { pool, random: StdRng::seed_from_u64(seed) }
    }

    /// So many jobs a second, for so many seconds. Returns the number of workers at the end of each second.
    pub(super) async fn run(&mut self, rate: f64, seconds: usize) -> Vec<usize> {
        let begin = Instant::now();
        let mut sizes = Vec::new();
        let mut next = begin;
        for second in 1..=seconds {
            // A little after the full second, when the pool has looked at its load.
            let end = begin + Duration::from_secs(second as u64) + Duration::from_millis(1);
            loop {
                next += Duration::from_secs_f64(-self.random.random::<f64>().max(1e-9).ln() / rate);
                if next >= end {
                    break;
                }
                pass_time(next - Instant::now()).await;
                // Whoever is refused stays away.
                let _ = self.pool.send(Job::new("work", ""));
            }
            next = end;
            pass_time(end - Instant::now()).await;
            sizes.push(self.pool.stats().size.workers);
        }
        sizes
    }
}

/// Whether the sizes only grow or only shrink.
pub(super) fn monotonic(sizes: &[usize]) -> bool {
    sizes.is_sorted() || sizes.iter().rev().is_sorted()
}
