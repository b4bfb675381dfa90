//! Old and idle connections are closed without cutting calls before the grace period ends, over HTTP/1.1 as well. A
//! client that still reads the last response slowly receives all of it.

// tidy: real time, because the kernel needs some time to act on a closed socket.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use waterwheel::{
    app::OwnKind,
    handler::Context,
    model::{HandlerError, Output},
    net::Closed,
};

use super::{Client, serve, until};
use crate::{
    attack::{
        SUBMIT,
        peer::{ACK, Block, Frames, INITIAL_WINDOW_SIZE, PING, Peer},
    },
    process::PATIENCE,
    service::{Service, submission},
    support::{Counter, Gate, kind},
};

#[tokio::test]
async fn a_connection_at_its_maximum_age_receives_goaway_and_finishes_its_calls() {
    let service = serve(r#"connections = { max_age = "2s", max_age_grace = "1h" }"#);
    let begin = Instant::now();
    let mut client = Client::connect(service.public.0).await;
    let watch = client.watch().await;
    let mut requests = client.requests.clone();
    // The client cannot open streams once it has received GOAWAY.
    while let Ok(ready) = requests.clone().ready().await {
        drop(ready);
        assert!(begin.elapsed() < PATIENCE, "no GOAWAY");
        tokio::task::yield_now().await;
        requests = client.requests.clone();
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(1_795), "{took:?}: jitter may shorten the age by a tenth, to 1.8 s");
    assert_eq!(service.tracker.open(), 1, "its call still runs");
    drop(watch);
    client.ended().await.expect("the connection is closed without an error");
    until(&service.tracker, |tracker| tracker.closed(Closed::Age) == 1 && tracker.open() == 0).await;
}

#[tokio::test]
async fn a_call_that_outlives_the_age_and_the_grace_period_is_cut() {
    let service = serve(r#"connections = { max_age = "2s", max_age_grace = "200ms" }"#);
    let begin = Instant::now();
    let mut client = Client::connect(service.public.0).await;
    let mut watch = client.watch().await;
    let end = timeout(PATIENCE, watch.data()).await.expect("the call ends");
    assert!(end.is_none_or(|data| data.is_err()), "its health did not change");
    assert!(begin.elapsed() >= Duration::from_millis(1_995), "{:?}", begin.elapsed());
    until(&service.tracker, |tracker| tracker.closed(Closed::AgeCut) == 1 && tracker.open() == 0).await;
}

#[tokio::test]
async fn a_connection_without_calls_is_closed_and_one_with_a_call_is_not() {
    let service = serve(r#"connections.idle_timeout = "1s""#);
    let begin = Instant::now();
    let mut busy = Client::connect(service.public.0).await;
    let watch = busy.watch().await;
    let idle = Client::connect(service.public.0).await;
    idle.ended().await.expect("the connection is closed without an error");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    until(&service.tracker, |tracker| tracker.closed(Closed::Idle) == 1).await;
    // An idle connection is closed after at most twice the timeout.
    let another = Client::connect(service.public.0).await;
    another.ended().await.expect("the connection is closed without an error");
    until(&service.tracker, |tracker| tracker.closed(Closed::Idle) == 2).await;
    assert_eq!(service.tracker.open(), 1, "the connection with an open call is closed");
    drop(watch);
    busy.ended().await.expect("the connection is closed without an error");
    until(&service.tracker, |tracker| tracker.closed(Closed::Idle) == 3).await;
}

const PAGES: &str = r#"
    grpc_web_origins = ["http://page.example"]
    connections.idle_timeout = "1s"
    [deadline]
    default = "3s"
"#;

/// A call of `Submit` over HTTP/1.1 by a page of `http://page.example`.
pub(crate) fn page_call(kind: &str, payload: String) -> Vec<u8> {
    let body = submission(kind, payload);
    let head = format!(
        "POST /waterwheel.v1.WorkerPoolService/Submit HTTP/1.1\r\nhost: test\r\norigin: http://page.example\r\n\
         content-type: application/grpc-web+proto\r\nx-grpc-web: 1\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// Calls `Submit` with a `sleep` job, and leaves out the last `missing` bytes of the body.
async fn call(address: std::net::SocketAddr, millis: u32, missing: usize) -> TcpStream {
    let call = page_call("sleep", format!(r#"{{"ms":{millis}}}"#));
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(&call[..call.len() - missing]).await.unwrap();
    socket
}

#[tokio::test]
async fn a_connection_with_a_running_call_is_not_closed_as_idle() {
    let service = serve(&PAGES.replace("3s", "60s"));
    let mut socket = call(service.public.0, 2_500, 0).await;
    let mut answer = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("the connection ends").unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("grpc-status:0"), "{answer}");
}

#[tokio::test]
async fn a_call_with_an_unfinished_body_ends_by_the_default_deadline() {
    let service = serve(PAGES);
    let begin = Instant::now();
    let mut socket = call(service.public.0, 1, 2).await;
    let mut answer = Vec::new();
    // The server may close or reset the connection.
    let _ = timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("the connection ends");
    assert!(begin.elapsed() >= Duration::from_millis(2_950), "{:?}", begin.elapsed());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("grpc-status: 4") && answer.contains("connection: close"), "{answer}");
}

const OLD: &str = r#"
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
    let service = Service::start(OLD, vec![OwnKind::new("one", large)]);
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
    let service = Service::start(OLD, vec![OwnKind::new("one", kind("none", none))]);
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
