//! Headers that are too many, too large, invalid, or much larger after decompression.

use super::{
    SUBMIT,
    frames::{Block, DYNAMIC, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, PROTOCOL_ERROR},
    peer::Peer,
    target::{CONFIG, MIB, Target},
};

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
