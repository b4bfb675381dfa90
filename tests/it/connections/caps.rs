//! Over the caps a connection is refused at once, and the others go on.

use std::net::SocketAddr;

use tokio::net::{TcpSocket, TcpStream};
use waterwheel::net::{Closed, Refused};

use super::{Client, closed, serve, until};
use crate::service::{Caller, job};

#[tokio::test]
async fn beyond_the_cap_a_connection_is_refused_at_once_and_the_others_go_on() {
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
async fn one_address_cannot_take_the_room_of_the_others() {
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
async fn a_connection_ends_with_its_service_and_is_counted_once() {
    let service = serve("");
    let tracker = service.tracker.clone();
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(Client::connect(service.public.0).await);
    }
    let silent = connect(service.public.0).await;
    until(&tracker, |tracker| tracker.open() == 6).await;
    // A job gives the others the time to answer the farewell.
    let caller = Caller::of(service.public).await;
    let job = caller.leave(job("sleep", "60000"));
    caller.until(|pool| pool.in_flight == 1).await;
    service.control.drain();
    closed(silent).await;
    for client in clients {
        client.ended().await.expect("a friendly end");
    }
    until(&tracker, |tracker| tracker.open() == 1).await;
    job.abort();
    service.ended().await;
    until(&tracker, |tracker| tracker.open() == 0).await;
    assert_eq!(tracker.accepted(), 7);
    // The last one may be cut on a machine that is slow to answer.
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
