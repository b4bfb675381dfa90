//! Peers that try to make the server keep memory: unread responses, idle calls, unfinished uploads, and messages that
//! decode to much more.

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use h2::SendStream;
use http::HeaderMap;
use prost::Message;
use tokio::time::timeout;
use tonic::Code;
use waterwheel::proto::{Job, StreamRequest, SubmitManyRequest, SubmitRequest};

use super::{CONFIG, Footprint, MIB, SUBMIT, Target, code};
use crate::{
    connections::{Client, end_of},
    process::{PATIENCE, Process},
    service::{Address, Caller, frame, framed, job, submission},
};

const SUBMIT_MANY: &str = "/waterwheel.v1.WorkerPoolService/SubmitMany";

/// A config with small bounds on memory and a short stall timeout.
fn bounded() -> String {
    let memory = r#"
        [server]
        memory = { total = "32MiB", per_connection = "16MiB", stall = "1s" }
        [kind.large]
        pool = "one"
        exec = ["/usr/bin/head", "-c", "4000000", "/dev/zero"]
        [kind.endless]
        pool = "one"
        exec = ["/usr/bin/yes"]
    "#;
    format!("{}{memory}", CONFIG.replace(r#""1s""#, r#""30s""#))
}

/// Small requests with responses of 4 MB, on connections that answer PINGs and never extend a stream's window.
///
/// Expected: unread responses stay within their memory bound. The server drops them after the stall timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_are_bounded_and_dropped() {
    let target = Target::serve(&bounded()).await;
    let mut clients = [Client::connect(target.public().0).await, Client::connect(target.public().0).await];
    let attack = async {
        let mut answers = Vec::new();
        for client in &mut clients {
            for _ in 0..20 {
                let (answer, mut body) = client.call(SUBMIT).await;
                body.send_data(submission("large", "").into(), true).unwrap();
                answers.push(answer);
            }
        }
        // Waits for the headers only, and keeps the bodies unread.
        join_all(answers).await
    };
    let unread = target.under(attack).await;
    // The memory must be free while the peers are still connected.
    target.shrinks(24 * MIB).await;
    drop((unread, clients));
    // The peak includes a response that each worker was producing.
    target.recovers(144 * MIB).await;
}

/// `Stream` calls of jobs with endless output, on a connection that reads none of it.
///
/// Expected: the jobs end after the stall timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_streams_free_their_workers() {
    let target = Target::serve(&bounded()).await;
    let mut client = Client::connect(target.public().0).await;
    let endless = StreamRequest { job: Some(job("endless", "")) };
    let mut unread = Vec::new();
    for _ in 0..8 {
        let (answer, mut body) = client.call("/waterwheel.v1.WorkerPoolService/Stream").await;
        body.send_data(Bytes::from(framed(&endless)), true).unwrap();
        unread.push(answer.await.unwrap().into_body());
    }
    target.caller().until(|pool| pool.in_flight == 0).await;
    drop((unread, client));
    target.recovers(96 * MIB).await;
}

/// `SubmitMany` calls that send one large message, and then nothing more.
///
/// Expected: the server frees the message once it has processed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_calls_keep_no_memory_of_a_large_message() {
    let target = Target::serve(&bounded()).await;
    let mut client = Client::connect(target.public().0).await;
    let refused = Job { kind: "no-such-kind".into(), payload: vec![1; 3 << 20].into(), ..Job::default() };
    let request = SubmitManyRequest { tag: "a".into(), job: Some(Box::new(refused)) };
    let large = Bytes::from(framed(&request));
    let attack = async {
        let mut open = Vec::new();
        for _ in 0..30 {
            let (answer, mut body) = client.call(SUBMIT_MANY).await;
            body.send_data(large.clone(), false).unwrap();
            let mut answers = answer.await.unwrap().into_body();
            // The response shows that the server has processed the message.
            answers.data().await.unwrap().unwrap();
            open.push((answers, body));
        }
        open
    };
    let open = target.under(attack).await;
    target.shrinks(24 * MIB).await;
    drop((open, client));
    target.recovers(64 * MIB).await;
}

