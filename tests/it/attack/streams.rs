//! Streams that the peer resets, or makes the server reset; peers that keep streams and connections open, and send or
//! read almost nothing.

// tidy: real time, because a process that spins is known by its CPU time.

use futures_util::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::{
    net::TcpStream,
    time::{Duration, Instant, sleep},
};

use super::{
    CALLS, CONFIG, Footprint, MIB, SUBMIT, Target, cpu,
    peer::{
        Block, CANCEL, ENHANCE_YOUR_CALM, Frames, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PROTOCOL_ERROR, Peer,
        REFUSED_STREAM,
    },
};
use crate::{
    process::PATIENCE,
    service::{Address, Caller, job, submission},
};

/// Number of streams that a peer may make the server reset.
const MOST_RESETS: usize = 1024;
/// Number of streams that may be open at the same time.
const MOST_STREAMS: usize = 256;
/// A job that lasts longer than any test.
const LONG_JOB: &str = r#"{"ms":60000}"#;

/// A protocol violation that makes the server reset the stream.
#[derive(Debug, Clone, Copy)]
enum Provocation {
    /// A WINDOW_UPDATE with an increment of zero.
    ZeroIncrement,
    /// A WINDOW_UPDATE that makes the window larger than 2³¹ − 1.
    Overflow,
    /// Body data after the end of the body.
    DataAfterEnd,
    /// Headers after the end of the body.
    HeadersAfterEnd,
    /// A stream that depends on itself.
    SelfDependency,
    /// A body that is shorter than its `content-length`.
    ShorterBody,
}

/// How a provocation ends the connection.
#[derive(Debug, Clone, Copy)]
enum End {
    /// At once, with a connection error.
    AtOnce,
    /// After too many resets.
    TooMany,
}

const PROVOCATIONS: [(Provocation, End); 6] = [
    (Provocation::ZeroIncrement, End::AtOnce),
    (Provocation::DataAfterEnd, End::AtOnce),
    (Provocation::Overflow, End::TooMany),
    (Provocation::HeadersAfterEnd, End::TooMany),
    (Provocation::SelfDependency, End::TooMany),
    (Provocation::ShorterBody, End::TooMany),
];

impl Provocation {
    /// A call that starts a job, and the violation that makes the server reset the call.
    fn frames(self, stream: u32) -> Frames {
        let call = Block::call(SUBMIT);
        let job = submission("sleep", LONG_JOB);
        let whole = |frames: Frames| frames.headers(stream, &call).data_end(stream, &job);
        match self {
            Self::ZeroIncrement => whole(Frames::new()).window_update(stream, 0),
            Self::Overflow => whole(Frames::new()).window_update(stream, i32::MAX as u32),
            Self::DataAfterEnd => whole(Frames::new()).data(stream, b"more"),
            Self::HeadersAfterEnd => whole(Frames::new()).headers(stream, &call),
            Self::SelfDependency => whole(Frames::new()).priority(stream, stream),
            Self::ShorterBody => {
                Frames::new().headers(stream, &call.with("content-length", "1000")).data_end(stream, &job)
            }
        }
    }
}

/// Sends `count` provocations on one connection, a hundred at a time.
async fn provoke(address: Address, provocation: Provocation, count: usize) -> Peer {
    let mut peer = Peer::connect(address).await;
    let mut sent = 0;
    while sent < count && !peer.seen.closed {
        for _ in 0..100 {
            let stream = peer.stream();
            if !peer.send(&provocation.frames(stream)).await {
                break;
            }
        }
        sent += 100;
        peer.settle().await;
    }
    peer
}

