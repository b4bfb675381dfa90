//! Frames that cost their sender nothing and their receiver an answer, or room.

use super::{
    SUBMIT,
    frames::{Block, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, Frames, INITIAL_WINDOW_SIZE, PROTOCOL_ERROR},
    peer::Peer,
    target::{CONFIG, MIB, Target},
};

/// Frames of one flood.
const COUNT: u64 = 20_000;

/// Headers that never end: frame after frame of CONTINUATION (CVE-2024-27316 and its kin), empty, small and full.
///
/// Holds: the connection ends with ENHANCE_YOUR_CALM after a few frames, and no more is read of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuation_flood() {
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

/// SETTINGS without end, each of which is to be acknowledged; one peer reads the answers, one does not.
///
/// Holds: who reads has one answer each; who does not read is not read any more, so that no answers pile up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_flood() {
    let target = Target::serve(CONFIG).await;
    let one = |frames: Frames| frames.settings(&[(INITIAL_WINDOW_SIZE, 65_535)]);
    let peer = target.under(flood(&target, one)).await;
    assert_eq!((peer.seen.closed, peer.seen.settings_acks), (false, COUNT + 1), "{:?}", peer.seen);
    drop(peer);
    deaf_flood(&target, one).await;
}

/// PINGs without end, each of which is to be answered; one peer reads the answers, one does not.
///
/// Holds: who reads has one answer each; who does not read is not read any more, so that no answers pile up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_flood() {
    let target = Target::serve(CONFIG).await;
    let one = |frames: Frames| frames.ping(*b"flooding");
    let peer = target.under(flood(&target, one)).await;
    assert_eq!((peer.seen.closed, peer.seen.pongs), (false, COUNT + 1), "{:?}", peer.seen);
    drop(peer);
    deaf_flood(&target, one).await;
}

/// A rule that is broken with much more behind it, all of it sent before the answer is read.
///
/// Holds: the peer learns the reason, and its connection is ended, not reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_word_to_a_peer_that_still_sends() {
    let target = Target::serve(CONFIG).await;
    let attack = async {
        for _ in 0..20 {
            let mut peer = Peer::connect(target.public()).await;
            let broken = Frames::new().window_update(0, 0);
            peer.send_deaf(&(0..COUNT / 4).fold(broken, |frames, _| frames.ping(*b"no rules"))).await;
            peer.until_closed().await;
            assert_eq!((peer.seen.go_away, peer.seen.broken), (Some(PROTOCOL_ERROR), false), "{:?}", peer.seen);
        }
    };
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

/// Windows beyond 2³¹ − 1 bytes, of the connection and of a stream.
///
/// Holds: the connection ends with FLOW_CONTROL_ERROR, or the stream does and the connection goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn window_overflow() {
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
    peer.until("all acknowledgements", |seen| seen.settings_acks + seen.pongs > COUNT).await;
    peer
}

/// Floods without reading, for as long as another client's calls take.
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
    assert!(sent > COUNT, "no flood: {sent}");
    target.recovers(32 * MIB).await;
}
