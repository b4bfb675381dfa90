//! `SubmitMany`: backpressure instead of refusals, a bounded window, and an outcome for every job and call.
//!
// tidy: real time, because a test concludes that the server stopped reading when nothing changes for a while.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};
use waterwheel::proto::{Job, PoolStats, SubmitManyRequest, SubmitManyResponse, submit_many_response::Outcome};

use crate::{
    process::{PATIENCE, Process},
    refusal::{Refusal, rebuilt},
    service::{Caller, counts, job, queued, waiting},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    server.submit_many_window = 16
    drain = { notice = "100ms", finish = "500ms", kill = "500ms" }
    [pool.one]
    workers = 2
    queue = { jobs = 4 }
    cancel_grace = "50ms"
"#;

/// The client side of one call.
struct Many {
    jobs: mpsc::Sender<SubmitManyRequest>,
    results: Streaming<SubmitManyResponse>,
}

impl Many {
    /// Opens a call on a new connection. `ahead` limits the number of unsent jobs.
    async fn open(process: &Process, ahead: usize, timeout: Option<&str>) -> Self {
        let (jobs, requests) = mpsc::channel(ahead);
        let mut request = Request::new(ReceiverStream::new(requests));
        if let Some(timeout) = timeout {
            request.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
        }
        let results = process.public.client().await.submit_many(request).await.unwrap().into_inner();
        Self { jobs, results }
    }

    async fn send(&self, tag: impl ToString, job: Job) {
        self.jobs.send(SubmitManyRequest { tag: tag.to_string(), job: Some(Box::new(job)) }).await.unwrap();
    }

    async fn next(&mut self) -> Result<Option<(String, Result<Vec<u8>, Status>)>, Status> {
        let message = timeout(PATIENCE, self.results.message()).await.expect("a result, or an end")?;
        Ok(message.map(|SubmitManyResponse { tag, outcome }| match outcome.expect("an outcome") {
            Outcome::Result(result) => (tag, Ok(result.output.to_vec())),
            Outcome::Failure(failure) => (tag, Err(rebuilt(failure))),
        }))
    }

    /// Reads until the call ends. Returns the results by tag, and the status unless it is OK.
    async fn rest(mut self) -> (BTreeMap<String, Result<Vec<u8>, Status>>, Option<Status>) {
        let mut results = BTreeMap::new();
        loop {
            match self.next().await {
                Ok(Some((tag, result))) => {
                    assert!(results.insert(tag.clone(), result).is_none(), "{tag} ended twice");
                }
                Ok(None) => return (results, None),
                Err(status) => return (results, Some(status)),
            }
        }
    }
}

/// Number of jobs that the service has read from the call.
fn read(pool: &PoolStats) -> u64 {
    counts(pool).accepted + waiting(pool)
}

/// Waits until `reached`, and then until nothing changes for a while.
async fn at_rest(caller: &Caller, reached: impl Fn(&PoolStats) -> bool) -> PoolStats {
    caller.until(reached).await;
    let (mut last, mut same) = (caller.pool().await, 0);
    while same < 3 {
        sleep(Duration::from_millis(300)).await;
        let pool = caller.pool().await;
        let state = |pool: &PoolStats| (counts(pool).clone(), queued(pool), waiting(pool), pool.in_flight);
        same = if state(&pool) == state(&last) { same + 1 } else { 0 };
        last = pool;
    }
    last
}

#[tokio::test]
async fn a_full_pool_stops_reading_and_refuses_no_job() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let busy = [(); 2].map(|()| caller.leave(job("sleep", "60000")));
    caller.until(|pool| pool.in_flight == 2).await;
    let mut many = Many::open(&process, 1, None).await;
    // They fill the 8 MiB window of the stream, so flow control stops the sender.
    let sent = tokio::spawn({
        let jobs = many.jobs.clone();
        async move {
            for tag in 0..160 {
                let job = Job { payload: format!("{{\"ms\":1{}}}", " ".repeat(64 << 10)).into(), ..job("sleep", "") };
                jobs.send(SubmitManyRequest { tag: tag.to_string(), job: Some(Box::new(job)) }).await.unwrap();
            }
        }
    });
    let pool = at_rest(&caller, |pool| waiting(pool) == 1).await;
    assert_eq!(read(&pool), 7, "two others run, four are queued, one waits, and the rest are not read: {pool:?}");
    assert!(!sent.is_finished(), "flow control must stop the sender");
    busy.into_iter().for_each(|call| call.abort());
    let mut completed = 0;
    while completed < 160 {
        let (tag, result) = many.next().await.unwrap().expect("the call stays open");
        result.unwrap_or_else(|status| panic!("{tag}: {status:?}"));
        completed += 1;
    }
    let pool = caller.pool().await;
    assert_eq!((counts(&pool).accepted, counts(&pool).rejected.len()), (162, 0), "{pool:?}");
}

