//! Answers that are on their way when nothing runs any more.
//!
// tidy: real time, because what is promised is how long a slow reader has.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::RecvStream;
use prost::Message;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use waterwheel::proto::SubmitRequest;

use crate::{
    connections::Client,
    process::{PATIENCE, Process},
    service::job,
};

/// Bytes of the answer: most of it is more than a stream's first window.
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

/// Calls `echo`, and returns the answer of which nothing but its head was read.
async fn unread(client: &mut Client) -> RecvStream {
    let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
    let request = SubmitRequest { job: Some(job("echo", vec![1; LARGE])) }.encode_to_vec();
    let head = [&[0][..], &(request.len() as u32).to_be_bytes()].concat();
    message.send_data(Bytes::from([head, request].concat()), true).unwrap();
    timeout(PATIENCE, answer).await.expect("an answer").unwrap().into_body()
}

#[tokio::test]
async fn a_slow_reader_gets_its_answer_whole_during_a_drain() {
    let process = Process::serve(&config("20s")).await;
    let mut client = Client::connect(process.public.0).await;
    let mut body = unread(&mut client).await;
    process.signal(Signal::TERM);
    let mut read = 0;
    while let Some(data) = timeout(PATIENCE, body.data()).await.expect("more of it") {
        let length = data.expect("no reset").len();
        read += length;
        // Several hundred pieces: the whole takes many times as long as connections have to close by themselves.
        sleep(Duration::from_millis(2)).await;
        body.flow_control().release_capacity(length).unwrap();
    }
    assert!(read > LARGE, "{read} bytes");
    let ended = process.ended().await;
    assert_eq!((ended.code, ended.receipt["cut"].to_string()), (Some(0), "[]".to_owned()), "{:?}", ended.receipt);
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_cut_at_the_hard_stop_and_told() {
    cut_and_told(&config("500ms")).await;
}

#[tokio::test]
async fn an_answer_that_stands_still_for_too_long_during_a_drain_is_told_too() {
    cut_and_told(&format!("{}\nserver.memory.stall = \"300ms\"\n", config("20s"))).await;
}

async fn cut_and_told(config: &str) {
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

/// Bytes of an answer that fit no buffer of the system.
const HUGE: usize = 12_000_000;
/// Longer than a server waits for connections that have nothing to say.
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

/// A connection that takes little at once.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(address).await.unwrap()
}

fn huge() -> Vec<u8> {
    let message = SubmitRequest { job: Some(job("huge", "")) }.encode_to_vec();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
}

#[tokio::test]
async fn an_answer_by_http_1_is_whole_after_a_drain() {
    let process = serve_huge().await;
    let body = huge();
    let head = format!(
        "POST /waterwheel.v1.WorkerPoolService/Submit HTTP/1.1\r\nhost: test\r\norigin: http://page.example\r\n\
         content-type: application/grpc-web+proto\r\nx-grpc-web: 1\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut socket = narrow(process.public.0).await;
    socket.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    let mut answer = vec![0; 1 << 10];
    timeout(PATIENCE, socket.read_exact(&mut answer)).await.expect("its begin").unwrap();
    process.signal(Signal::TERM);
    sleep(PAUSE).await;
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("its end").unwrap();
    assert!(answer.len() > HUGE, "{} bytes", answer.len());
    let ended = process.ended().await;
    assert_eq!((ended.code, ended.receipt["cut"].to_string()), (Some(0), "[]".to_owned()), "{:?}", ended.receipt);
}
