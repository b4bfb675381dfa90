//! Drains that hostile peers and stuck jobs would hold up.

// tidy: real time, because what is promised is when a real process exits.

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
    control::Bare,
    frames::{Block, Frames, INITIAL_WINDOW_SIZE, PREFACE},
    peer::Peer,
    submit,
};
use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller, job},
    support::lateness,
};

const CONFIG: &str = r#"
    drain = { notice = "100ms", finish = "200ms", kill = "200ms" }
    [pool.one]
    workers = 4
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    [kind.stubborn]
    pool = "one"
    exec = ["/bin/sh", "-c", 'trap "" TERM; while :; do sleep 0.05; done']
    [pool.free]
    workers = 8
    [kind.echo]
    pool = "free"
    builtin = "echo"
"#;
/// The sum of the phases.
const PHASES: Duration = Duration::from_millis(500);
/// What the end of the process may take beyond them.
const SLACK: Duration = Duration::from_millis(250);
/// Processes that drain at the same time.
const BATCH: usize = 4;

/// Peers that never leave by themselves: one says nothing, one half a preface, one goes silent after its hello, one
/// opens streams and sends no message, one sends bodies by drops, one reads no answer, and one not even frames.
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
        let (call, answer) = (Block::call(SUBMIT), submit("echo", &"a".repeat(10_000)));
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

/// A process under hostile peers where it is attacked, jobs that do not stop, and calls without end.
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

/// Drains `count` processes, some at a time, each of which has its peers and jobs before any of them is told to end.
/// On a busy machine they may be late by some times as much more as one is that nobody attacks and that ends with them.
async fn drains(count: usize) {
    let (mut took, mut latest) = (Vec::new(), Duration::ZERO);
    for _ in 0..count / BATCH {
        let batch = join_all([(); BATCH].map(|()| Besieged::start(true))).await;
        let other = Besieged::start(false).await;
        let (drained, other) = tokio::join!(join_all(batch.into_iter().map(Besieged::drain)), other.drain());
        let late = 5 * other.saturating_sub(PHASES);
        let most = PHASES + SLACK + late;
        assert!(drained.iter().all(|took| *took <= most), "{drained:?}, on a machine that is {late:?} late");
        took.extend(drained);
        latest = latest.max(late);
    }
    took.sort();
    let in_time = took.partition_point(|took| *took <= PHASES + SLACK);
    let (half, all) = (took[count / 2], took[count - 1]);
    eprintln!("{in_time} of {count} within {:?}: half in {half:?}, all in {all:?}", PHASES + SLACK);
    eprintln!("the machine was {latest:?} late at most");
}

/// SIGTERM while every hostile peer of this file is connected to both listeners, and each worker runs a job that
/// does not stop.
///
/// Holds: each process exits by the sum of its phases + 250 ms, and each caller has an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_drains() {
    drains(20).await;
}

/// As [`twenty_drains`], at length: `cargo test --test it two_hundred_drains -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes"]
async fn two_hundred_drains() {
    drains(200).await;
}

/// A drain with one peer that went silent after its hello.
///
/// Holds: the process exits as if it were not there. A bare server that is told to end at the same time is still
/// there after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_peer_in_a_drain() {
    let process = Process::serve(CONFIG).await;
    let bare = Bare::start();
    let silent = (Peer::connect(process.public).await, Peer::connect(bare.address).await);
    let begin = Instant::now();
    let bare = bare.shut_down();
    process.signal(Signal::TERM);
    let (ended, late) = tokio::join!(process.ended(), lateness(PHASES));
    assert!(ended.at - begin <= PHASES + SLACK + late, "{:?}: {ended:?}", ended.at - begin);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!bare.is_finished(), "stock tonic does not wait for a silent peer");
    drop(silent);
    bare.await.unwrap().unwrap();
}