#[tokio::test]
async fn unread_results_occupy_no_worker_and_stop_reading() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let many = Many::open(&process, 1, None).await;
    let jobs = many.jobs.clone();
    let sender = tokio::spawn(async move {
        // Outputs as large as the windows of HTTP/2, so that only a few fit into its buffers.
        for tag in 0..200 {
            let job = job("echo", vec![7; 512 << 10]);
            jobs.send(SubmitManyRequest { tag: tag.to_string(), job: Some(Box::new(job)) }).await.unwrap();
        }
    });
    let pool = at_rest(&caller, |pool| counts(pool).completed >= 9).await;
    let done = counts(&pool).completed;
    assert_eq!((pool.in_flight, queued(&pool)), (0, 0), "{pool:?}");
    // Here the limit of unread bytes applies before the window. HTTP/2 buffers a few results more.
    assert!(done < 40, "{done} jobs were read ahead of a reader that does not read");
    // Other calls are not affected.
    caller.leave(job("echo", "hi")).await.unwrap().unwrap();
    let (results, end) = {
        let mut many = many;
        let mut seen = 0;
        while seen < 200 {
            many.next().await.unwrap().unwrap().1.unwrap();
            seen += 1;
        }
        sender.await.unwrap();
        drop(std::mem::replace(&mut many.jobs, mpsc::channel(1).0));
        many.rest().await
    };
    assert!(results.is_empty() && end.is_none(), "{end:?}");
}

#[tokio::test]
async fn no_more_jobs_than_the_window_are_in_flight() {
    let process = Process::serve(&CONFIG.replace("workers = 2", "workers = 64").replace("= 16", "= 5")).await;
    let caller = Caller::of(process.public).await;
    let stays = Many::open(&process, 100, None).await;
    for tag in 0..50 {
        stays.send(tag, job("sleep", "60000")).await;
    }
    assert_eq!(at_rest(&caller, |pool| pool.in_flight == 5).await.in_flight, 5);
    drop(stays);
    caller.until(|pool| pool.in_flight == 0).await;

    let many = Many::open(&process, 100, None).await;
    for tag in 0..50 {
        many.send(tag, job("sleep", "20")).await;
    }
    let Many { jobs, results } = many;
    drop(jobs);
    let rest = tokio::spawn(Many { jobs: mpsc::channel(1).0, results }.rest());
    let mut most = 0;
    while !rest.is_finished() {
        most = most.max(caller.pool().await.in_flight);
    }
    let (results, end) = rest.await.unwrap();
    assert!(results.len() == 50 && most <= 5, "{most} at once");
    assert!(end.is_none() && results.values().all(Result::is_ok), "{results:?}");
}

