//! Connections are limited in number and age, and each is counted from its acceptance to its end. Those that do not
//! send an HTTP/2 preface in time are closed.

// tidy: real time, because the tests poll the state of connections on real sockets.

pub(crate) mod age;

use std::{future::poll_fn, net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::HeaderMap;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    process::Command,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use waterwheel::net::{Closed, ConnectionTracker, Refused};

use crate::{
    ops_pages::{get, metrics},
    process::{PATIENCE, Process, config_file, program},
    service::{Caller, Service, job},
};

/// Starts a service with one pool for `sleep` jobs and these `[server]` keys.
fn serve(server: &str) -> Service {
    Service::start(&config_of(server), Vec::new())
}

fn config_of(server: &str) -> String {
    let kind = r#"kind.sleep = { pool = "one", builtin = "sleep" }"#;
    let drain = r#"drain = { notice = "0s", finish = "60s", kill = "1s" }"#;
    format!("{drain}\n{kind}\npool.one.workers = 4\n[server]\n{server}")
}

/// An HTTP/2 client without retries or reconnects.
pub(crate) struct Client {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        Self { requests, connection: tokio::spawn(connection) }
    }

    /// Starts a health `Watch`, which never ends. Returns after its first response.
    async fn watch(&mut self) -> h2::RecvStream {
        let (answer, mut message) = self.call("/grpc.health.v1.Health/Watch").await;
        message.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
        let mut body = timeout(PATIENCE, answer).await.unwrap().unwrap().into_body();
        timeout(PATIENCE, body.data()).await.unwrap().unwrap().unwrap();
        body
    }

    pub(crate) async fn call(&mut self, path: &str) -> (ResponseFuture, h2::SendStream<Bytes>) {
        self.call_with(path, &[]).await
    }

    /// [`call`](Self::call), with these headers.
    pub(crate) async fn call_with(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (ResponseFuture, h2::SendStream<Bytes>) {
        let mut request = http::Request::post(format!("http://test{path}"));
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")].iter().chain(headers) {
            request = request.header(*name, *value);
        }
        let mut ready = self.requests.clone().ready().await.unwrap();
        ready.send_request(request.body(()).unwrap(), false).unwrap()
    }

    /// Waits until the server has ended the connection.
    async fn ended(self) -> Result<(), h2::Error> {
        timeout(PATIENCE, self.connection).await.expect("the connection ends").unwrap()
    }
}

/// Reads a whole answer. Returns its headers and trailers.
pub(crate) async fn end_of(answer: ResponseFuture) -> HeaderMap {
    let answer = answer.await.unwrap();
    let mut headers = answer.headers().clone();
    let mut body = answer.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    headers.extend(poll_fn(|cx| body.poll_trailers(cx)).await.unwrap().unwrap_or_default());
    headers
}

/// Waits until the server has closed or reset the socket, and returns what it sent.
async fn closed(mut socket: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("the connection ends");
    rest
}

/// Polls the tracker until `reached`.
pub(crate) async fn until(tracker: &ConnectionTracker, reached: impl Fn(&ConnectionTracker) -> bool) {
    let begin = Instant::now();
    while !reached(tracker) {
        assert!(begin.elapsed() < PATIENCE, "not reached: {}", figures(tracker));
        sleep(Duration::from_millis(1)).await;
    }
}

fn figures(tracker: &ConnectionTracker) -> String {
    let closed: Vec<_> = Closed::ALL.iter().map(|reason| (reason.as_str(), tracker.closed(*reason))).collect();
    format!("open {}, accepted {}, closed {closed:?}", tracker.open(), tracker.accepted())
}

