//! The last answer of a connection that the server ends, on its way to a reader that is slow.

// tidy: real time, because what the system does with a socket that is closed is seen after a while.

use std::time::Duration;

use tokio::time::{sleep, timeout};
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
    submit,
};
use crate::{
    process::PATIENCE,
    service::Service,
    support::{Counter, Gate, kind},
};

const CONFIG: &str = r#"
    server.connections = { max_age = "1s", max_age_grace = "1h" }
    [pool.one]
    workers = 1
"#;
/// More than the system has room for at the reader, and less than at both ends.
const OUTPUT: usize = 512 << 10;
/// What h2 asks with its goodbye; the last stream is known once it is answered.
const GOODBYE: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// A window update that arrives behind the last answer does not make the system reset the connection, which would take
/// with it what the peer has not received.
#[tokio::test]
async fn a_peer_that_reads_late_and_still_speaks_gets_all_of_the_last_answer() {
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
    assert!(peer.send(&call.data_end(stream, &submit("large", ""))).await);
    begun.reached(1).await;
    peer.until("a goodbye", |seen| seen.go_away.is_some()).await;
    assert!(peer.send(&Frames::new().frame(PING, ACK, 0, &GOODBYE)).await);
    gate.open();
    // The server has written all of it by now, or it is as slow as the reader.
    let gone = async {
        while service.tracker.open() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = timeout(Duration::from_millis(300), gone).await;
    assert_eq!(service.tracker.open(), 1, "the reader is not done");
    peer.send_deaf(&Frames::new().window_update(0, 1)).await;
    peer.until_closed().await;
    assert!(peer.seen.body > OUTPUT, "{} bytes of {OUTPUT}", peer.seen.body);
}

/// A peer that keeps its half of an ended connection open holds the server's for two seconds, and no longer.
#[tokio::test]
async fn a_peer_that_does_not_let_go_is_let_go() {
    let service = Service::start(CONFIG, vec![OwnKind::new("one", kind("none", none))]);
    let mut peer = Peer::connect(service.public).await;
    peer.until("a goodbye", |seen| seen.go_away.is_some()).await;
    assert!(peer.send(&Frames::new().frame(PING, ACK, 0, &GOODBYE)).await);
    peer.until_closed().await;
    let gone = async {
        while service.tracker.open() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("an end");
    assert_eq!(service.tracker.closed(Closed::Age), 1);
    drop(peer);
}

async fn none(_: waterwheel::Job, _: Context) -> Result<Output, HandlerError> {
    Ok(Output::default())
}
