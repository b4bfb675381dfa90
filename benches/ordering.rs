//! The cost of ordering keys: 1,000 keys × 1,000 jobs on 16 workers, compared with as many jobs without a key, in one
//! process. Each job checks that it is the only running job of its key, and the next one in order.
//!
//! It prints the throughput of both in every round, and the median of their ratio.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints, and a failed step is its failure"
)]

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinSet, yield_now},
    time::Instant,
};
use waterwheel::{
    Job, Output, Pool, WhenFull,
    handler::{Context, Handler, Kind},
    model::HandlerError,
};

const KEYS: usize = 1_000;
const JOBS: usize = 1_000;
const WORKERS: usize = 16;
/// Number of tasks. Each submits the jobs of its own keys.
const CALLERS: usize = 4;
/// Number of concurrent jobs of each task.
const WINDOW: usize = 256;
const ROUNDS: usize = 5;

/// State of one key.
#[derive(Default)]
struct KeyState {
    busy: AtomicBool,
    next: AtomicUsize,
}

struct Ordered(Arc<Vec<KeyState>>);

impl Handler for Ordered {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        // Without a key, the same work is done, but not asserted.
        let keyed = !job.ordering_key.is_empty();
        let (key, number) = std::str::from_utf8(&job.payload).unwrap().split_once(' ').unwrap();
        let state = &self.0[key.parse::<usize>().unwrap()];
        let alone = !state.busy.swap(true, SeqCst);
        yield_now().await;
        let in_order = state.next.fetch_add(1, SeqCst) == number.parse::<usize>().unwrap();
        state.busy.store(false, SeqCst);
        assert!(alone || !keyed, "two jobs of a key ran at the same time");
        assert!(in_order || !keyed, "a job of a key ran out of order");
        Ok(Output::default())
    }
}

/// Submits the jobs of one caller, alternating its keys, and waits for their ends.
async fn call(pool: Pool, caller: usize, keyed: bool) {
    let mut running = FuturesUnordered::new();
    for number in 0..JOBS {
        for key in (caller..KEYS).step_by(CALLERS) {
            let job = Job::new("ordered", format!("{key} {number}")).when_full(WhenFull::Wait);
            running.push(pool.submit(if keyed { job.ordering_key(key.to_string()) } else { job }));
            if running.len() == WINDOW {
                running.next().await.unwrap().unwrap();
            }
        }
    }
    while let Some(ended) = running.next().await {
        ended.unwrap();
    }
}

/// Runs all jobs on a new pool. Returns the wall time.
fn round(runtime: &Runtime, keyed: bool) -> Duration {
    runtime.block_on(async {
        let keys: Arc<Vec<KeyState>> = Arc::new(std::iter::repeat_with(KeyState::default).take(KEYS).collect());
        let kind = Kind::new("ordered", {
            let keys = Arc::clone(&keys);
            move || Ordered(Arc::clone(&keys))
        });
        let workers = NonZeroUsize::new(WORKERS).unwrap();
        let pool = Pool::builder("bench").workers(workers).queue_jobs(CALLERS * WINDOW).kind(kind).build();
        let begin = Instant::now();
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            callers.spawn(call(pool.clone(), caller, keyed));
        }
        callers.join_all().await;
        let took = begin.elapsed();
        assert!(keys.iter().all(|state| state.next.load(SeqCst) == JOBS), "every job ran");
        took
    })
}

fn main() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let rate = |took: Duration| (KEYS * JOBS) as f64 / took.as_secs_f64();
    let mut ratios: Vec<f64> = (1..=ROUNDS)
        .map(|number| {
            let (unkeyed, keyed) = (rate(round(&runtime, false)), rate(round(&runtime, true)));
            println!("round {number}: unkeyed {unkeyed:.0}/s, keyed {keyed:.0}/s, ratio {:.2}", keyed / unkeyed);
            keyed / unkeyed
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3}", ratios[ROUNDS / 2]);
}