/// MadeYouReset (CVE-2025-8671): the peer makes the server reset its calls. They count as closed then, while their jobs
/// still run. The test covers both known variants, windows and frames after the end, and two more violations.
///
/// Expected: the connection ends at once, or with ENHANCE_YOUR_CALM after 1,024 resets, and no job outlives its call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_you_reset_ends_the_connection() {
    let target = Target::serve(CONFIG).await;
    target
        .under(async {
            for (provocation, end) in PROVOCATIONS {
                let peer = provoke(target.public(), provocation, 2 * MOST_RESETS).await;
                let (most, reason) = match end {
                    End::AtOnce => (0, PROTOCOL_ERROR),
                    End::TooMany => (MOST_RESETS, ENHANCE_YOUR_CALM),
                };
                assert!(peer.seen.closed && peer.seen.resets() <= most, "{provocation:?}: {:?}", peer.seen);
                assert_eq!(peer.seen.go_away, Some(reason), "{provocation:?}: {:?}", peer.seen);
            }
        })
        .await;
    target.recovers(32 * MIB).await;
}

/// Rapid reset (CVE-2023-44487): the peer cancels each call at once, so that it never counts as open.
///
/// Expected: the server closes the connection of a peer that cancels calls before it has processed them, with
/// ENHANCE_YOUR_CALM. If the peer cancels calls whose jobs run, the server cancels the jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_reset_ends_the_connection() {
    let target = Target::serve(CONFIG).await;
    // The long deadline makes sure that no call ends by it, even on a slow machine.
    let (call, job) = (Block::call(SUBMIT).with("grpc-timeout", "1H"), submission("sleep", LONG_JOB));
    let open = |frames: Frames, stream| frames.headers(stream, &call).data_end(stream, &job);
    target
        .under(async {
            for _ in 0..10 {
                let mut peer = Peer::connect(target.public()).await;
                while !peer.seen.closed {
                    let streams = [(); 500].map(|()| peer.stream());
                    let frames =
                        streams.iter().fold(Frames::new(), |all, stream| open(all, *stream).reset(*stream, CANCEL));
                    peer.send(&frames).await;
                    peer.settle().await;
                }
                assert_eq!(peer.seen.go_away, Some(ENHANCE_YOUR_CALM), "{:?}", peer.seen);
            }
            let mut patient = Peer::connect(target.public()).await;
            for _ in 0..20 {
                let streams = [(); 8].map(|()| patient.stream());
                patient.send(&streams.iter().fold(Frames::new(), |all, stream| open(all, *stream))).await;
                patient.settle().await;
                target.caller().until(|pool| pool.in_flight == 8).await;
                patient.send(&streams.iter().fold(Frames::new(), |all, stream| all.reset(*stream, CANCEL))).await;
                patient.settle().await;
                // A job of the other client may run.
                target.caller().until(|pool| pool.in_flight <= 1).await;
            }
            assert_eq!((patient.seen.closed, patient.seen.ended), (false, 0), "{:?}", patient.seen);
        })
        .await;
    target.recovers(32 * MIB).await;
}

/// 20,000 calls on one connection that never send a message.
///
/// Expected: the server announces its limit of streams, refuses more, and closes the connection if the peer continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_streams_are_limited() {
    const STREAMS: usize = 20_000;
    let target = Target::serve(CONFIG).await;
    let peer = target.under(half_open(target.public(), STREAMS)).await;
    assert_eq!(peer.seen.settings[&MAX_CONCURRENT_STREAMS] as usize, MOST_STREAMS);
    assert_eq!((peer.seen.closed, peer.seen.go_away), (true, Some(ENHANCE_YOUR_CALM)), "{:?}", peer.seen);
    let refused = peer.seen.resets[&REFUSED_STREAM];
    assert!((1..=MOST_RESETS).contains(&refused), "{:?}", peer.seen);
    target.recovers(32 * MIB).await;
}

async fn half_open(address: Address, count: usize) -> Peer {
    let mut peer = Peer::connect(address).await;
    let call = Block::call(SUBMIT);
    for _ in 0..count / 100 {
        let streams = [(); 100].map(|()| peer.stream());
        if !peer.send(&streams.iter().fold(Frames::new(), |all, stream| all.headers(*stream, &call))).await {
            break;
        }
    }
    peer.settle().await;
    peer
}

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