/// Two messages that are a few kilobytes with gzip. One decodes to two million labels; the other has a payload of one
/// byte, and an unknown field of megabytes.
///
/// Expected: both are refused before they are decoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_much_larger_than_their_payload_are_refused() {
    let target = Target::serve(&CONFIG.replace(r#""1s""#, r#""30s""#)).await;
    let labels = [0x52_u8, 0].repeat(2 << 20);
    let mut of_labels = vec![0x0a];
    prost::encoding::encode_varint(labels.len() as u64, &mut of_labels);
    of_labels.extend(labels);
    let mut of_unknown = SubmitRequest { job: Some(job("echo", "x")) }.encode_to_vec();
    of_unknown.extend([0xfa, 0x01]);
    prost::encoding::encode_varint(4_000_000, &mut of_unknown);
    of_unknown.extend(vec![0; 4_000_000]);
    let attack = async {
        for (inside, expected) in [(of_labels, Code::InvalidArgument), (of_unknown, Code::ResourceExhausted)] {
            let bomb = frame(1, &gzip(&inside));
            assert!(bomb.len() < 10_000, "{}", bomb.len());
            assert_eq!(send(target.public(), bomb).await, [expected; CALLS]);
        }
    };
    target.under(attack).await;
    target.recovers(96 * MIB).await;
}

fn gzip(inside: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(inside).unwrap();
    encoder.finish().unwrap()
}

/// Largest size of one compressed bomb.
const SENT: usize = 2 * MIB as usize;
/// Number of concurrent calls that send a bomb.
const CALLS: usize = 8;

/// A gigabyte of zeros: one compressed megabyte, repeated 1,024 times. The trailer is invalid, but the server stops
/// reading before it gets there.
fn gzip_bomb() -> Vec<u8> {
    let mut deflated = Vec::with_capacity(8 << 10);
    let zeros = vec![0; MIB as usize];
    Compress::new(Compression::best(), false).compress_vec(&zeros, &mut deflated, FlushCompress::Full).unwrap();
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    [header.to_vec(), deflated.repeat(1024), vec![3, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat()
}

/// A message of some kilobytes that decompresses to a gigabyte, on concurrent calls.
///
/// Expected: each call fails with RESOURCE_EXHAUSTED, and uses at most the memory of one message of the maximum size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decompression_bombs_are_refused() {
    // On a busy machine, decompressing takes its time.
    let target = Target::serve(&CONFIG.replace(r#""1s""#, r#""5m""#)).await;
    let attack = async {
        let bomb = frame(1, &gzip_bomb());
        assert!(bomb.len() < SENT, "{} bytes", bomb.len());
        assert_eq!(send(target.public(), bomb).await, [Code::ResourceExhausted; CALLS]);
    };
    target.under(attack).await;
    target.recovers(192 * MIB).await;
}

/// Makes [`CALLS`] concurrent calls, and returns their status codes.
async fn send(address: Address, message: Vec<u8>) -> Vec<Code> {
    let (mut client, message) = (Client::connect(address.0).await, Bytes::from(message));
    let mut answers = Vec::new();
    for _ in 0..CALLS {
        let (answer, mut body) = client.call_with(SUBMIT, &[("grpc-encoding", "gzip")]).await;
        // h2 waits until the server's flow-control window allows it to send.
        body.send_data(message.clone(), true).unwrap();
        answers.push(answer);
    }
    join_all(answers.into_iter().map(end_of)).await.iter().map(code).collect()
}

const UPLOADS: &str = r#"
    kind.sha256 = { pool = "one", builtin = "sha256" }
    pool.one.workers = 2
    deadline = { default = "10m", max = "10m" }
    server = { max_payload = "1MiB", memory = { total = "16MiB", per_connection = "8MiB" } }
"#;
const PAYLOAD: usize = 1 << 20;
/// Bytes sent of each unfinished message.
const UPLOADED: usize = 900 << 10;

/// Sends most of a job, and leaves the message unfinished.
async fn begin(client: &mut Client) -> (impl Future<Output = HeaderMap> + use<>, SendStream<Bytes>) {
    let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
    let whole = Bytes::from(submission("sha256", vec![1; PAYLOAD]));
    message.send_data(whole.slice(..UPLOADED), false).unwrap();
    (async { answer.await.expect("an answer, not a reset").headers().clone() }, message)
}

#[tokio::test]
async fn unfinished_uploads_use_bounded_memory_and_block_no_other_caller() {
    let process = Process::serve(UPLOADS).await;
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
    let process = Process::serve(UPLOADS).await;
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
    let process = Process::serve(UPLOADS).await;
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
    let process = Process::serve(UPLOADS).await;
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
