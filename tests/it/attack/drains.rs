//! Drains that hostile peers and stuck jobs try to delay.

// tidy: real time, because the tests measure when a real process exits.

use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tonic::{Response, Status, Streaming};
use waterwheel::proto::{SubmitManyRequest, SubmitManyResponse, SubmitResponse, WatchStatsRequest, WatchStatsResponse};

use super::{
    SUBMIT,
    frames::{Block, Frames, INITIAL_WINDOW_SIZE, PREFACE},
    peer::Peer,
};
use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller, job, submission},
};

const CONFIG: &str = r#"
    pool.one.workers = 4
    kind.sleep = { pool = "one", builtin = "sleep" }
    pool.free.workers = 8
    kind.echo = { pool = "free", builtin = "echo" }
    drain = { notice = "100ms", finish = "200ms", kill = "200ms" }
    [kind.stubborn]
    pool = "one"
    exec = ["/bin/sh", "-c", 'trap "" TERM; while :; do sleep 0.05; done']
"#;
/// Total duration of the drain's phases.
const PHASES: Duration = Duration::from_millis(500);
/// Time that the process may take to exit after the phases.
const SLACK: Duration = Duration::from_millis(250);
/// Processes that drain at the same time.
const BATCH: usize = 4;

/// Peers that never close their connection:
/// - one sends nothing, one half of the preface, and one the preface and nothing more;
/// - one opens streams and sends no message, and one sends one byte of each message;
/// - one gives the server no window for its responses.
struct Hostile {
    _sockets: Vec<TcpStream>,
    _peers: Vec<Peer>,
}

impl Hostile {
    async fn at(address: Address) -> Self {
        let mut sockets = Vec::new();
        for preface in [&PREFACE[..0], &PREFACE[..12], PREFACE] {
            let mut socket = TcpStream::connect(address.0).await.unwrap();
            socket.write_all(preface).await.unwrap();
            sockets.push(socket);
        }
        let mut half_open = Peer::connect(address).await;
        let mut drips = Peer::connect(address).await;
        let mut deaf = Peer::connect_with(address, &[(INITIAL_WINDOW_SIZE, 0)]).await;
        let (call, answer) = (Block::call(SUBMIT), submission("echo", "a".repeat(10_000)));
        let open = |peer: &mut Peer, body: &dyn Fn(Frames, u32) -> Frames| {
            let streams = [(); 100].map(|()| peer.stream());
            streams.iter().fold(Frames::new(), |frames, stream| body(frames.headers(*stream, &call), *stream))
        };
        let frames = [
            open(&mut half_open, &|frames, _| frames),
            open(&mut drips, &|frames, stream| frames.data(stream, &[0, 0, 0x40, 0, 0, b'x'])),
            open(&mut deaf, &|frames, stream| frames.data_end(stream, &answer)),
        ];
        let mut peers = vec![half_open, drips, deaf];
        for (peer, frames) in peers.iter_mut().zip(frames) {
            peer.send(&frames).await;
            peer.settle().await;
        }
        Self { _sockets: sockets, _peers: peers }
    }
}

/// A process with jobs that do not stop, calls that never end, and optionally hostile peers.
struct Besieged {
    process: Process,
    stuck: Vec<Call>,
    _endless: (Streaming<WatchStatsResponse>, Streaming<SubmitManyResponse>),
    _hostile: Option<(Hostile, Hostile)>,
}

type Call = JoinHandle<Result<Response<SubmitResponse>, Status>>;

impl Besieged {
    async fn start(is_attacked: bool) -> Self {
        let process = Process::serve(CONFIG).await;
        let caller = Caller::of(process.public).await;
        let asleep = || job("sleep", r#"{"ms":60000,"ignore_cancel":true}"#);
        let stuck = [asleep(), asleep(), job("stubborn", ""), job("stubborn", "")];
        let stuck = stuck.map(|job| caller.leave(job)).into();
        let mut client = caller.0.clone();
        let watch = client.watch_stats(WatchStatsRequest::default()).await.unwrap().into_inner();
        let many = client.submit_many(tokio_stream::pending::<SubmitManyRequest>()).await.unwrap().into_inner();
        let hostile = match is_attacked {
            true => Some((Hostile::at(process.public).await, Hostile::at(process.ops).await)),
            false => None,
        };
        let begin = Instant::now();
        while caller.stats().await.pools.iter().all(|pool| pool.in_flight < 4) {
            assert!(begin.elapsed() < PATIENCE, "not all jobs began");
            sleep(Duration::from_millis(1)).await;
        }
        Self { process, stuck, _endless: (watch, many), _hostile: hostile }
    }

    /// Returns how long the drain took.
    async fn drain(self) -> Duration {
        let begin = Instant::now();
        self.process.signal(Signal::TERM);
        let ended = self.process.ended().await;
        for call in self.stuck {
            call.await.unwrap().unwrap_err();
        }
        assert_eq!(ended.code, Some(3), "{ended:?}");
        ended.at - begin
    }
}

/// Drains `count` processes in batches. All peers and jobs of a batch are in place before its drains begin.
///
/// A process without attackers drains with each batch and measures how busy the machine is. The others may exceed
/// their limit by five times its delay.
async fn drains(count: usize) {
    let (mut took, mut latest) = (Vec::new(), Duration::ZERO);
    for _ in 0..count / BATCH {
        let batch = join_all([(); BATCH].map(|()| Besieged::start(true))).await;
        let other = Besieged::start(false).await;
        let (drained, other) = tokio::join!(join_all(batch.into_iter().map(Besieged::drain)), other.drain());
        let late = 5 * other.saturating_sub(PHASES);
        let most = PHASES + SLACK + late;
        assert!(drained.iter().all(|took| *took <= most), "{drained:?}, where {most:?} is allowed");
        took.extend(drained);
        latest = latest.max(late);
    }
    took.sort();
    let in_time = took.partition_point(|took| *took <= PHASES + SLACK);
    let (half, all) = (took[count / 2], took[count - 1]);
    eprintln!("{in_time} of {count} took at most {:?}; median {half:?}, maximum {all:?}", PHASES + SLACK);
    eprintln!("largest allowance for a busy machine: {latest:?}");
}

/// SIGTERM while the hostile peers are connected to both listeners, and each worker of a pool runs a job that does not
/// stop.
///
/// Expected: each process exits within the total of its phases + 250 ms, and each caller gets a response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drains_under_attack_end_in_time() {
    drains(20).await;
}

/// A longer [`drains_under_attack_end_in_time`]:
/// `cargo test --test it two_hundred_drains -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes"]
async fn two_hundred_drains_under_attack_end_in_time() {
    drains(200).await;
}
