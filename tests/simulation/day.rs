//! A day of detached jobs on virtual time. Three replicas, each with its own pool, share a store.
//!
//! Again and again, a replica crashes, or is paused or cut off from the store for longer than its lease. All replicas
//! are cut off together for shorter times.
//!
//! Schedules and callers create jobs that succeed, fail and are retried, expire, or are cancelled. A reference model
//! checks each call to the store, and is compared with the content of the store. At the end the store is empty: each
//! job has ended, and its retention is over.

mod link;
mod model;
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
    store::{
        Action, Bounds, Clock, Filter, JobName, JobStore, NewJob, Order, Size, Start, Submitted, Timestamp,
        open_shared_memory,
    },
    task::Tasks,
};

use link::{LinkState, VirtualTime, now};
use model::Model;
use replica::{KINDS, Replica, TestSchedule, policy};

use crate::run::{ENDS, count_panics, panics};

/// Environment variable with the id of a job whose events are printed.
const WATCHED: &str = "SIMULATION_JOB";
/// The code of failures that are not retried.
const REFUSED: FailureCode = FailureCode::InvalidArgument;
/// 2026-03-01T00:00:30Z, half a minute from the nearest tick.
const START: Timestamp = Timestamp::from_millis(1_772_323_230_000);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Time between two comparisons of all jobs.
const COMPARE_EVERY: Duration = Duration::from_secs(600);
/// Time after which the last job has ended and its retention is over.
const REST: Duration = HOUR;

