//! The last response on a connection that the server closes while the client still reads it slowly.

// tidy: real time, because the kernel needs some time to act on a closed socket.

use std::time::Duration;

use tokio::time::timeout;
use waterwheel::{
    app::OwnKind,
    handler::Context,
    model::{HandlerError, Output},
    net::Closed,
};

use super::{
    SUBMIT,
    frames::{ACK, Block, Frames, INITIAL_WINDOW_SIZE, PING},
    peer::Peer,
};
use crate::{
    connections::until,
    service::{Service, submission},
    support::{Counter, Gate, kind},
};

const CONFIG: &str = r#"
    server.connections = { max_age = "3s", max_age_grace = "1h" }
    [pool.one]
    workers = 1
"#;
/// More than the kernel buffers for the reader, and less than it buffers for both ends together.
const OUTPUT: usize = 512 << 10;
/// Payload of the PING that h2 sends with its first GOAWAY. Its answer makes h2 send the final GOAWAY.
const SHUTDOWN_PING: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// A frame that arrives after the server has closed its socket would make the kernel reset the connection. The peer
/// would lose what it has not received.
#[tokio::test]
async fn a_slow_reader_that_still_sends_frames_receives_the_whole_last_response() {
    let (begun, gate) = (Counter::new(), Gate::new());
    let (beginning, gated) = (begun.clone(), gate.clone());
    let large = kind("large", move |_, _| {
        let (begun, gate) = (beginning.clone(), gated.clone());
        async move {
            begun.add();
            gate.pass().await;
            Ok(Output::new(vec![7; OUTPUT]))
        }
    });
    let service = Service::start(CONFIG, vec![OwnKind::new("one", large)]);
    let mut peer = Peer::connect_with(service.public, &[(INITIAL_WINDOW_SIZE, 8 << 20)]).await;
    let stream = peer.stream();
    let call = Frames::new().window_update(0, 8 << 20).headers(stream, &Block::call(SUBMIT));
    assert!(peer.send(&call.data_end(stream, &submission("large", ""))).await);
    begun.reached(1).await;
    peer.until("a GOAWAY", |seen| seen.go_away.is_some()).await;
    assert!(peer.send(&Frames::new().frame(PING, ACK, 0, &SHUTDOWN_PING)).await);
    gate.open();
    // After this time the server has written the response, or waits for the reader.
    let gone = until(&service.tracker, |tracker| tracker.open() == 0);
    let _ = timeout(Duration::from_millis(300), gone).await;
    assert_eq!(service.tracker.open(), 1, "the connection was closed before the reader had the whole response");
    peer.send_deaf(&Frames::new().window_update(0, 1)).await;
    peer.until_closed().await;
    assert!(peer.seen.body > OUTPUT, "{} bytes of {OUTPUT}", peer.seen.body);
}

/// The server waits two seconds for the peer to close its half of the connection.
#[tokio::test]
async fn a_connection_that_the_peer_does_not_close_is_closed_by_the_server() {
    let service = Service::start(CONFIG, vec![OwnKind::new("one", kind("none", none))]);
    let mut peer = Peer::connect(service.public).await;
    peer.until("a GOAWAY", |seen| seen.go_away.is_some()).await;
    assert!(peer.send(&Frames::new().frame(PING, ACK, 0, &SHUTDOWN_PING)).await);
    peer.until_closed().await;
    until(&service.tracker, |tracker| tracker.open() == 0).await;
    assert_eq!(service.tracker.closed(Closed::Age), 1);
    drop(peer);
}

async fn none(_: waterwheel::Job, _: Context) -> Result<Output, HandlerError> {
    Ok(Output::default())
}
