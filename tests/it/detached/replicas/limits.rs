//! Limits of a kind hold over all servers of a store.

use std::{collections::BTreeMap, fs};

use futures_util::{StreamExt as _, stream};
use tempfile::TempDir;
use waterwheel::proto::{CreateJobRequest, Job, JobState};

use crate::{
    detached::{Jobs, work},
    process::{Process, config_file},
    support::{Cluster, size},
};

const MOST: usize = 5;
const RATE: usize = 100;
const KEY_RATE: usize = 40;
const BURST: usize = 3;

/// A program that writes down when it begins and when it ends. Its payload is the limit key.
fn config(store: &str, log: &str) -> String {
    let script = format!(
        "key=$(cat); echo \"$(date +%s%N) 1 $key\" >> {log}; sleep 0.01; echo \"$(date +%s%N) 0 $key\" >> {log}"
    );
    format!(
        r#"
        store.url = "{store}"
        pool.one.workers = 8
        [kind.fragile]
        pool = "one"
        exec = ["/bin/sh", "-c", '{script}']
        limit = {{ concurrency = {MOST}, per_key = {{ concurrency = 1 }} }}
        [kind.paced]
        pool = "one"
        builtin = "echo"
        limit = {{ rate = {RATE}, burst = {BURST} }}
        [kind.keyed]
        pool = "one"
        builtin = "echo"
        limit.share = "divide"
        limit.per_key = {{ rate = {KEY_RATE}, burst = {BURST} }}
    "#
    )
}

fn fragile(id: usize, key: usize) -> CreateJobRequest {
    let request = work("fragile", key.to_string());
    let job = Job { limit_key: key.to_string(), ..request.job.unwrap() };
    CreateJobRequest { job: Some(job), job_id: id.to_string(), ..request }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_kind_and_of_its_keys_hold_over_all_servers() {
    let Some(cluster) = Cluster::start().await else { return };
    let logs = TempDir::new().unwrap();
    let log = logs.path().join("runs");
    let (_dir, path) = config_file(&config(&cluster.url("postgres"), log.to_str().unwrap()));
    let [first, second, third] =
        [Process::serve_file(&path).await, Process::serve_file(&path).await, Process::serve_file(&path).await];
    let servers = [Jobs::of(&first).await, Jobs::of(&second).await, Jobs::of(&third).await];
    let (all, keys) = (size("WATERWHEEL_LIMITED", 120), size("WATERWHEEL_KEYS", 10));
    // Every fourth job has the same key.
    let key = |id: usize| if id.is_multiple_of(4) { 0 } else { id % keys };
    let created = stream::iter(0..all).map(|id| servers[id % 3].created(fragile(id, key(id))));
    created.buffer_unordered(16).for_each(async |_| ()).await;
    for id in 0..all {
        let job = servers[0].ended(&id.to_string()).await;
        assert_eq!((job.state(), job.attempts.len()), (JobState::Succeeded, 1), "{job:?}");
    }

    let mut events: Vec<(u64, usize, usize)> = fs::read_to_string(&log).unwrap().lines().map(event).collect();
    events.sort_unstable();
    assert_eq!(events.len(), 2 * all);
    let (mut running, mut most, mut of_key) = (0, 0, BTreeMap::<_, usize>::new());
    for (_, is_begin, key) in events {
        let own = of_key.entry(key).or_default();
        if is_begin == 1 {
            (running, *own) = (running + 1, *own + 1);
            assert!(*own == 1 && running <= MOST, "{running} jobs run, {own} of the key {key}");
            most = most.max(running);
        } else {
            (running, *own) = (running - 1, *own - 1);
        }
    }
    assert!(most > 1, "the servers shared no work");
    keep_the_rate(&servers, "paced", RATE, 1).await;
    keep_the_rate(&servers, "keyed", KEY_RATE, 3).await;
}

/// In each window, at most the burst and the starts of its time. The times are those of the database. Of limit keys,
/// two servers that look at the same moment may both take a start that has just come.
async fn keep_the_rate(servers: &[Jobs; 3], kind: &str, rate: usize, keys: usize) {
    let paced = |id: usize| {
        let request = work(kind, "x");
        let job = Job { limit_key: (id % keys).to_string(), ..request.job.unwrap() };
        CreateJobRequest { job: Some(job), job_id: format!("{kind}-{id}"), ..request }
    };
    let created = stream::iter(0..60).map(|id| servers[id % 3].created(paced(id)));
    created.buffer_unordered(16).for_each(async |_| ()).await;
    let mut starts = vec![Vec::new(); keys];
    for id in 0..60 {
        let job = servers[0].ended(&format!("{kind}-{id}")).await;
        let begin = job.attempts[0].start_time.unwrap();
        starts[id % keys].push(begin.seconds * 1000 + i64::from(begin.nanos) / 1_000_000);
    }
    for mut starts in starts {
        starts.sort_unstable();
        for (first, from) in starts.iter().enumerate() {
            for (last, to) in starts.iter().enumerate().skip(first + BURST) {
                let most_early = if keys > 1 { 1 } else { 0 };
                let least = ((last + 1 - first - BURST - most_early) * 1000 / rate) as i64;
                assert!(to - from >= least, "{} starts in {} ms: {starts:?}", last + 1 - first, to - from);
            }
        }
    }
}

/// Time, whether it is a begin, and key.
fn event(line: &str) -> (u64, usize, usize) {
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap().parse::<u64>().unwrap();
    (next(), next() as usize, next() as usize)
}