#[tokio::test]
async fn a_connection_without_a_complete_preface_is_closed_after_the_timeout() {
    let service = serve(r#"connections.preface_timeout = "2s""#);
    let begin = Instant::now();
    let mut peers = Vec::new();
    for sent in [0, 1, 23] {
        let mut peer = TcpStream::connect(service.public.0).await.unwrap();
        peer.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..sent]).await.unwrap();
        peers.push(peer);
    }
    for peer in peers {
        closed(peer).await;
    }
    assert!(begin.elapsed() >= Duration::from_millis(1_990), "closed before the timeout");
    until(&service.tracker, |tracker| tracker.closed(Closed::Slow) == 3 && tracker.open() == 0).await;
    Caller::of(service.public)
        .await
        .leave(job("sleep", "2100"))
        .await
        .unwrap()
        .expect("the timeout is for the preface only");
}

#[tokio::test]
async fn a_preface_may_arrive_in_pieces() {
    let service = serve("");
    let mut peer = TcpStream::connect(service.public.0).await.unwrap();
    peer.set_nodelay(true).unwrap();
    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
        peer.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    // An empty SETTINGS frame is answered with the server's own and an acknowledgement.
    peer.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let mut head = [0; 9];
    AsyncReadExt::read_exact(&mut peer, &mut head).await.unwrap();
    assert_eq!(head[3], 4, "SETTINGS");
}

#[tokio::test]
async fn connections_of_other_protocols_are_closed_at_once() {
    // The timeout is too long to be the reason of the close.
    let service = serve(r#"connections.preface_timeout = "1h""#);
    let cases = [&b"\x16\x03\x01\x02\0"[..], b"get / HTTP/1.1\r\n\r\n", b"\0 ", b"QUIT\n"];
    for (count, bytes) in cases.iter().enumerate() {
        let mut peer = TcpStream::connect(service.public.0).await.unwrap();
        peer.write_all(bytes).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&closed(peer).await), "", "{bytes:?}");
        until(&service.tracker, |tracker| tracker.closed(Closed::NotHttp2) == count as u64 + 1).await;
    }
}

