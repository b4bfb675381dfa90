//! Calls by HTTP/1.1, which pages of browsers make, are counted and bounded as all others are.

use std::time::Duration;

use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use waterwheel::proto::SubmitRequest;

use super::serve;
use crate::{process::PATIENCE, service::job};

const SERVER: &str = r#"
    grpc_web_origins = ["http://page.example"]
    connections.idle_timeout = "1s"
    [deadline]
    default = "3s"
"#;

/// A call of a job that sleeps, of whose body `missing` bytes are not sent.
async fn call(address: std::net::SocketAddr, millis: u32, missing: usize) -> TcpStream {
    let message = SubmitRequest { job: Some(job("sleep", format!(r#"{{"ms":{millis}}}"#))) }.encode_to_vec();
    let body = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let head = format!(
        "POST /waterwheel.v1.WorkerPoolService/Submit HTTP/1.1\r\nhost: test\r\norigin: http://page.example\r\n\
         content-type: application/grpc-web+proto\r\nx-grpc-web: 1\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(&body[..body.len() - missing]).await.unwrap();
    socket
}

#[tokio::test]
async fn a_call_that_runs_is_not_cut_as_idle() {
    let service = serve(SERVER);
    let mut socket = call(service.public.0, 2_500, 0).await;
    let mut answer = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("an end").unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("grpc-status:0"), "{answer}");
}

#[tokio::test]
async fn a_body_that_never_ends_ends_with_the_deadline() {
    let service = serve(SERVER);
    let begin = Instant::now();
    let mut socket = call(service.public.0, 1, 2).await;
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("an end");
    assert!(begin.elapsed() >= Duration::from_millis(2_995), "{:?}", begin.elapsed());
}
