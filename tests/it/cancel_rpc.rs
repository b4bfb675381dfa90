//! When a caller cancels or disconnects, its queued and running jobs are cancelled within 50 ms, and no others.
//!
//! The time starts when the caller sends RST_STREAM or closes its connection. It ends when the handler of the running
//! job is asked to stop, or when another job can use the capacity of the queued job.
//!
//! A busy machine can delay a single measurement. Each is repeated, and the 90th percentile must be within the bound.
//! After each, the test measures how long a thread of this machine takes to answer, which is next to nothing on an idle
//! machine. The bound grows by a few times its 90th percentile.
//!
// tidy: real time, because the tests measure a real server.

use std::{
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::{
    Reason, SendStream,
    client::{Connection, ResponseFuture, handshake},
};
use http::Request;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};
use waterwheel::{
    Job, WhenFull,
    app::OwnKind,
    model::HandlerError,
    proto::{StreamRequest, SubmitRequest},
};

use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller, Service, counts, job, queued, submission},
    support::kind,
};

/// The promised bound.
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
"#;

/// Starts six `Submit` calls, and waits until two jobs run and four are queued.
async fn fill(caller: &Caller) -> JoinSet<()> {
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let mut client = caller.0.clone();
        calls.spawn(async move {
            let end = client.submit(SubmitRequest { job: Some(job("sleep", "600000")) }).await;
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
    let mut calls = fill(&observer).await;
    let other = observer.leave(job("sleep", "1"));
    let since = Instant::now();
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    other.await.unwrap().unwrap();
    assert!(since.elapsed() < LONG_BEFORE, "{:?}", since.elapsed());
}

const TIMES: usize = 100;

/// One worker, and a queue for one job.
const BOUND: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    server.threads = 2
    [pool.one]
    workers = 1
    queue = { jobs = 1 }
"#;

/// How a caller cancels its call.
#[derive(Debug, Clone, Copy)]
enum Leave {
    Reset,
    Close,
}

/// A call on a separate connection, which sends and receives bytes only when the test polls it.
struct Call {
    connection: Connection<TcpStream, Bytes>,
    stream: SendStream<Bytes>,
    _answer: ResponseFuture,
}

impl Call {
    async fn open(to: Address, kind: &str, payload: &'static str) -> Self {
        let socket = TcpStream::connect(to.0).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (mut sender, connection) = handshake(socket).await.unwrap();
        let head = Request::post(format!("http://{}/waterwheel.v1.WorkerPoolService/Submit", to.0))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let (answer, mut stream) = sender.send_request(head.body(()).unwrap(), false).unwrap();
        stream.send_data(submission(kind, payload).into(), true).unwrap();
        Self { connection, stream, _answer: answer }
    }

    /// Polls the connection until `reached` completes.
    async fn until<T>(&mut self, reached: impl Future<Output = T>) -> T {
        tokio::select! {
            reached = timeout(PATIENCE, reached) => reached.expect("the condition is reached in time"),
            ended = &mut self.connection => panic!("the connection ended: {ended:?}"),
        }
    }

    /// Cancels the call. Returns the moment just before the server could see it, and the connection if it stays open.
    fn leave(mut self, how: Leave) -> (Instant, Option<Self>) {
        match how {
            Leave::Reset => {
                self.stream.send_reset(Reason::CANCEL);
                let before = Instant::now();
                let polled = self.connection.poll_unpin(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending(), "{polled:?}");
                (before, Some(self))
            }
            Leave::Close => {
                let before = Instant::now();
                drop(self);
                (before, None)
            }
        }
    }
}

/// How long the steps took, and how long this machine took to answer after each.
#[derive(Default)]
struct Measured {
    took: Vec<Duration>,
    machine: Vec<Duration>,
}

impl Measured {
    async fn add(&mut self, took: Duration) {
        self.took.push(took);
        let begin = Instant::now();
        tokio::task::spawn_blocking(|| ()).await.expect("no panic");
        self.machine.push(begin.elapsed());
    }

    /// Checks that the 90th percentile is within the bound.
    fn check(mut self, what: &str, how: Leave) {
        assert_eq!(self.took.len(), TIMES);
        self.took.sort();
        self.machine.sort();
        let [median, ninetieth, most] = [TIMES / 2, TIMES * 9 / 10, TIMES - 1].map(|at| self.took[at]);
        let late = 5 * self.machine[TIMES * 9 / 10];
        eprintln!("{what}, {how:?}: median {median:?}, 90th percentile {ninetieth:?}, maximum {most:?}, late {late:?}");
        assert!(ninetieth < FREED_WITHIN + late, "{what}, {how:?}: {:?}, and {late:?} is allowed", self.took);
    }
}

#[tokio::test]
async fn a_running_job_is_asked_to_stop_within_the_bound() {
    let ((begin, mut begun), (stop, mut stopped)) = (mpsc::channel(1), mpsc::channel(1));
    let polite = kind("polite", move |_, cx| {
        let (begin, stop) = (begin.clone(), stop.clone());
        async move {
            begin.send(()).await.expect("the test listens");
            cx.cancelled().await;
            stop.send(Instant::now()).await.expect("the test listens");
            Err(HandlerError::Stopped)
        }
    });
    let service = Service::start(BOUND, vec![OwnKind::new("one", polite)]);
    for how in [Leave::Reset, Leave::Close] {
        let mut measured = Measured::default();
        for _ in 0..TIMES {
            let mut call = Call::open(service.public, "polite", "").await;
            call.until(begun.recv()).await.expect("the handler lives");
            let (left, _open) = call.leave(how);
            let asked = timeout(PATIENCE, stopped.recv())
                .await
                .expect("the handler is asked to stop")
                .expect("the handler lives");
            measured.add(asked.saturating_duration_since(left)).await;
        }
        measured.check("running", how);
    }
}

#[tokio::test]
async fn the_capacity_of_a_queued_job_is_free_within_the_bound() {
    let service = Service::start(BOUND, Vec::new());
    let observer = Caller::of(service.public).await;
    observer.occupy(1).await;
    for how in [Leave::Reset, Leave::Close] {
        let mut measured = Measured::default();
        for _ in 0..TIMES {
            let mut call = Call::open(service.public, "sleep", "60000").await;
            call.until(observer.until(|pool| queued(pool) == 1)).await;
            let next = Job::new("sleep", "60000").when_full(WhenFull::Wait);
            let next = service.control.pools().try_submit(next).expect("the job waits for capacity");
            let wait = next.capacity_wait().expect("the worker is busy");
            assert!(wait.is_waiting());
            let (left, _open) = call.leave(how);
            timeout(PATIENCE, wait.end()).await.expect("capacity is free");
            measured.add(left.elapsed()).await;
        }
        measured.check("queued", how);
    }
}