/// The server does not read the whole large request, and the client must receive the response nevertheless.
#[tokio::test]
async fn an_http_1_request_is_answered_with_a_hint_about_http_2() {
    let service = serve(r#"connections.preface_timeout = "1h""#);
    let submit = "POST /waterwheel.v1.WorkerPoolService/Submit HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";
    let submit = [submit.as_bytes(), &[b'x'; 100_000]].concat();
    for request in [&submit[..], b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"PUT / HTTP/1.0\r\n\r\n", b"GET"] {
        let mut peer = TcpStream::connect(service.public.0).await.unwrap();
        peer.write_all(request).await.unwrap();
        let answer = String::from_utf8(closed(peer).await).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 ") && head.ends_with("connection: close"), "{head}");
        assert!(text.contains("gRPC over HTTP/2") && text.ends_with("server.ops_listen\n"), "{text}");
    }
    until(&service.tracker, |tracker| tracker.closed(Closed::NotHttp2) == 4).await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_refused_and_the_others_work() {
    let service = serve("connections.max = 3");
    let caller = Caller::of(service.public).await;
    let silent = [connect(service.public.0).await, connect(service.public.0).await];
    until(&service.tracker, |tracker| tracker.open() == 3).await;

    for refused in 1..=20 {
        closed(connect(service.public.0).await).await;
        assert_eq!(service.tracker.refused(Refused::Connections), refused);
    }
    caller.leave(job("sleep", "1")).await.unwrap().unwrap();
    assert_eq!((service.tracker.open(), service.tracker.accepted()), (3, 3));

    drop(silent);
    until(&service.tracker, |tracker| tracker.open() == 1 && tracker.closed(Closed::Peer) == 2).await;
    Caller::of(service.public).await.leave(job("sleep", "1")).await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_of_one_address_are_refused() {
    let service = serve("connections = { max = 10, max_per_address = 2 }");
    let held = [connect_from("127.0.0.2", service.public.0).await, connect_from("127.0.0.2", service.public.0).await];
    until(&service.tracker, |tracker| tracker.open() == 2).await;
    for refused in 1..=5 {
        closed(connect_from("127.0.0.2", service.public.0).await).await;
        assert_eq!(service.tracker.refused(Refused::PerAddress), refused);
    }
    Caller::of(service.public).await.leave(job("sleep", "1")).await.unwrap().unwrap();

    drop(held);
    until(&service.tracker, |tracker| tracker.closed(Closed::Peer) >= 2).await;
    let socket = connect_from("127.0.0.2", service.public.0).await;
    let (_requests, _connection) = h2::client::handshake(socket).await.unwrap();
}

#[tokio::test]
async fn a_drain_closes_every_connection_and_each_is_counted_once() {
    let service = serve("");
    let tracker = service.tracker.clone();
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(Client::connect(service.public.0).await);
    }
    let silent = connect(service.public.0).await;
    until(&tracker, |tracker| tracker.open() == 6).await;
    // The running job gives the other connections time to answer GOAWAY.
    let caller = Caller::of(service.public).await;
    let job = caller.leave(job("sleep", "60000"));
    caller.until(|pool| pool.in_flight == 1).await;
    service.control.drain();
    closed(silent).await;
    for client in clients {
        client.ended().await.expect("the connection is closed without an error");
    }
    until(&tracker, |tracker| tracker.open() == 1).await;
    job.abort();
    service.ended().await;
    until(&tracker, |tracker| tracker.open() == 0).await;
    assert_eq!(tracker.accepted(), 7);
    // On a slow machine, the last connection may be cut before its client answers GOAWAY.
    let ends = (tracker.closed(Closed::GoAway), tracker.closed(Closed::Cut));
    assert!([(7, 0), (6, 1)].contains(&ends), "{}", figures(&tracker));
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

async fn connect_from(local: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(local.parse().unwrap(), 0)).unwrap();
    socket.connect(address).await.unwrap()
}

/// The rest of a refused request is never read, so the client must open another connection, and still get the answer.
#[tokio::test]
async fn an_early_refusal_over_http_1_announces_the_close() {
    let service = serve("");
    for (head, body, closes) in [
        ("POST /unknown HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n", 300_000, true),
        ("POST /unknown HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 0, true),
        (
            "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\nGET /l HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            0,
            false,
        ),
    ] {
        let mut peer = TcpStream::connect(service.ops.0).await.unwrap();
        peer.write_all(head.as_bytes()).await.unwrap();
        peer.write_all(&vec![b'x'; body]).await.unwrap();
        let answer = String::from_utf8(closed(peer).await).unwrap();
        let first = answer.split("\r\n\r\n").next().unwrap();
        assert_eq!(first.contains("connection: close"), closes, "{answer}");
        assert!(answer.contains("unknown path; pages: "), "{answer}");
    }
}

/// Callers cannot use up the open files that probes need.
#[tokio::test]
async fn connections_leave_open_files_for_probes() {
    let (_dir, file) =
        config_file("drain.notice = \"0s\"\npool.one.workers = 1\nkind.echo = { pool = \"one\", builtin = \"echo\" }");
    let mut command = Command::new("/bin/sh");
    command.env_clear().kill_on_drop(true).args(["-c", "ulimit -n 150; exec \"$@\"", "sh"]);
    command.arg(program(&[]).as_std().get_program()).args(["serve", "--config", file.to_str().unwrap()]);
    command.args(["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]).env("WATERWHEEL_SERVER__THREADS", "2");
    let process = Process::of(command).await;
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(TcpStream::connect(process.public.0).await.unwrap());
    }
    let refused = "waterwheel_connections_refused_total{listener=\"public\",reason=\"connections\"}";
    crate::process::until("some are refused", async || metrics(process.ops).await[refused] > 100.0).await;
    assert_eq!(get(process.ops, "/livez").await.0, 200);
    drop(held);
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.ended().await.code, Some(0));
}
