//! Connections are limited in number and age, and each is counted from its acceptance to its end.
//!
// tidy: real time, because the tests poll the state of connections on real sockets.

pub(crate) mod age;
mod opening;

use std::{future::poll_fn, net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::HeaderMap;
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use waterwheel::net::{Closed, ConnectionTracker};

use crate::{process::PATIENCE, service::Service};

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
