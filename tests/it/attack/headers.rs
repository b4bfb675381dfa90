//! Headers that are too many, too large, not allowed, or larger inside than outside.

use super::{
    SUBMIT,
    frames::{Block, DYNAMIC, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, PROTOCOL_ERROR},
    peer::Peer,
    target::{CONFIG, MIB, Target},
};

/// A header of 4,000 bytes that is kept in the server's table, and then named 4,000 times in a block by one byte each:
/// 16 MB of headers for each 4 kB sent.
///
/// Holds: the connection ends with ENHANCE_YOUR_CALM at the first such block, and memory stays what it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hpack_bomb() {
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

/// Calls of one connection.
const CALLS: usize = 10;

/// How a call ends, or its connection with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answer,
    Reset,
    Connection,
}

/// Calls whose headers are too many, too long, twice, missing, misplaced, or meant for somebody else.
///
/// Holds: each call ends by itself, with an answer or a reset; or, where its headers are no headers at all, the
/// connection does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_and_path_abuse() {
    let target = Target::serve(CONFIG).await;
    let attack = async {
        for (end, what, block) in cases() {
            let mut peer = Peer::connect(target.public()).await;
            for _ in 0..CALLS {
                let stream = peer.stream();
                peer.send(&Frames::new().frame(HEADERS, END_HEADERS | END_STREAM, stream, block.bytes())).await;
            }
            peer.until("an end of each call", |seen| seen.ended == CALLS).await;
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
        (Answer, "a path upwards", Block::call("/waterwheel.v1.WorkerPoolService/../../etc/passwd")),
        (Answer, "a path of other letters", Block::call("/\u{fffd}")),
        (Answer, "no path", Block::new().with(":method", "POST").with(":scheme", "http")),
        (Answer, "GET", Block::pseudo("GET", SUBMIT).with("content-type", "application/grpc")),
        (Answer, "CONNECT", Block::new().with(":method", "CONNECT").with(":authority", "waterwheel")),
        (Answer, "a content type of its own", Block::pseudo("POST", SUBMIT).with("content-type", &long)),
        (Answer, "a deadline that is none", with("grpc-timeout", "99999999999999999999H")),
        (Answer, "a deadline of nothing", with("grpc-timeout", "0n")),
        (Answer, "a long request id", with("x-request-id", &long)),
        (Answer, "an unsound trace", with("traceparent", &long)),
        (Answer, "an encoding nobody knows", with("grpc-encoding", &long)),
        (Reset, "an empty path", Block::call("")),
        (Reset, "a relative path", Block::call("Submit")),
        (Reset, "a path with a null", Block::call("/waterwheel\0/Submit")),
        (Reset, "a path with a space", Block::call("/waterwheel /Submit")),
        (Reset, "two paths", with(":path", SUBMIT)),
        (Reset, "a pseudo-header at the end", Block::new().with("te", "trailers").with(":path", SUBMIT)),
        (Reset, "a response's pseudo-header", with(":status", "200")),
        (Reset, "a header of HTTP/1", with("transfer-encoding", "chunked")),
        (Reset, "an upgrade", with("connection", "upgrade").with("upgrade", "websocket")),
        (Reset, "a length that is none", with("content-length", "-1")),
        (Connection, "a pseudo-header nobody knows", with(":colour", "blue")),
        (Connection, "a name in capitals", with("X-Name", "value")),
        (Connection, "an empty name", with("", "value")),
        (Connection, "a name with a line break", with("x\r\ny", "value")),
        (Connection, "a value with a line break", with("x-a", "b\r\nx-c: d")),
    ]
}
