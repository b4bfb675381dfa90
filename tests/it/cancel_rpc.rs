//! When a caller cancels or disconnects, its queued and running jobs are cancelled within 50 ms, and no others.
//!
// tidy: real time, because the tests measure a real server.

mod bound;

use std::time::Duration;

use tokio::{io::AsyncWriteExt, task::JoinSet, time::Instant};
use waterwheel::proto::{StreamRequest, SubmitRequest};

use crate::{
    process::Process,
    service::{Address, Caller, counts, job, queued},
};

/// The promised bound, which `bound` measures.
const FREED_WITHIN: Duration = Duration::from_millis(50);
/// Much shorter than any job here takes to end by itself or by force, and long enough for a slow machine.
const LONG_BEFORE: Duration = Duration::from_secs(20);

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    server.threads = 2
    deadline.default = "10m"
    [pool.one]
    workers = 2
    queue = { jobs = 4 }
    cancel_grace = "5m"
    [kind.program]
    pool = "one"
    exec = ["/bin/sleep", "600"]
"#;

/// Starts six `Submit` calls, and waits until two jobs run and four are queued.
async fn fill(caller: &Caller, kind: &'static str) -> JoinSet<()> {
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let mut client = caller.0.clone();
        calls.spawn(async move {
            let end = client.submit(SubmitRequest { job: Some(job(kind, "600000")) }).await;
            panic!("a cancelled call received a response: {end:?}");
        });
    }
    caller.until(|pool| (pool.in_flight, queued(pool)) == (2, 4)).await;
    calls
}

/// Waits until no job runs or is queued, and checks how long that took.
async fn freed(observer: &Caller, since: Instant, accepted: u64) {
    observer.until(|pool| (pool.in_flight, queued(pool)) == (0, 0)).await;
    let took = since.elapsed();
    assert!(took < LONG_BEFORE, "{took:?}");
    let pool = observer.pool().await;
    assert_eq!((counts(&pool).accepted, counts(&pool).cancelled), (accepted, accepted), "{pool:?}");
    assert_eq!(pool.queue.unwrap().bytes, 0);
}

#[tokio::test]
async fn cancelling_calls_cancels_their_jobs() {
    for kind in ["sleep", "program"] {
        let process = Process::serve(CONFIG).await;
        let (caller, observer) = (Caller::of(process.public).await, Caller::of(process.public).await);
        let mut calls = fill(&caller, kind).await;
        let since = Instant::now();
        calls.abort_all();
        freed(&observer, since, 6).await;
    }
}

#[tokio::test]
async fn cancelling_streams_cancels_their_jobs() {
    let process = Process::serve(CONFIG).await;
    let observer = Caller::of(process.public).await;
    let mut client = observer.0.clone();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let request = StreamRequest { job: Some(job("sleep", "600000")) };
        streams.push(client.stream(request).await.unwrap().into_inner());
    }
    let since = Instant::now();
    drop(streams);
    freed(&observer, since, 2).await;
}

#[tokio::test]
async fn cancelling_some_calls_does_not_cancel_jobs_of_other_calls() {
    let process = Process::serve(CONFIG).await;
    let observer = Caller::of(process.public).await;
    let mut calls = fill(&observer, "sleep").await;
    let other = observer.leave(job("sleep", "1"));
    let since = Instant::now();
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    other.await.unwrap().unwrap();
    assert!(since.elapsed() < LONG_BEFORE, "{:?}", since.elapsed());
}

/// A TCP proxy whose connection the test can abort. A tonic client would close it gracefully.
async fn tcp_proxy(to: Address) -> (Address, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address(listener.local_addr().unwrap());
    let proxy = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(to.0).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        let _ = far.shutdown().await;
    });
    (address, proxy)
}

#[tokio::test]
async fn a_broken_connection_cancels_the_jobs_of_its_calls() {
    let process = Process::serve(CONFIG).await;
    let observer = Caller::of(process.public).await;
    let (address, proxy) = tcp_proxy(process.public).await;
    let caller = Caller::of(address).await;
    let calls: Vec<_> = (0..6).map(|_| caller.leave(job("sleep", "600000"))).collect();
    observer.until(|pool| (pool.in_flight, queued(pool)) == (2, 4)).await;
    let since = Instant::now();
    proxy.abort();
    freed(&observer, since, 6).await;
    for call in calls {
        call.await.unwrap().expect_err("the connection is broken");
    }
}
