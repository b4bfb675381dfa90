//! Unfinished uploads use bounded memory, and do not block other callers.

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use h2::SendStream;
use http::HeaderMap;
use tokio::time::timeout;
use waterwheel::proto::SubmitManyRequest;

use crate::{
    attack::Footprint,
    connections::Client,
    process::{PATIENCE, Process},
    service::{Caller, job, submission},
};

const CONFIG: &str = r#"
    kind.sha256 = { pool = "one", builtin = "sha256" }
    pool.one.workers = 2
    deadline = { default = "10m", max = "10m" }
    server = { max_payload = "1MiB", memory = { total = "16MiB", per_connection = "8MiB" } }
"#;
const PAYLOAD: usize = 1 << 20;
/// Bytes sent of each unfinished message.
const SENT: usize = 900 << 10;

/// Sends most of a job, and leaves the message unfinished.
async fn begin(client: &mut Client) -> (impl Future<Output = HeaderMap> + use<>, SendStream<Bytes>) {
    let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
    let whole = Bytes::from(submission("sha256", vec![1; PAYLOAD]));
    message.send_data(whole.slice(..SENT), false).unwrap();
    (async { answer.await.expect("an answer, not a reset").headers().clone() }, message)
}

#[tokio::test]
async fn unfinished_uploads_use_bounded_memory_and_block_no_other_caller() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("sha256", vec![2; PAYLOAD])).await.unwrap().unwrap();
    let base = Footprint::of(process.id()).memory;

    let (mut clients, mut open) = (Vec::new(), Vec::new());
    for round in 0..12_u8 {
        let mut client = Client::connect(process.public.0).await;
        for _ in 0..8 {
            open.push(begin(&mut client).await);
        }
        clients.push(client);
        let served = timeout(PATIENCE, caller.leave(job("sha256", vec![round; PAYLOAD]))).await.expect("an answer");
        served.unwrap().expect("a complete message is served");
    }
    let grown = Footprint::of(process.id()).memory.saturating_sub(base);
    // The allocator keeps some tens of MiB for its threads, independent of the amount sent.
    assert!(grown < 112 << 20, "{} MiB for 84 MiB of unfinished messages", grown >> 20);
    caller.leave(job("sha256", vec![3; PAYLOAD])).await.unwrap().unwrap();
}

#[tokio::test]
async fn many_large_messages_on_one_connection_are_all_served() {
    // Six times the memory limit of a connection.
    let process = Process::serve(CONFIG).await;
    let mut client = Client::connect(process.public.0).await;
    let whole = Bytes::from(submission("sha256", vec![1; PAYLOAD]));
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
async fn a_message_over_the_limit_is_refused_by_its_length_prefix() {
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
async fn complete_messages_do_not_count_as_uploads() {
    // One call carries twice the memory limit of a connection.
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
