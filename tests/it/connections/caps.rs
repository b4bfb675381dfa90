//! Connections beyond the limits are refused at once, and the open ones are not affected.

use std::net::SocketAddr;

use tokio::net::{TcpSocket, TcpStream};
use waterwheel::net::{Closed, Refused};

use super::{Client, closed, serve, until};
use crate::service::{Caller, job};

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
    assert!([(7, 0), (6, 1)].contains(&ends), "{}", super::figures(&tracker));
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

async fn connect_from(local: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(local.parse().unwrap(), 0)).unwrap();
    socket.connect(address).await.unwrap()
}
