//! Floods of frames that cost the sender nothing, and cost the receiver a response or memory; headers that are too
//! many, too large, invalid, or much larger after decompression.

use super::{
    CONFIG, MIB, SUBMIT, Target,
    peer::{
        Block, DYNAMIC, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, Frames, HEADERS,
        INITIAL_WINDOW_SIZE, PROTOCOL_ERROR, Peer,
    },
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

/// A header of 4,000 bytes in the server's dynamic table, which a block then references 4,000 times with one byte each.
/// That makes 16 MB of headers for each 4 kB sent.
///
/// Expected: the server closes the connection with ENHANCE_YOUR_CALM at the first such block. Its memory does not grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hpack_bomb_ends_the_connection() {
    let target = Target::serve(CONFIG).await;
    let kept = Block::call(SUBMIT).kept("x-bomb", &"b".repeat(4_000));
    let bomb = (0..4_000).fold(Block::call(SUBMIT), |block, _| block.indexed(DYNAMIC));
    let attack = async {
        for _ in 0..50 {
            let mut peer = Peer::connect(target.public()).await;
            let first = peer.stream();
            let mut frames = Frames::new().headers(first, &kept);
            for _ in 0..20 {
                let stream = peer.stream();
                frames = frames.headers(stream, &bomb);
            }
            peer.send(&frames).await;
            peer.until_closed().await;
            assert_eq!((peer.seen.go_away, peer.seen.ended), (Some(ENHANCE_YOUR_CALM), 0), "{:?}", peer.seen);
        }
    };
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

/// Number of calls on each connection.
const CALLS: usize = 10;

/// How the calls on a connection end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answer,
    Reset,
    Connection,
}

/// Calls with headers that are too many, too long, repeated, missing, misplaced, or meant for another protocol.
///
/// Expected: each call ends with a response or a reset, and does not affect the others. If its headers are malformed,
/// the connection ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_headers_and_paths_end_their_call_or_connection() {
    let target = Target::serve(CONFIG).await;
    let attack = async {
        for (end, what, block) in cases() {
            let mut peer = Peer::connect(target.public()).await;
            for _ in 0..CALLS {
                let stream = peer.stream();
                peer.send(&Frames::new().frame(HEADERS, END_HEADERS | END_STREAM, stream, block.bytes())).await;
            }
            peer.until("the end of each call", |seen| seen.ended == CALLS).await;
            let seen = &peer.seen;
            let found = match (seen.blocks.len(), seen.resets()) {
                (CALLS, 0) if !seen.closed => Some(End::Answer),
                (0, CALLS) if !seen.closed => Some(End::Reset),
                (0, 0) if seen.go_away == Some(PROTOCOL_ERROR) => Some(End::Connection),
                _ => None,
            };
            assert_eq!(found, Some(end), "{what}: {seen:?}");
        }
    };
    target.under(attack).await;
    target.recovers(32 * MIB).await;
}

fn cases() -> Vec<(End, &'static str, Block)> {
    use End::{Answer, Connection, Reset};
    let long = "a".repeat(15_000);
    let long_method = format!("/waterwheel.v1.WorkerPoolService/{long}");
    let many = (0..700).fold(Block::call(SUBMIT), |block, at| block.with(&format!("x-{at}"), ""));
    let with = |name: &str, value: &str| Block::call(SUBMIT).with(name, value);
    vec![
        (Answer, "a list over the limit", with("x-a", &long).with("x-b", &long[..1_000])),
        (Answer, "many headers", many),
        (Answer, "a header twice", with("grpc-timeout", "1S").with("grpc-timeout", "2S")),
        (Answer, "a long path", Block::call(&format!("/{long}"))),
        (Answer, "a long name of a method", Block::call(&long_method)),
        (Answer, "a path with ..", Block::call("/waterwheel.v1.WorkerPoolService/../../etc/passwd")),
        (Answer, "a path that is not ASCII", Block::call("/\u{fffd}")),
        (Answer, "no path", Block::new().with(":method", "POST").with(":scheme", "http")),
        (Answer, "GET", Block::pseudo("GET", SUBMIT).with("content-type", "application/grpc")),
        (Answer, "CONNECT", Block::new().with(":method", "CONNECT").with(":authority", "waterwheel")),
        (Answer, "another content type", Block::pseudo("POST", SUBMIT).with("content-type", &long)),
        (Answer, "a deadline that is too large", with("grpc-timeout", "99999999999999999999H")),
        (Answer, "a deadline of zero", with("grpc-timeout", "0n")),
        (Answer, "a long request id", with("x-request-id", &long)),
        (Answer, "an unsound trace", with("traceparent", &long)),
        (Answer, "an unknown encoding", with("grpc-encoding", &long)),
        (Reset, "an empty path", Block::call("")),
        (Reset, "a relative path", Block::call("Submit")),
        (Reset, "a path with a null", Block::call("/waterwheel\0/Submit")),
        (Reset, "a path with a space", Block::call("/waterwheel /Submit")),
        (Reset, "two paths", with(":path", SUBMIT)),
        (Reset, "a pseudo-header at the end", Block::new().with("te", "trailers").with(":path", SUBMIT)),
        (Reset, "a response's pseudo-header", with(":status", "200")),
        (Reset, "a header of HTTP/1", with("transfer-encoding", "chunked")),
        (Reset, "an upgrade", with("connection", "upgrade").with("upgrade", "websocket")),
        (Reset, "an invalid content length", with("content-length", "-1")),
        (Connection, "an unknown pseudo-header", with(":colour", "blue")),
        (Connection, "a name in capitals", with("X-Name", "value")),
        (Connection, "an empty name", with("", "value")),
        (Connection, "a name with a line break", with("x\r\ny", "value")),
        (Connection, "a value with a line break", with("x-a", "b\r\nx-c: d")),
    ]
}
