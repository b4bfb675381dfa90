//! Responses that clients still read when no job runs any more.
//!
// tidy: real time, because the tests measure how long a slow reader has.

use std::{net::SocketAddr, time::Duration};

use h2::RecvStream;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

use crate::{
    connections::{Client, age::page_call},
    process::{PATIENCE, Process},
    service::submission,
};

/// Size of the response in bytes, much larger than the initial window of a stream.
const LARGE: usize = 2 << 20;

fn config(finish: &str) -> String {
    format!(
        r#"
        drain = {{ notice = "0s", finish = "{finish}", kill = "200ms" }}
        kind.echo = {{ pool = "one", builtin = "echo" }}
        pool.one.workers = 2
        "#
    )
}

/// Calls `echo`, and returns the response body unread.
async fn unread(client: &mut Client) -> RecvStream {
    let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
    message.send_data(submission("echo", vec![1; LARGE]).into(), true).unwrap();
    timeout(PATIENCE, answer).await.expect("the response begins").unwrap().into_body()
}

#[tokio::test]
async fn a_slow_reader_receives_its_whole_response_during_a_drain() {
    let process = Process::serve(&config("20s")).await;
    let mut client = Client::connect(process.public.0).await;
    let mut body = unread(&mut client).await;
    process.signal(Signal::TERM);
    let mut read = 0;
    while let Some(data) = timeout(PATIENCE, body.data()).await.expect("more data") {
        let length = data.expect("no reset").len();
        read += length;
        // Several hundred chunks take many times as long as the server waits for connections to close.
        sleep(Duration::from_millis(2)).await;
        body.flow_control().release_capacity(length).unwrap();
    }
    assert!(read > LARGE, "{read} bytes");
    let ended = process.ended().await;
    assert_eq!((ended.code, ended.receipt["cut"].to_string()), (Some(0), "[]".to_owned()), "{:?}", ended.receipt);
}

#[tokio::test]
async fn an_unread_response_is_cut_at_the_end_of_the_drain_and_listed_in_the_receipt() {
    assert_cut_and_listed(&config("500ms")).await;
}

#[tokio::test]
async fn a_response_that_reaches_the_stall_timeout_during_a_drain_is_listed_in_the_receipt() {
    assert_cut_and_listed(&format!("{}\nserver.memory.stall = \"300ms\"\n", config("20s"))).await;
}

async fn assert_cut_and_listed(config: &str) {
    let process = Process::serve(config).await;
    let mut client = Client::connect(process.public.0).await;
    let _body = unread(&mut client).await;
    process.signal(Signal::TERM);
    let ended = process.ended().await;
    let cut = ended.receipt["cut"].as_array().expect("a list");
    assert_eq!((ended.code, cut.len()), (Some(3), 1), "{:?}", ended.receipt);
    assert!(cut[0]["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{cut:?}");
    assert!(cut[0]["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1")), "{cut:?}");
    let unsent = cut[0]["unsent_bytes"].as_u64().expect("a number");
    assert!((1..LARGE as u64).contains(&unsent), "{cut:?}");
}

/// Size of a response in bytes that no socket buffer can hold.
const HUGE: usize = 12_000_000;
/// Longer than a server waits for idle connections to close.
const PAUSE: Duration = Duration::from_millis(600);

async fn serve_huge() -> Process {
    let config = format!(
        r#"
        server = {{ grpc_web_origins = ["http://page.example"], max_output = "16MiB" }}
        drain = {{ notice = "0s", finish = "20s", kill = "200ms" }}
        pool.one.workers = 1
        kind.huge = {{ pool = "one", exec = ["/bin/sh", "-c", "sleep 0.3; head -c {HUGE} /dev/zero"] }}
        "#
    );
    Process::serve(&config).await
}

/// Connects with a small receive buffer.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(address).await.unwrap()
}

#[tokio::test]
async fn a_response_over_http_1_is_complete_after_a_drain() {
    let process = serve_huge().await;
    let mut socket = narrow(process.public.0).await;
    socket.write_all(&page_call("huge", String::new())).await.unwrap();
    let mut answer = vec![0; 1 << 10];
    timeout(PATIENCE, socket.read_exact(&mut answer)).await.expect("the response begins").unwrap();
    process.signal(Signal::TERM);
    sleep(PAUSE).await;
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("the response ends").unwrap();
    assert!(answer.len() > HUGE, "{} bytes", answer.len());
    let ended = process.ended().await;
    assert_eq!((ended.code, ended.receipt["cut"].to_string()), (Some(0), "[]".to_owned()), "{:?}", ended.receipt);
}
