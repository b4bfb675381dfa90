//! Peers that hold what they have, and say or read nothing, or next to it.

use std::{io, net::SocketAddr};

use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};

use super::{
    SUBMIT,
    frames::{Block, Frames, INITIAL_WINDOW_SIZE, PREFACE},
    peer::Peer,
    submit,
    target::{Bystander, CALLS, CONFIG, MIB, Target},
};
use crate::{process::PATIENCE, service::Address};

/// Streams that may be open at once.
const MOST_STREAMS: usize = 256;

/// Short times for those who say nothing, and few connections for each address. Those who are only slow have more than
/// they need.
fn impatient() -> String {
    let server = r#"
        [server]
        connections = { preface_timeout = "2s", max_per_address = 300 }
        http2 = { keepalive_interval = "1s", keepalive_timeout = "3s" }
    "#;
    format!("{CONFIG}{server}")
}

/// Connections that say nothing, a part of the preface, or the beginning of another protocol.
///
/// Holds: they are closed by the time that a preface may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_preface() {
    let target = Target::serve(&impatient()).await;
    let others = [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0x16, 3, 1, 2, 0], &[0; 64]];
    let begins = [0, 1, 12, 23].map(|length| &PREFACE[..length]).into_iter().chain(others);
    let address = target.public();
    let attack = join_all(begins.cycle().take(70).map(|begin| async move {
        let mut socket = TcpStream::connect(address.0).await.unwrap();
        socket.write_all(begin).await.unwrap();
        let_go(socket).await;
    }));
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

/// Peers that go silent after their hello, so that they do not answer a PING; a third of them with a call begun.
///
/// Holds: they are asked for a sign, and cut when they give none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_peer() {
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

/// 2,000 sockets from one address that say nothing.
///
/// Holds: a few hundred are taken, the others are turned away, those who come from elsewhere meanwhile are served, and
/// the silent ones are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_silent_sockets() {
    const SOCKETS: usize = 2_000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let target = Target::serve(&impatient()).await;
    let attack = async {
        let mut sockets = Vec::new();
        for _ in 0..SOCKETS / 100 {
            sockets.extend(join_all([(); 100].map(|()| connect_from([127, 0, 0, 2], target.public()))).await);
        }
        Bystander::of(target.public()).await.calls(CALLS).await;
        let held = target.footprint().files;
        assert!(held < target.base().files + 400, "{held} files");
        join_all(sockets.into_iter().flatten().map(let_go)).await;
    };
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

/// Bodies that come by drops: on each of 256 streams of four connections a message of 4 MB is announced and one byte of
/// it follows, and on one of them a further byte each time that the server had time to look.
///
/// Holds: what is announced takes no room before it is there, and each call ends by its deadline, which is the
/// server's where the caller sets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_loris_body() {
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

/// A client that takes none of its answers: it gives no window.
///
/// Holds: each call ends by its deadline, and what it held is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_without_a_window() {
    let target = Target::serve(CONFIG).await;
    let attack = async {
        let mut peer = Peer::connect_with(target.public(), &[(INITIAL_WINDOW_SIZE, 0)]).await;
        call_for_much(&mut peer).await;
        peer.until("an end of all calls", |seen| seen.ended == MOST_STREAMS).await;
        assert_eq!((peer.seen.body, peer.seen.closed), (0, false), "{:?}", peer.seen);
    };
    target.under(attack).await;
    target.recovers(64 * MIB).await;
}

/// A client that gives all the window there is for its answers, and then does not read its socket.
///
/// Holds: its connection is cut while it holds on to it, and what its calls held is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_never_reads() {
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

/// Calls whose answers are 15 MB in all.
async fn call_for_much(peer: &mut Peer) {
    let (call, job) = (Block::call(SUBMIT), submit("echo", &"a".repeat(60_000)));
    for _ in 0..MOST_STREAMS {
        let stream = peer.stream();
        let window = job.len() as u64;
        peer.until("room for a body", |seen| seen.window >= window).await;
        peer.seen.window -= window;
        peer.send(&Frames::new().headers(stream, &call).data_end(stream, &job)).await;
    }
}

/// A socket of another address of this machine, where the server takes it.
async fn connect_from(address: [u8; 4], to: Address) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((address, 0)))?;
    socket.connect(to.0).await
}

/// Waits until the server has closed a connection.
async fn let_go(mut socket: TcpStream) {
    let mut last = Vec::new();
    // An end and a reset are the same to one who is let go.
    let ended = timeout(PATIENCE, socket.read_to_end(&mut last)).await;
    assert!(ended.is_ok(), "the server keeps a connection that says nothing");
}
