//! Floods of frames that cost the sender nothing, and cost the receiver a response or memory.

use super::{
    SUBMIT,
    frames::{Block, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, Frames, INITIAL_WINDOW_SIZE, PROTOCOL_ERROR},
    peer::Peer,
    target::{CONFIG, MIB, Target},
};

/// Frames of one flood.
const COUNT: u64 = 20_000;

/// A header block that never ends, in CONTINUATION frames (CVE-2024-27316 and others) that are empty, small or full.
///
/// Expected: the server closes the connection with ENHANCE_YOUR_CALM after a few frames, and reads no more of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_continuation_flood_ends_the_connection() {
    let target = Target::serve(CONFIG).await;
    let full = Block::new().with("x-long", &"a".repeat(16_000));
    let flood = async {
        for more in [Block::new(), Block::new().with("a", "b"), full] {
            let mut peer = Peer::connect(target.public()).await;
            let stream = peer.stream();
            let begin = Frames::new().headers_begin(stream, &Block::call(SUBMIT));
            peer.send(&(0..8).fold(begin, |frames, _| frames.continuation(stream, &more))).await;
            peer.until_closed().await;
            assert_eq!(peer.seen.go_away, Some(ENHANCE_YOUR_CALM), "{:?}", peer.seen);
        }
    };
    target.under(flood).await;
    target.recovers(32 * MIB).await;
}

/// Floods of SETTINGS and of PING frames, each of which the server must answer. One peer reads the answers, the other
/// does not.
///
/// Expected: the first peer gets an answer to each frame. The server stops reading from the second peer, so that its
/// answers do not accumulate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_to_a_settings_or_ping_flood_do_not_accumulate() {
    let settings: fn(Frames) -> Frames = |frames| frames.settings(&[(INITIAL_WINDOW_SIZE, 65_535)]);
    for (one, answers) in [(settings, [COUNT + 1, 1]), (|frames| frames.ping(*b"flooding"), [1, COUNT + 1])] {
        let target = Target::serve(CONFIG).await;
        let peer = target.under(flood(&target, one)).await;
        let seen = &peer.seen;
        assert_eq!((seen.closed, [seen.settings_acks, seen.pongs]), (false, answers), "{seen:?}");
        drop(peer);
        deaf_flood(&target, one).await;
    }
}

/// A peer violates the protocol and sends many more frames before it reads the server's answer.
///
/// Expected: the peer receives a GOAWAY with the error code. The server closes the connection and does not reset it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_on_after_a_protocol_error_receives_the_goaway() {
    let target = Target::serve(CONFIG).await;
    let attack = async {
        for _ in 0..20 {
            let mut peer = Peer::connect(target.public()).await;
            let violation = Frames::new().window_update(0, 0);
            peer.send_deaf(&(0..COUNT / 4).fold(violation, |frames, _| frames.ping(*b"no rules"))).await;
            peer.until_closed().await;
            assert_eq!((peer.seen.go_away, peer.seen.broken), (Some(PROTOCOL_ERROR), false), "{:?}", peer.seen);
        }
    };
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

/// Flow-control windows larger than 2³¹ − 1 bytes, of a stream and of the connection.
///
/// Expected: the server resets the stream, or closes the connection, with FLOW_CONTROL_ERROR.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_overflow_ends_the_stream_or_the_connection() {
    let target = Target::serve(CONFIG).await;
    let overflow = i32::MAX as u32;
    let attack = async {
        for _ in 0..50 {
            let mut peer = Peer::connect(target.public()).await;
            let stream = peer.stream();
            peer.send(&Frames::new().headers(stream, &Block::call(SUBMIT)).window_update(stream, overflow)).await;
            peer.settle().await;
            assert_eq!((peer.seen.closed, &peer.seen.resets), (false, &[(FLOW_CONTROL_ERROR, 1)].into()));
            peer.send(&Frames::new().window_update(0, overflow)).await;
            peer.until_closed().await;
            assert_eq!(peer.seen.go_away, Some(FLOW_CONTROL_ERROR), "{:?}", peer.seen);
        }
    };
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

async fn flood(target: &Target, one: impl Fn(Frames) -> Frames) -> Peer {
    let mut peer = Peer::connect(target.public()).await;
    let many = (0..100).fold(Frames::new(), |frames, _| one(frames));
    for _ in 0..COUNT / 100 {
        peer.send(&many).await;
    }
    peer.settle().await;
    peer.until("all its acknowledgements", |seen| seen.settings_acks + seen.pongs > COUNT).await;
    peer
}

/// Sends a flood and reads nothing, until another client's calls have completed.
async fn deaf_flood(target: &Target, one: impl Fn(Frames) -> Frames) {
    let many = (0..1_000).fold(Frames::new(), |frames, _| one(frames));
    let mut sent = 0;
    target
        .under_endless(async {
            let mut peer = Peer::connect(target.public()).await;
            while !peer.seen.closed {
                peer.send_deaf(&many).await;
                sent += 1_000;
            }
        })
        .await;
    assert!(sent > COUNT, "the peer sent only {sent} frames");
    target.recovers(32 * MIB).await;
}
