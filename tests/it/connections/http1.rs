//! Calls over HTTP/1.1, which browsers make by gRPC-Web, have the same limits as other calls.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use super::serve;
use crate::{process::PATIENCE, service::submission};

const SERVER: &str = r#"
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
    let service = serve(&SERVER.replace("3s", "60s"));
    let mut socket = call(service.public.0, 2_500, 0).await;
    let mut answer = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("the connection ends").unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("grpc-status:0"), "{answer}");
}

#[tokio::test]
async fn a_call_with_an_unfinished_body_ends_by_the_default_deadline() {
    let service = serve(SERVER);
    let begin = Instant::now();
    let mut socket = call(service.public.0, 1, 2).await;
    let mut answer = Vec::new();
    // The server may close or reset the connection.
    let _ = timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("the connection ends");
    assert!(begin.elapsed() >= Duration::from_millis(2_995), "{:?}", begin.elapsed());
}
