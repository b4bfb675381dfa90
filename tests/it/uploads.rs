//! What callers have begun to send is bounded, and those who never finish do not shut out those who do.

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{StreamExt, stream::FuturesUnordered};
use h2::SendStream;
use http::HeaderMap;
use prost::Message;
use tokio::time::timeout;
use waterwheel::proto::{SubmitManyRequest, SubmitRequest};

use crate::{
    connections::Client,
    process::{PATIENCE, Process},
    service::{Caller, job},
};

const CONFIG: &str = r#"
    kind.sha256 = { pool = "one", builtin = "sha256" }
    pool.one.workers = 2
    deadline = { default = "10m", max = "10m" }
    server = { max_payload = "1MiB", memory = { total = "16MiB", per_connection = "8MiB" } }
"#;
const PAYLOAD: usize = 1 << 20;
/// What is sent of each message that does not become whole.
const SENT: usize = 900 << 10;

/// Memory of the process, in bytes.
pub(crate) fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// A message on the wire.
fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len().try_into().unwrap());
    message.encode(&mut bytes).unwrap();
    bytes.freeze()
}

/// Begins to send a job and stops before its end.
async fn begin(client: &mut Client) -> (impl Future<Output = HeaderMap> + use<>, SendStream<Bytes>) {
    let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
    let whole = framed(&SubmitRequest { job: Some(job("sha256", vec![1; PAYLOAD])) });
    message.send_data(whole.slice(..SENT), false).unwrap();
    (async { answer.await.expect("an answer, not a reset").headers().clone() }, message)
}

#[tokio::test]
async fn unfinished_messages_hold_no_more_than_they_may_and_shut_nobody_out() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("sha256", vec![2; PAYLOAD])).await.unwrap().unwrap();
    let base = resident(process.id());

    let (mut clients, mut open) = (Vec::new(), Vec::new());
    for round in 0..12_u8 {
        let mut client = Client::connect(process.public.0).await;
        for _ in 0..8 {
            open.push(begin(&mut client).await);
        }
        clients.push(client);
        let served = timeout(PATIENCE, caller.leave(job("sha256", vec![round; PAYLOAD]))).await.expect("an answer");
        served.unwrap().expect("whoever finishes is served");
    }
    let grown = resident(process.id()).saturating_sub(base);
    // What the allocator keeps for each thread comes to it: tens of MiB, however much was sent.
    assert!(grown < 112 << 20, "{} MiB for 84 MiB that were begun", grown >> 20);
    caller.leave(job("sha256", vec![3; PAYLOAD])).await.unwrap().unwrap();
}

#[tokio::test]
async fn many_large_messages_at_once_on_one_connection_are_all_served() {
    // Six times what the connection may hold.
    let process = Process::serve(CONFIG).await;
    let mut client = Client::connect(process.public.0).await;
    let whole = framed(&SubmitRequest { job: Some(job("sha256", vec![1; PAYLOAD])) });
    let mut answers = FuturesUnordered::new();
    for _ in 0..48 {
        let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
        message.send_data(whole.clone(), true).unwrap();
        answers.push(answer);
    }
    while let Some(answer) = timeout(PATIENCE, answers.next()).await.expect("an answer") {
        let answer = answer.expect("an answer, not a reset");
        assert!(answer.headers().get("grpc-status").is_none_or(|status| status == "0"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_at_its_head() {
    let process = Process::serve(CONFIG).await;
    let mut client = Client::connect(process.public.0).await;
    let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
    message.send_data(Bytes::from_static(&[0, 0x40, 0, 0, 0]), false).unwrap();
    let headers = timeout(PATIENCE, answer).await.expect("an answer").expect("no reset").headers().clone();
    assert_eq!(headers["grpc-status"], "8", "{headers:?}");
    assert_eq!(headers["grpc-retry-pushback-ms"], "-1", "{headers:?}");
    assert!(headers.contains_key("grpc-status-details-bin") && headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn messages_that_are_whole_are_no_uploads_any_more() {
    // Many more bytes than a connection may hold at once go through one call.
    let process = Process::serve(CONFIG).await;
    let mut client = process.public.client().await;
    let jobs = (0..16).map(|tag: u8| SubmitManyRequest {
        tag: tag.to_string(),
        job: Some(Box::new(job("sha256", vec![4; PAYLOAD]))),
    });
    let answer = client.submit_many(tokio_stream::iter(jobs.collect::<Vec<_>>())).await.unwrap();
    let results = answer.into_inner().collect::<Vec<_>>();
    for result in timeout(PATIENCE, results).await.expect("an end") {
        let ended = result.unwrap_or_else(|status| panic!("{status}"));
        assert!(format!("{ended:?}").contains("Result"), "{ended:?}");
    }
}
