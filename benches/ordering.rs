//! What ordering keys cost: 1,000 keys × 1,000 jobs over 16 workers, beside as many jobs without a key, in turn and in
//! one process. Each job checks that it is alone with its key, and the next of it.
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
/// Tasks that submit, each the jobs of its own keys.
const CALLERS: usize = 4;
/// Jobs that each of them has under way.
const WINDOW: usize = 256;
const ROUNDS: usize = 5;

/// What is known of one key.
#[derive(Default)]
struct Line {
    busy: AtomicBool,
    next: AtomicUsize,
}

struct Ordered(Arc<Vec<Line>>);

impl Handler for Ordered {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        // The same work without a key, but for what is asserted.
        let keyed = !job.ordering_key.is_empty();
        let (key, number) = std::str::from_utf8(&job.payload).unwrap().split_once(' ').unwrap();
        let line = &self.0[key.parse::<usize>().unwrap()];
        let alone = !line.busy.swap(true, SeqCst);
        yield_now().await;
        let in_turn = line.next.fetch_add(1, SeqCst) == number.parse::<usize>().unwrap();
        line.busy.store(false, SeqCst);
        assert!(alone || !keyed, "two jobs of a key at once");
        assert!(in_turn || !keyed, "a job of a key out of turn");
        Ok(Output::default())
    }
}

/// Submits the jobs of one caller's keys, the keys in turn, and waits for their ends.
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

/// Runs all jobs on a pool of their own. Returns the wall time.
fn round(runtime: &Runtime, keyed: bool) -> Duration {
    runtime.block_on(async {
        let lines: Arc<Vec<Line>> = Arc::new(std::iter::repeat_with(Line::default).take(KEYS).collect());
        let kind = Kind::new("ordered", {
            let lines = Arc::clone(&lines);
            move || Ordered(Arc::clone(&lines))
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
        assert!(lines.iter().all(|line| line.next.load(SeqCst) == JOBS), "every job ran");
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
