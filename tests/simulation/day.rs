//! A day of detached jobs on virtual time: three replicas with pools of their own share a store. Each is paused for longer
//! than its lease, cut off from the store, or crashes, again and again; all of them are cut off at once for a shorter time.
//!
//! Schedules and callers create jobs that succeed, fail and are tried again, expire, or are cancelled. The books hold each
//! call to the store against what may happen, and all that the store has against themselves. At the end the store is
//! empty: each job has ended, and its retention is over.

mod books;
mod link;
mod replica;

use std::{collections::BTreeSet, process::ExitCode, sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use rand::{SeedableRng, random_bool, random_range, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};
use waterwheel::{
    Job,
    model::FailureCode,
    store::{Action, Bounds, Clock, Filter, JobStore as _, MemoryStore, NewJob, Size, Start, Submitted, Timestamp},
    task::Tasks,
};

use books::Books;
use link::Weather;
use replica::{KINDS, Replica, Rhythm, policy};

use crate::run::{ENDS, count_panics, panics};

/// A job whose life is printed.
const WATCHED: &str = "SIMULATION_JOB";
/// The code of failures that are not tried again.
const REFUSED: FailureCode = FailureCode::InvalidArgument;
/// 2026-03-01T00:00:30Z, half a minute away from all ticks.
const START: Timestamp = Timestamp::from_millis(1_772_323_230_000);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Between two looks at all jobs.
const LOOK: Duration = Duration::from_secs(600);
/// The last job has ended, and its retention is over.
const REST: Duration = HOUR;

/// Runs a seed, and prints how often what happened, then what is wrong. The first seed is a whole day, and so is each fourth one after it.
pub(crate) fn run(seed: u64) -> ExitCode {
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    count_panics();
    let length = HOUR * if seed % 4 == 1 { 24 } else { 3 };
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let books = runtime.block_on(live(length));
    let books = books.lock();
    println!("trace: {:x}", books.trace());
    for (what, count) in &books.counts {
        println!("{ENDS} {what} {count}");
    }
    books.faults.iter().take(10).for_each(|fault| eprintln!("  {fault}"));
    if books.faults.is_empty() && panics() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn live(length: Duration) -> Arc<Mutex<Books>> {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || START.plus(start.elapsed()));
    let store = Arc::new(MemoryStore::new(Bounds::default(), clock.clone()));
    let books = Arc::new(Mutex::new(Books::new(clock.clone())));
    let replicas = [-1_500, 0, 1_500].map(|ahead| Arc::new(Replica::new(&store, &books, &clock, ahead)));
    let tasks = Tasks::new();
    for replica in &replicas {
        tasks.spawn(replica.clone().run());
    }
    let end = start + length;
    let sizes = tokio::join!(look(&store, &books, end), befall(&replicas, end), call(&replicas, &clock, &tasks, end)).0;
    if !are_flat(&sizes) {
        books.lock().fault(format!("the store grows: {sizes:?}"));
    }
    for replica in &replicas {
        replica.detached().set_schedules(Vec::new());
    }
    ticked(&mut books.lock(), clock());
    look(&store, &books, Instant::now() + REST).await;
    let (size, depths) = (store.size().await.unwrap(), store.depths().await.unwrap());
    if size != Size::default() || !depths.is_empty() {
        books.lock().fault(format!("the store is not empty: {size:?} {depths:?}"));
    }
    for replica in &replicas {
        replica.detached().stop();
    }
    tasks.wait().await;
    books
}

/// Disturbs the replicas, but for one at a time; or cuts all of them off, for less than it takes to miss a tick.
async fn befall(replicas: &[Arc<Replica>; 3], end: Instant) {
    while Instant::now() + 6 * MINUTE < end {
        let for_all = random_bool(0.2).then(|| Duration::from_secs(random_range(10..42)));
        let well = random_range(0..replicas.len());
        join_all(replicas.iter().enumerate().map(async |(number, replica)| {
            if let Some(lasts) = for_all {
                return replica.link.suffer(Weather::Cut, lasts, false).await;
            }
            if number != well && random_bool(0.5) {
                sleep(MINUTE.mul_f64(rand::random())).await;
                if random_bool(0.1) {
                    return replica.crash();
                }
                let weather = if random_bool(0.5) { Weather::Paused } else { Weather::Cut };
                replica.link.suffer(weather, 3 * MINUTE.mul_f64(rand::random()), true).await;
            }
        }))
        .await;
        sleep(MINUTE / 3 + MINUTE.mul_f64(rand::random())).await;
    }
    sleep(end - Instant::now()).await;
}

/// Creates jobs by any of the replicas, until `end`.
async fn call(replicas: &[Arc<Replica>; 3], clock: &Clock, tasks: &Tasks, end: Instant) {
    for number in 0.. {
        sleep(Duration::from_millis(random_range(0..10_000))).await;
        if Instant::now() >= end {
            return;
        }
        tasks.spawn(create(replicas.clone(), job(number, clock())));
    }
}

/// A job that may have to wait, and may expire meanwhile.
fn job(number: usize, now: Timestamp) -> NewJob {
    let kind = KINDS.choose(&mut rand::rng()).expect("a kind").name;
    let key = if random_bool(0.2) { format!("key-{}", random_range(0..4)) } else { String::new() };
    let policy = policy(kind);
    NewJob {
        start: if random_bool(0.3) { Start::After(2 * MINUTE.mul_f64(rand::random())) } else { Start::Now },
        expire_at: random_bool(0.5).then(|| now.plus(3 * MINUTE.mul_f64(rand::random()))),
        retry: policy.retry,
        retain_for: policy.retain_for,
        retain_dead_for: policy.retain_dead_for,
        ..NewJob::new(format!("call-{number}"), "work", Job::new(kind, "payload").ordering_key(key))
    }
}

/// Asks until a replica says that the job is there, and some jobs are cancelled then.
async fn create(replicas: [Arc<Replica>; 3], job: NewJob) {
    let id = job.id.clone();
    let any = || replicas.choose(&mut rand::rng()).expect("a replica");
    while !matches!(any().detached().create(job.clone()).await, Ok(Some(Submitted::Created | Submitted::Existing(_)))) {
        sleep(Duration::from_secs(1)).await;
    }
    if random_bool(0.1) {
        sleep(MINUTE.mul_f64(rand::random())).await;
        while any().link.change(vec![id.clone()], Action::Cancel).await.is_err() {}
    }
}

/// Compares all jobs with the books, again and again until `end`. Gives how many there were each time.
async fn look(store: &MemoryStore, books: &Mutex<Books>, end: Instant) -> Vec<usize> {
    let mut sizes = Vec::new();
    while Instant::now() < end {
        sleep(LOOK).await;
        let (mut jobs, mut page) = (Vec::new(), None);
        loop {
            let found = store.list(Filter::default(), page, usize::MAX).await.unwrap();
            jobs.extend(found.jobs);
            page = found.next;
            if page.is_none() {
                break;
            }
        }
        let size = store.size().await.unwrap();
        books.lock().compare(&jobs, size);
        sizes.push(jobs.len());
    }
    sizes
}

/// The number of jobs does not grow once the first ones are past their retention, which takes less than an hour.
fn are_flat(sizes: &[usize]) -> bool {
    let (first, second) = sizes[6..].split_at((sizes.len() - 6) / 2);
    let most = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or_default();
    most(second) <= most(first) * 5 / 4
}

/// Each tick of each schedule until `now` created one job, or was left out because the one before had not ended.
fn ticked(books: &mut Books, now: Timestamp) {
    let ticks = Rhythm::all().into_iter().flat_map(|rhythm| rhythm.ticks(now)).collect::<BTreeSet<_>>();
    let fired: BTreeSet<_> = books.ticks.keys().filter(|(_, at)| *at > START).cloned().collect();
    if let Some(tick) = ticks.symmetric_difference(&fired).next() {
        let (ticks, fired) = (ticks.len(), fired.len());
        books.fault(format!("of {ticks} ticks, {fired} were fired; the first that differs is {tick:?}"));
    }
}
