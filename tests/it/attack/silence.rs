//! Peers that keep connections and calls open, and send or read almost nothing.

use futures_util::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::{
    net::TcpStream,
    time::{Duration, Instant, sleep},
};

use super::{
    SUBMIT,
    frames::{Block, Frames, INITIAL_WINDOW_SIZE},
    peer::Peer,
    target::{CALLS, CONFIG, Footprint, MIB, Target, cpu},
};
use crate::{
    process::PATIENCE,
    service::{Address, Caller, job, submission},
};

/// Number of streams that may be open at the same time.
const MOST_STREAMS: usize = 256;

/// A config with short timeouts for silent peers, long enough for peers that are only slow.
fn impatient() -> String {
    format!("server.http2 = {{ keepalive_interval = \"1s\", keepalive_timeout = \"3s\" }}\n{CONFIG}")
}

/// Peers that send nothing after the preface and answer no PING. A third of them have an open call.
///
/// Expected: the server sends a PING and closes the connection when no answer arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_peer_is_disconnected() {
    let target = Target::serve(&impatient()).await;
    let address = target.public();
    let attack = join_all((0..30).map(|at| async move {
        let mut peer = Peer::connect(address).await;
        let stream = peer.stream();
        if at % 3 == 0 {
            peer.send(&Frames::new().headers(stream, &Block::call(SUBMIT))).await;
        }
        peer.until_closed().await;
        assert!(peer.seen.pings > 0, "{:?}", peer.seen);
    }));
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

/// Slow bodies: 256 streams on each of four connections announce a message of 4 MB and send one byte of it. One stream
/// of each connection then sends one more byte at a time.
///
/// Expected: the announced size takes no memory before the data arrives. Each call ends by the server's default
/// deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_end_by_their_deadline() {
    let target = Target::serve(CONFIG).await;
    let address = target.public();
    let attack = join_all([(); 4].map(|()| async move {
        let mut peer = Peer::connect(address).await;
        let streams = [(); MOST_STREAMS].map(|()| peer.stream());
        let announce = |frames: Frames, stream: &u32| {
            frames.headers(*stream, &Block::call(SUBMIT)).data(*stream, &[0, 0, 0x40, 0, 0, b'x'])
        };
        peer.send(&streams.iter().fold(Frames::new(), announce)).await;
        let begin = Instant::now();
        while peer.seen.ended < MOST_STREAMS {
            assert!(!peer.seen.closed && begin.elapsed() < PATIENCE, "{:?}", peer.seen);
            peer.send(&Frames::new().data(streams[0], b"x")).await;
            peer.settle().await;
        }
    }));
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

/// A client that gives the server no window for its responses.
///
/// Expected: each call ends by its deadline and frees its memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_client_without_a_window_end_by_their_deadline() {
    let target = Target::serve(CONFIG).await;
    let attack = async {
        let mut peer = Peer::connect_with(target.public(), &[(INITIAL_WINDOW_SIZE, 0)]).await;
        call_for_much(&mut peer).await;
        peer.until("the end of all calls", |seen| seen.ended == MOST_STREAMS).await;
        assert_eq!((peer.seen.body, peer.seen.closed), (0, false), "{:?}", peer.seen);
    };
    target.under(attack).await;
    target.recovers(64 * MIB).await;
}

/// A client that gives the largest possible window for its responses, and then does not read its socket.
///
/// Expected: the server closes the connection although the client keeps it open, and frees the memory of its calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_is_disconnected() {
    let target = Target::serve(&impatient().replace(r#"default = "1s""#, r#"default = "60s""#)).await;
    let wide = i32::MAX as u32;
    let attack = async {
        let mut peer = Peer::connect_with(target.public(), &[(INITIAL_WINDOW_SIZE, wide)]).await;
        call_for_much(&mut peer).await;
        assert_eq!((peer.seen.body, peer.seen.closed), (65_535, false), "{:?}", peer.seen);
        peer.send_deaf(&Frames::new().window_update(0, wide - 65_535)).await;
        peer
    };
    let peer = target.under(attack).await;
    target.recovers(64 * MIB).await;
    drop(peer);
}

/// Makes calls whose responses are 15 MB in total.
async fn call_for_much(peer: &mut Peer) {
    let (call, job) = (Block::call(SUBMIT), submission("echo", "a".repeat(60_000)));
    for _ in 0..MOST_STREAMS {
        let stream = peer.stream();
        let window = job.len() as u64;
        peer.until("a window for a body", |seen| seen.window >= window).await;
        peer.seen.window -= window;
        peer.send(&Frames::new().headers(stream, &call).data_end(stream, &job)).await;
    }
}

/// Number of connections that the test opens to each process, far more than its file limit allows.
const SOCKETS: usize = 64;
/// How long the server has no free descriptors.
const LASTS: Duration = Duration::from_secs(1);
/// CPU time in nanoseconds that a server that waits may use in that time.
const WAIT: u64 = 100_000_000;

// tidy: real time, because a process that spins is known by its CPU time.

/// More connections than the process may have open files (EMFILE).
///
/// Expected: open connections are served, and the process waits between attempts to accept. It accepts connections
/// again when descriptors are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_free_descriptors_does_not_spin() {
    let target = Target::serve(CONFIG).await;
    let id = target.process().id();
    let held = exhaust(id, target.public()).await;
    let begin = cpu(id);
    sleep(LASTS).await;
    let used = cpu(id) - begin;
    assert!(used < WAIT, "the server spins: it used {used} ns of CPU in {LASTS:?}");

    for _ in 0..CALLS {
        target.caller().leave(job("echo", "")).await.unwrap().unwrap();
    }
    drop(held);
    Caller::of(target.public()).await.leave(job("echo", "")).await.unwrap().unwrap();
    target.recovers(32 * MIB).await;
}

/// Limits a process to eight more files than it has open, and opens more connections than that.
async fn exhaust(id: u32, address: Address) -> Vec<TcpStream> {
    let limit = Footprint::of(id).files as u64 + 8;
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    prlimit(Pid::from_raw(id.try_into().unwrap()), Resource::Nofile, limit).unwrap();
    join_all((0..SOCKETS).map(|_| TcpStream::connect(address.0))).await.into_iter().map(Result::unwrap).collect()
}
