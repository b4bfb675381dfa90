//! The PROXY protocol: only configured proxies may name the client address of a connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use waterwheel::net::Closed;

use crate::{connections::until, process::PATIENCE, service::Service};

const PROXY: [u8; 4] = [127, 0, 0, 9];

fn serve(server: &str) -> Service {
    let pool = r#"kind.echo = { pool = "one", builtin = "echo" }"#;
    Service::start(&format!("{pool}\npool.one.workers = 1\n[server]\nproxies = [\"127.0.0.9\"]\n{server}"), Vec::new())
}

async fn connect(from: [u8; 4], service: &Service, header: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(from)), 0)).unwrap();
    let mut stream = socket.connect(service.public.0).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(header).await.unwrap();
    stream
}

/// Whether the server answers an HTTP/2 request on the connection.
async fn works(stream: TcpStream) -> bool {
    let Ok((requests, connection)) = h2::client::handshake(stream).await else { return false };
    let connection = tokio::spawn(connection);
    let Ok(mut requests) = requests.ready().await else { return false };
    let request = http::Request::post("http://test/grpc.health.v1.Health/Check");
    let request = request.header("content-type", "application/grpc").body(()).unwrap();
    let (answer, mut message) = requests.send_request(request, false).unwrap();
    let _ = message.send_data(bytes::Bytes::from_static(&[0; 5]), true);
    let answer = timeout(PATIENCE, answer).await.expect("an answer or an end");
    connection.abort();
    answer.is_ok()
}

const V1: &[u8] = b"PROXY TCP4 203.0.113.7 127.0.0.1 40000 7070\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\x7f\0\0\x01\x9c\x40\x1b\x9e";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

#[tokio::test]
async fn connections_from_a_proxy_must_start_with_a_valid_header() {
    let service = serve("");
    for header in [V1, V2, LOCAL, b"PROXY UNKNOWN\r\n"] {
        assert!(works(connect(PROXY, &service, header).await).await, "{header:?}");
    }
    let mut pieces = connect(PROXY, &service, b"").await;
    for byte in V1 {
        pieces.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(works(pieces).await, "a header may arrive in pieces");
    assert!(!works(connect(PROXY, &service, b"").await).await, "a proxy must send a header");
    assert!(!works(connect(PROXY, &service, b"PROXY TCP4 invalid\r\n").await).await);
    until(&service.tracker, |tracker| tracker.closed(Closed::ProxyHeader) == 2).await;
}

#[tokio::test]
async fn headers_from_other_addresses_are_refused() {
    let service = serve("");
    assert!(works(connect([127, 0, 0, 1], &service, b"").await).await);
    for header in [V1, V2, LOCAL] {
        assert!(!works(connect([127, 0, 0, 1], &service, header).await).await, "{header:?}");
    }
    until(&service.tracker, |tracker| tracker.closed(Closed::NotHttp2) == 3).await;
}

#[tokio::test]
async fn clients_behind_a_proxy_are_limited_by_their_own_addresses() {
    let service = serve("connections.max_per_address = 1");
    let other: &[u8] = b"PROXY TCP4 203.0.113.8 127.0.0.1 40000 7070\r\n";
    let mut held = [connect(PROXY, &service, V1).await, connect(PROXY, &service, other).await];
    for stream in &mut held {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut head = [0; 9];
        timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("an answer").unwrap();
        assert_eq!(head[3], 4, "the server answers with SETTINGS");
    }
    assert!(!works(connect(PROXY, &service, V1).await).await, "a second connection of the same client");
    until(&service.tracker, |tracker| tracker.closed(Closed::PerAddress) == 1).await;
}

/// An HTTP proxy carries many clients, but sends no PROXY header.
#[tokio::test]
async fn connections_from_an_http_proxy_have_no_limit_per_address() {
    let service = serve("http_proxies = [\"127.0.0.8\"]\nconnections.max_per_address = 1");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(connect([127, 0, 0, 8], &service, b"").await);
    }
    assert!(works(connect([127, 0, 0, 8], &service, b"").await).await);
    assert!(!works(connect([127, 0, 0, 8], &service, V1).await).await, "an HTTP proxy may not send a header");
    held.push(connect([127, 0, 0, 1], &service, b"").await);
    until(&service.tracker, |tracker| tracker.open() == 5).await;
    assert!(!works(connect([127, 0, 0, 1], &service, b"").await).await, "other addresses are limited");
}

#[tokio::test]
async fn a_connection_with_an_incomplete_header_is_closed_in_time() {
    let service = serve(r#"connections.preface_timeout = "200ms""#);
    let mut stream = connect(PROXY, &service, &V1[..20]).await;
    let end = timeout(PATIENCE, stream.read(&mut [0])).await.expect("an end");
    assert!(matches!(end, Ok(0) | Err(_)));
}
