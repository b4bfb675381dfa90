//! Streams that are opened to be reset, by the peer or, provoked, by the server; and those that stay half open.

use super::{
    SUBMIT,
    control::Bare,
    frames::{
        Block, CANCEL, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, Frames, MAX_CONCURRENT_STREAMS, PROTOCOL_ERROR,
        REFUSED_STREAM,
    },
    peer::Peer,
    submit,
    target::{CONFIG, MIB, Target},
};
use crate::service::Address;

/// Streams that a peer may make the server reset.
const MOST_RESETS: usize = 1024;
/// Streams that may be open at once.
const MOST_STREAMS: usize = 256;
/// A job that lasts longer than any test.
const LONG_JOB: &str = r#"{"ms":60000}"#;

/// What a peer does to a stream so that the server resets it.
#[derive(Debug, Clone, Copy)]
enum Provocation {
    /// A window that grows by nothing.
    ZeroIncrement,
    /// A window that grows beyond what there can be.
    Overflow,
    /// A body that goes on after its end.
    DataAfterEnd,
    /// Headers after the end of the body.
    HeadersAfterEnd,
    /// A stream that depends on itself.
    SelfDependency,
    /// A body that is shorter than was said.
    ShorterBody,
}

/// How a provocation ends the connection.
#[derive(Debug, Clone, Copy)]
enum End {
    /// At once, as an error of the connection.
    AtOnce,
    /// When there were too many resets, each with this code.
    TooMany(u32),
}

const PROVOCATIONS: [(Provocation, End); 6] = [
    (Provocation::ZeroIncrement, End::AtOnce),
    (Provocation::DataAfterEnd, End::AtOnce),
    (Provocation::Overflow, End::TooMany(FLOW_CONTROL_ERROR)),
    (Provocation::HeadersAfterEnd, End::TooMany(PROTOCOL_ERROR)),
    (Provocation::SelfDependency, End::TooMany(PROTOCOL_ERROR)),
    (Provocation::ShorterBody, End::TooMany(PROTOCOL_ERROR)),
];

impl Provocation {
    /// A call whose work begins, and what makes the server reset it.
    fn frames(self, stream: u32) -> Frames {
        let call = Block::call(SUBMIT);
        let job = submit("sleep", LONG_JOB);
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

/// MadeYouReset (CVE-2025-8671): calls are opened and the server is made to reset them, so that they count as closed
/// while their work goes on. Both known variants, windows (no increment, overflow) and frames after the end, and two
/// more provocations.
///
/// Holds: a connection ends at once, or after 1,024 resets with ENHANCE_YOUR_CALM, and none of the calls leaves a job
/// behind. A bare server resets without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_you_reset() {
    let target = Target::serve(CONFIG).await;
    let bare = Bare::start();
    target
        .under(async {
            for (provocation, end) in PROVOCATIONS {
                let peer = provoke(target.public(), provocation, 2 * MOST_RESETS).await;
                let (most, reason) = match end {
                    End::AtOnce => (0, PROTOCOL_ERROR),
                    End::TooMany(_) => (MOST_RESETS, ENHANCE_YOUR_CALM),
                };
                assert!(peer.seen.closed && peer.seen.resets() <= most, "{provocation:?}: {:?}", peer.seen);
                assert_eq!(peer.seen.go_away, Some(reason), "{provocation:?}: {:?}", peer.seen);
            }
        })
        .await;
    target.recovers(32 * MIB).await;

    for (provocation, end) in PROVOCATIONS {
        let End::TooMany(code) = end else { continue };
        let peer = provoke(bare.address, provocation, 2 * MOST_RESETS).await;
        assert!(!peer.seen.closed, "stock tonic holds {provocation:?}: {:?}", peer.seen);
        assert!(peer.seen.resets[&code] >= 2 * MOST_RESETS, "{provocation:?}: {:?}", peer.seen);
    }
}

/// Rapid reset (CVE-2023-44487): calls whose work begins are cancelled at once, so that they never count as open.
///
/// Holds: a peer that cancels calls before they are looked at loses its connection with ENHANCE_YOUR_CALM; one that
/// waits until their jobs run has them cancelled with their calls, and none is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_reset() {
    let target = Target::serve(CONFIG).await;
    // None of them ends by its deadline, however slow the machine is.
    let (call, job) = (Block::call(SUBMIT).with("grpc-timeout", "1H"), submit("sleep", LONG_JOB));
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
                // One of the other client may run.
                target.caller().until(|pool| pool.in_flight <= 1).await;
            }
            assert_eq!((patient.seen.closed, patient.seen.ended), (false, 0), "{:?}", patient.seen);
        })
        .await;
    target.recovers(32 * MIB).await;
}

/// 20,000 calls on one connection whose messages never come.
///
/// Holds: the server says how many streams it takes, opens no more, and ends the connection of a peer that goes on.
/// A bare server opens them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_streams() {
    const STREAMS: usize = 20_000;
    let target = Target::serve(CONFIG).await;
    let peer = target.under(half_open(target.public(), STREAMS)).await;
    assert_eq!(peer.seen.settings[&MAX_CONCURRENT_STREAMS] as usize, MOST_STREAMS);
    assert_eq!((peer.seen.closed, peer.seen.go_away), (true, Some(ENHANCE_YOUR_CALM)), "{:?}", peer.seen);
    let refused = peer.seen.resets[&REFUSED_STREAM];
    assert!((1..=MOST_RESETS).contains(&refused), "{:?}", peer.seen);
    target.recovers(32 * MIB).await;

    let peer = half_open(Bare::start().address, STREAMS).await;
    assert!(!peer.seen.settings.contains_key(&MAX_CONCURRENT_STREAMS), "stock tonic holds: {:?}", peer.seen);
    assert_eq!((peer.seen.closed, peer.seen.resets()), (false, 0), "stock tonic holds: {:?}", peer.seen);
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