#[tokio::test]
async fn cancelling_a_call_cancels_its_jobs() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let many = Many::open(&process, 8, None).await;
    for tag in 0..7 {
        many.send(tag, job("sleep", "60000")).await;
    }
    caller.until(|pool| (pool.in_flight, queued(pool), waiting(pool)) == (2, 4, 1)).await;
    drop(many);
    let took = caller.until(|pool| (pool.in_flight, queued(pool), waiting(pool)) == (0, 0, 0)).await;
    assert!(took < Duration::from_secs(20), "{took:?}: the jobs sleep for a minute");
    let pool = caller.pool().await;
    assert_eq!(counts(&pool).cancelled, counts(&pool).accepted, "{pool:?}");
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_after_its_jobs() {
    // The reply margin is long enough for the results and the status.
    let config = format!("deadline.reply_margin = \"1s\"\n{CONFIG}").replace("server.submit_many_window = 16", "");
    let config = format!("{config}\n[server]\nsubmit_many_window = 3\n");
    let process = Process::serve(&config).await;
    let caller = Caller::of(process.public).await;
    let begin = Instant::now();
    let many = Many::open(&process, 8, Some("10S")).await;
    for tag in 0..3 {
        many.send(tag, job("sleep", r#"{"ms":60000,"ignore_cancel":true}"#)).await;
    }
    // The request stream stays open and the window is full. The status is sent all the same.
    let keep = many.jobs.clone();
    let (results, end) = many.rest().await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(9), "{took:?}");
    let ends: BTreeMap<_, _> =
        results.into_iter().map(|(tag, result)| (tag, Refusal::of_call(result.unwrap_err(), false).reason())).collect();
    let expected = [("0", "RUN_TIMEOUT"), ("1", "RUN_TIMEOUT"), ("2", "EXPIRED_IN_QUEUE")];
    assert_eq!(ends, expected.map(|(tag, reason)| (tag.to_owned(), reason.to_owned())).into());
    let end = Refusal::of_call(end.expect("not OK"), false);
    assert_eq!((end.code(), end.facts()["execution"].as_str()), (Code::DeadlineExceeded, "UNKNOWN"), "{end:?}");
    assert_eq!((end.pushback(), end.request_id().is_some()), (Some(-1), true), "{end:?}");
    caller.until(|pool| pool.in_flight == 0).await;
    drop(keep);
}

#[tokio::test]
async fn an_invalid_job_fails_only_itself() {
    let process = Process::serve(CONFIG).await;
    let mut many = Many::open(&process, 8, None).await;
    many.send("good", job("echo", "1")).await;
    many.send("unknown", job("ecko", "")).await;
    many.send("invalid", Job { criticality: 9, ..job("echo", "") }).await;
    many.jobs.send(SubmitManyRequest { tag: "absent".into(), job: None }).await.unwrap();
    many.send("t".repeat(65), job("echo", "")).await;
    many.send("large", job("echo", vec![0; (4 << 20) + 1])).await;
    many.send("better", job("echo", "2")).await;
    drop(std::mem::replace(&mut many.jobs, mpsc::channel(1).0));
    let (mut results, end) = many.rest().await;
    assert!(end.is_none(), "{end:?}");
    for (tag, output) in [("good", "1"), ("better", "2")] {
        assert_eq!(results.remove(tag).unwrap().unwrap(), output.as_bytes());
    }
    let reasons: BTreeMap<_, _> =
        results.into_iter().map(|(tag, result)| (tag, Refusal::of_call(result.unwrap_err(), false).reason())).collect();
    let long = "t".repeat(65);
    let expected = [
        ("absent", "INVALID_FIELD"),
        ("invalid", "INVALID_FIELD"),
        ("large", "PAYLOAD_TOO_LARGE"),
        (&long, "INVALID_FIELD"),
        ("unknown", "UNKNOWN_KIND"),
    ];
    assert_eq!(reasons, expected.map(|(tag, reason)| (tag.to_owned(), reason.to_owned())).into());
}

#[tokio::test]
async fn a_drain_ends_a_call_after_its_accepted_jobs() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let many = Many::open(&process, 8, None).await;
    for (tag, millis) in [("short", "300"), ("endless", "60000")] {
        many.send(tag, job("sleep", millis)).await;
    }
    caller.until(|pool| pool.in_flight == 2).await;
    process.signal(rustix::process::Signal::TERM);
    let (results, end) = many.rest().await;
    assert!(results["short"].is_ok(), "{results:?}");
    let killed = Refusal::of_call(results["endless"].clone().unwrap_err(), false);
    assert_eq!((killed.code(), killed.reason().as_str()), (Code::Aborted, "DRAIN_KILLED"));
    let end = Refusal::of_call(end.expect("not OK"), false);
    assert_eq!((end.code(), end.reason().as_str()), (Code::Unavailable, "DRAINING"), "{end:?}");
    assert_eq!((end.pushback(), end.facts()["execution"].as_str()), (None, "NOT_STARTED"));
    assert_eq!(process.ended().await.code, Some(3));
}

#[tokio::test]
async fn a_call_whose_request_stream_ended_completes_during_a_drain() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let mut many = Many::open(&process, 8, None).await;
    many.send("only", job("sleep", "300")).await;
    caller.until(|pool| pool.in_flight == 1).await;
    drop(std::mem::replace(&mut many.jobs, mpsc::channel(1).0));
    process.signal(rustix::process::Signal::TERM);
    let (results, end) = many.rest().await;
    assert!(end.is_none() && results["only"].is_ok(), "{results:?} {end:?}");
    assert_eq!(process.ended().await.code, Some(0));
}