/// Runs a seed, and prints the number of each event, then the faults. Every fourth seed, from 4, is
/// a whole day, the others are three hours.
pub(crate) fn run(seed: u64) -> ExitCode {
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    count_panics();
    let length = HOUR * if seed > 0 && seed.is_multiple_of(4) { 24 } else { 3 };
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let model = runtime.block_on(simulate(length));
    let model = model.lock();
    println!("trace: {:x}", model.trace());
    for (what, count) in &model.counts {
        println!("{ENDS} {what} {count}");
    }
    model.faults.iter().take(10).for_each(|fault| eprintln!("  {fault}"));
    if model.faults.is_empty() && panics() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn simulate(length: Duration) -> Arc<Mutex<Model>> {
    let start = Instant::now();
    let time = VirtualTime::new();
    let clock: Clock = Arc::new(move || START.plus(time.passed()));
    let store = open_shared_memory(Bounds::default(), clock.clone()).unwrap();
    let model = Arc::new(Mutex::new(Model::new(clock.clone())));
    let replicas = [-1_500, 0, 1_500].map(|ahead| Arc::new(Replica::new(&store, &model, &clock, ahead)));
    let tasks = Tasks::new();
    for replica in &replicas {
        tasks.spawn(replica.clone().run());
    }
    let end = start + length;
    let sizes =
        tokio::join!(compare(&*store, &model, end), disturb(&replicas, end), call(&replicas, &clock, &tasks, end)).0;
    if !are_flat(&sizes) {
        model.lock().fault(format!("the store grows: {sizes:?}"));
    }
    for replica in &replicas {
        replica.detached().set_schedules(Vec::new());
    }
    ticked(&mut model.lock(), clock());
    compare(&*store, &model, Instant::now() + REST).await;
    let (size, depths) = (now(store.size()).unwrap(), now(store.depths()).unwrap());
    if size != Size::default() || !depths.is_empty() {
        model.lock().fault(format!("the store is not empty: {size:?} {depths:?}"));
    }
    for replica in &replicas {
        replica.detached().stop();
    }
    tasks.wait().await;
    model
}

/// Disturbs the replicas, always sparing one. Or cuts off all of them, for too short a time to miss a tick.
async fn disturb(replicas: &[Arc<Replica>; 3], end: Instant) {
    while Instant::now() + 6 * MINUTE < end {
        let for_all = random_bool(0.2).then(|| Duration::from_secs(random_range(10..42)));
        let well = random_range(0..replicas.len());
        join_all(replicas.iter().enumerate().map(async |(number, replica)| {
            if let Some(lasts) = for_all {
                return replica.link.disturb(LinkState::Cut, lasts, false).await;
            }
            if number != well && random_bool(0.5) {
                sleep(MINUTE.mul_f64(rand::random())).await;
                if random_bool(0.1) {
                    return replica.crash();
                }
                let state = if random_bool(0.5) { LinkState::Paused } else { LinkState::Cut };
                replica.link.disturb(state, 3 * MINUTE.mul_f64(rand::random()), true).await;
            }
        }))
        .await;
        sleep(MINUTE / 3 + MINUTE.mul_f64(rand::random())).await;
    }
    sleep(end - Instant::now()).await;
}

/// Creates jobs through arbitrary replicas until `end`.
async fn call(replicas: &[Arc<Replica>; 3], clock: &Clock, tasks: &Tasks, end: Instant) {
    for number in 0.. {
        sleep(Duration::from_millis(random_range(0..10_000))).await;
        if Instant::now() >= end {
            return;
        }
        tasks.spawn(create(replicas.clone(), job(number, clock())));
    }
}

/// A job that may be delayed, and may expire before its start.
fn job(number: usize, now: Timestamp) -> NewJob {
    let kind = KINDS.choose(&mut rand::rng()).expect("a kind").name;
    let key = if random_bool(0.2) { format!("key-{}", random_range(0..4)) } else { String::new() };
    NewJob {
        start: if random_bool(0.3) { Start::After(2 * MINUTE.mul_f64(rand::random())) } else { Start::Now },
        expire_at: random_bool(0.5).then(|| now.plus(3 * MINUTE.mul_f64(rand::random()))),
        policy: policy(kind),
        ..NewJob::new(format!("call-{number}"), "work", Job::new(kind, "payload").ordering_key(key))
    }
}

/// Retries until a replica confirms the job. Cancels some of the jobs after that.
async fn create(replicas: [Arc<Replica>; 3], job: NewJob) {
    let id = job.id.clone();
    let any = || replicas.choose(&mut rand::rng()).expect("a replica");
    while !matches!(any().detached().create(job.clone()).await, Ok(Submitted::Created | Submitted::Existing(_))) {
        sleep(Duration::from_secs(1)).await;
    }
    if random_bool(0.1) {
        sleep(MINUTE.mul_f64(rand::random())).await;
        while any().link.change(vec![JobName::from(&*id)], Action::Cancel).await.is_err() {}
    }
}

/// Compares all jobs with the model at regular times until `end`. Returns the number of jobs at each time.
async fn compare(store: &dyn JobStore, model: &Mutex<Model>, end: Instant) -> Vec<usize> {
    let mut sizes = Vec::new();
    while Instant::now() < end {
        sleep(COMPARE_EVERY).await;
        let (mut jobs, mut after) = (Vec::new(), None);
        loop {
            let page = now(store.list(Filter::default(), Order::Newest, after, usize::MAX)).unwrap();
            jobs.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let size = now(store.size()).unwrap();
        model.lock().compare(&jobs, size);
        sizes.push(jobs.len());
    }
    sizes
}

/// The number of jobs does not grow after the first hour, when the retention of the first jobs has ended.
fn are_flat(sizes: &[usize]) -> bool {
    let (first, second) = sizes[6..].split_at((sizes.len() - 6) / 2);
    let most = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or_default();
    most(second) <= most(first) * 5 / 4
}

/// Each tick of each schedule until `now` created one job, or was skipped because the previous job had not ended.
fn ticked(model: &mut Model, now: Timestamp) {
    let ticks = TestSchedule::all().into_iter().flat_map(|schedule| schedule.ticks(now)).collect::<BTreeSet<_>>();
    let fired: BTreeSet<_> = model.ticks.keys().filter(|(_, at)| *at > START).cloned().collect();
    if let Some(tick) = ticks.symmetric_difference(&fired).next() {
        let (ticks, fired) = (ticks.len(), fired.len());
        model.fault(format!("of {ticks} ticks, {fired} were fired; the first that differs is {tick:?}"));
    }
}
