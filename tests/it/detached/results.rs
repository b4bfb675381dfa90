//! Results that are hard to store, or large: they hold up no other job, and fill no memory.

use std::process::Stdio;

use futures_util::future::join_all;
use tokio::{process::Command, time::Instant};
use tonic::transport::Endpoint;
use waterwheel::proto::{DetachedJobFilter, JobState, WatchJobRequest, job_service_client::JobServiceClient};

use super::{CONFIG, Jobs, serve, work};
use crate::{
    attack::{Footprint, MIB},
    process::{Process, until},
    support::Cluster,
};

/// Runs SQL in the database of a store.
async fn sql(cluster: &Cluster, statement: &str) {
    let url = cluster.url("postgres");
    let mut command = Command::new("psql");
    command.args(["--quiet", "--set=ON_ERROR_STOP=1", "--command", statement, &url]).stdout(Stdio::null());
    assert!(command.status().await.unwrap().success(), "{statement}");
}

/// The database refuses one of many results that end together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_the_database_refuses_fails_its_job_and_holds_up_no_other() {
    let Some(cluster) = Cluster::start().await else { return };
    let url = format!("store.url = \"{}\"", cluster.url("postgres"));
    let (process, jobs) = serve(&CONFIG.replace("store.path = \"jobs.db\"", &url)).await;
    sql(&cluster, "alter table waterwheel.outputs add constraint tasteless check (bytes <> 'bad')").await;
    let payload = |number: usize| if number == 7 { "bad" } else { "good" };
    let created = join_all((0..40).map(|number| jobs.created(work("echo", payload(number))))).await;
    for (number, id) in created.iter().enumerate() {
        let ended = jobs.ended(id).await;
        if payload(number) == "good" {
            assert_eq!((ended.state(), &*ended.output), (JobState::Succeeded, &b"good"[..]));
            continue;
        }
        let attempt = ended.attempts.last().expect("an attempt");
        assert_eq!((ended.state(), ended.attempts.len()), (JobState::Failed, 1), "{ended:?}");
        assert!(attempt.message.contains("tasteless"), "the words of the database: {attempt:?}");
    }
    process.logged("the store refuses a result; the job fails").await;
    // The server goes on, and takes further jobs.
    jobs.ended(&jobs.created(work("echo", "good")).await).await;
}

const WATCHES: usize = 256;
const OUTPUT: usize = 4 << 20;

/// Each watcher reads the first event and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_that_do_not_read_an_output_hold_a_part_of_it() {
    let (process, jobs) = serve(&CONFIG.replace("store.path = \"jobs.db\"", "store.memory = true")).await;
    let id = jobs.created(work("echo", vec![7; OUTPUT - 1024])).await;
    jobs.ended(&id).await;
    let before = Footprint::of(process.id()).memory;
    let mut watchers = Vec::new();
    for _ in 0..WATCHES / 16 {
        let endpoint = Endpoint::from_shared(format!("http://{}", process.public.0)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(1 << 20);
        let client = JobServiceClient::new(endpoint.connect().await.unwrap());
        for _ in 0..16 {
            let request = WatchJobRequest { job_id: id.clone(), from_sequence: 0 };
            let mut events = client.clone().watch_job(request).await.unwrap().into_inner();
            assert!(events.message().await.unwrap().is_some());
            watchers.push(events);
        }
    }
    // The server has answered another call of each connection's threads, and has filled what the watchers take.
    for _ in 0..20 {
        jobs.ended(&jobs.created(work("echo", "")).await).await;
    }
    let held = Footprint::of(process.id()).peak.saturating_sub(before);
    eprintln!("{WATCHES} unread watches of {} MiB hold {} MiB", OUTPUT as u64 / MIB, held / MIB);
    assert!(held < 256 * MIB, "{} MiB", held / MIB);
    drop(watchers);
}

#[tokio::test]
async fn jobs_that_their_retention_removes_are_counted_in_one_line_a_minute() {
    const LINE: &str = "jobs were removed at the end of their retention";
    let begin = Instant::now();
    let process = Process::serve_logging(&CONFIG.replace("1h", "1s"), &[], "info").await;
    let jobs = Jobs::of(&process).await;
    for _ in 0..2 {
        jobs.created(work("echo", "")).await;
        until("its removal", async || jobs.list(DetachedJobFilter::default()).await.is_empty()).await;
        process.logged(LINE).await;
    }
    let log = process.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(LINE)).collect();
    let is_counted = lines[0].contains("\"count\":1") && lines.len() as u64 <= 1 + begin.elapsed().as_secs() / 60;
    assert!(is_counted, "{lines:?}");
}
