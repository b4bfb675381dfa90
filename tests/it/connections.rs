//! Connections are bounded in number and in time, and each is counted from its acceptance to its end.
//!
// tidy: real time, because the ends of connections on real sockets are looked at until they come.

mod age;
mod caps;
mod exhaustion;
mod http1;
mod opening;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use waterwheel::net::{Closed, ConnectionTracker};

use crate::{process::PATIENCE, service::Service};

/// One pool of jobs that sleep, behind a server with these keys.
fn serve(server: &str) -> Service {
    Service::start(&config_of(server), Vec::new())
}

fn config_of(server: &str) -> String {
    let kind = r#"kind.sleep = { pool = "one", builtin = "sleep" }"#;
    let drain = r#"drain = { notice = "0s", finish = "60s", kill = "1s" }"#;
    format!("{drain}\n{kind}\npool.one.workers = 4\n[server]\n{server}")
}

/// A client that speaks HTTP/2 and does nothing by itself.
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

    /// A `Watch` of the health, which has no end. Returns when its first answer is there.
    async fn watch(&mut self) -> h2::RecvStream {
        let (answer, mut message) = self.call("/grpc.health.v1.Health/Watch").await;
        message.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
        let mut body = timeout(PATIENCE, answer).await.unwrap().unwrap().into_body();
        timeout(PATIENCE, body.data()).await.unwrap().unwrap().unwrap();
        body
    }

    pub(crate) async fn call(&mut self, path: &str) -> (ResponseFuture, h2::SendStream<Bytes>) {
        let request = http::Request::post(format!("http://test{path}")).header("content-type", "application/grpc");
        let mut ready = self.requests.clone().ready().await.unwrap();
        ready.send_request(request.body(()).unwrap(), false).unwrap()
    }

    /// Waits until the server has ended the connection.
    async fn ended(self) -> Result<(), h2::Error> {
        timeout(PATIENCE, self.connection).await.expect("an end").unwrap()
    }
}

/// Waits until the server has closed the socket.
async fn closed(mut socket: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("an end");
    rest
}

/// Looks at the connections until `reached`.
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
