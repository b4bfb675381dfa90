//! Connections that do not send an HTTP/2 preface in time, or send something else, are closed.

use std::time::Duration;

use tokio::{io::AsyncWriteExt, net::TcpStream, time::Instant};
use waterwheel::net::Closed;

use super::{closed, serve, until};
use crate::service::{Caller, job};

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
    tokio::io::AsyncReadExt::read_exact(&mut peer, &mut head).await.unwrap();
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
