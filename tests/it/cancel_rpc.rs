//! A caller that cancels or vanishes frees its jobs within 50 ms, queued or running, and only its own.
//!
// tidy: real time, because the 50 ms are those of a real server.

mod bound;

use std::time::Duration;

use tokio::{io::AsyncWriteExt, task::JoinSet, time::Instant};
use waterwheel::proto::{StreamRequest, SubmitRequest};

use crate::{
    process::Process,
    service::{Address, Caller, counts, job, queued},
};

/// The promise, which `bound` measures.
const FREED_WITHIN: Duration = Duration::from_millis(50);
/// Far from the end of any job here, whether it ends by itself or is forced to, on however slow a machine.
const LONG_BEFORE: Duration = Duration::from_secs(20);

const CONFIG: &str = r#"
    server.threads = 2
    deadline.default = "10m"
    [pool.one]
    workers = 2
    queue = { jobs = 4 }
    cancel_grace = "5m"
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    [kind.program]
    pool = "one"
    exec = ["/bin/sleep", "600"]
"#;

/// Two jobs that run and four that are queued, by `Submit`; the tasks are the calls.
async fn fill(caller: &Caller, kind: &'static str) -> JoinSet<()> {
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let mut client = caller.0.clone();
        calls.spawn(async move {
            let end = client.submit(SubmitRequest { job: Some(job(kind, "600000")) }).await;
            panic!("nobody answers a caller that left: {end:?}");
        });
    }
    caller.until(|pool| (pool.in_flight, queued(pool)) == (2, 4)).await;
    calls
}

/// Waits until nothing is held, and checks how long that took.
async fn freed(observer: &Caller, since: Instant, accepted: u64) {
    observer.until(|pool| (pool.in_flight, queued(pool)) == (0, 0)).await;
    let took = since.elapsed();
    assert!(took < LONG_BEFORE, "{took:?}");
    let pool = observer.pool().await;
    assert_eq!((counts(&pool).accepted, counts(&pool).cancelled), (accepted, accepted), "{pool:?}");
    assert_eq!(pool.queue.unwrap().bytes, 0);
}

#[tokio::test]
async fn cancelled_calls() {
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
async fn cancelled_streams() {
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
async fn one_of_many_callers() {
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

/// A connection in the middle that can be torn: `tonic` alone would say goodbye.
async fn through_a_wire(to: Address) -> (Address, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address(listener.local_addr().unwrap());
    let wire = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(to.0).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        let _ = far.shutdown().await;
    });
    (address, wire)
}

#[tokio::test]
async fn a_connection_that_is_torn() {
    let process = Process::serve(CONFIG).await;
    let observer = Caller::of(process.public).await;
    let (address, wire) = through_a_wire(process.public).await;
    let caller = Caller::of(address).await;
    let calls: Vec<_> = (0..6).map(|_| caller.leave(job("sleep", "600000"))).collect();
    observer.until(|pool| (pool.in_flight, queued(pool)) == (2, 4)).await;
    let since = Instant::now();
    wire.abort();
    freed(&observer, since, 6).await;
    for call in calls {
        call.await.unwrap().expect_err("its connection is gone");
    }
}
