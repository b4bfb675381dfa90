//! Streams that the peer resets, streams that it makes the server reset, and streams that stay half open.

use super::{
    SUBMIT,
    frames::{Block, CANCEL, ENHANCE_YOUR_CALM, Frames, MAX_CONCURRENT_STREAMS, PROTOCOL_ERROR, REFUSED_STREAM},
    peer::Peer,
    target::{CONFIG, MIB, Target},
};
use crate::service::{Address, submission};

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
