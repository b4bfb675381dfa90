//! Peers that make the server hold what they do not read, or what they do not finish.

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use tonic::Code;
use waterwheel::proto::{Job, StreamRequest, SubmitManyRequest, SubmitRequest};

use super::{
    connection::{Connection, code},
    frames::message,
    target::{CONFIG, MIB, Target},
};
use crate::{connections::Client, service::job};

const SUBMIT_MANY: &str = "/waterwheel.v1.WorkerPoolService/SubmitMany";

/// Small bounds, and little patience.
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

/// Small calls with answers of 4 MB, on connections that answer pings and never renew the window that a stream begins
/// with.
///
/// Holds: what is not read stays within its bound, and is gone when nothing of it was read for the time that an answer
/// may stand still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads() {
    let target = Target::serve(&bounded()).await;
    let small = SubmitRequest { job: Some(job("large", "")) };
    let mut connections = Vec::new();
    for _ in 0..2 {
        connections.push(Connection::open(target.public()).await);
    }
    let attack = async {
        let mut answers = Vec::new();
        for connection in &mut connections {
            for _ in 0..20 {
                let call = connection.submit("identity", Bytes::from(message(false, &small.encode_to_vec()))).await;
                answers.push(call.expect("the connection takes streams"));
            }
        }
        // They are begun, and their bodies kept without a look.
        join_all(answers).await
    };
    let unread = target.under(attack).await;
    // The peers are still there.
    target.until(|held| held.memory <= target.base().memory + 24 * MIB).await;
    drop((unread, connections));
    // Each worker has an answer in the making besides.
    target.recovers(144 * MIB).await;
}

/// Streams of jobs that put out without end, on a connection that reads nothing of them.
///
/// Holds: they end when nothing of them was read for the time that an answer may stand still, and their workers with
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_do_not_read_hold_no_worker() {
    let target = Target::serve(&bounded()).await;
    let mut client = Client::connect(target.public().0).await;
    let endless = StreamRequest { job: Some(job("endless", "")) };
    let mut unread = Vec::new();
    for _ in 0..8 {
        let (answer, mut body) = client.call("/waterwheel.v1.WorkerPoolService/Stream").await;
        body.send_data(Bytes::from(message(false, &endless.encode_to_vec())), true).unwrap();
        unread.push(answer.await.unwrap().into_body());
    }
    target.caller().until(|pool| pool.in_flight == 0).await;
    drop((unread, client));
    target.recovers(96 * MIB).await;
}

/// Calls of many jobs that bring one large message, and then nothing.
///
/// Holds: nothing is kept of a message that was read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_calls_after_a_large_message() {
    let target = Target::serve(&bounded()).await;
    let mut client = Client::connect(target.public().0).await;
    let refused = Job { kind: "no-such-kind".into(), payload: vec![1; 3 << 20].into(), ..Job::default() };
    let request = SubmitManyRequest { tag: "a".into(), job: Some(Box::new(refused)) };
    let large = Bytes::from(message(false, &request.encode_to_vec()));
    let attack = async {
        let mut open = Vec::new();
        for _ in 0..30 {
            let (answer, mut body) = client.call(SUBMIT_MANY).await;
            body.send_data(large.clone(), false).unwrap();
            let mut answers = answer.await.unwrap().into_body();
            // It was read, and refused.
            answers.data().await.unwrap().unwrap();
            open.push((answers, body));
        }
        open
    };
    let open = target.under(attack).await;
    target.until(|held| held.memory <= target.base().memory + 24 * MIB).await;
    drop((open, client));
    target.recovers(64 * MIB).await;
}

/// Messages that are a few kilobytes as gzip, and hundreds of thousands of labels when they are decoded; and a payload of
/// one byte beside megabytes that no field of a job is.
///
/// Holds: both are refused before they are decoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_more_than_their_payload() {
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
            let bomb = Bytes::from(message(true, &gzip(&inside)));
            assert!(bomb.len() < 10_000, "{}", bomb.len());
            let mut connection = Connection::open(target.public()).await;
            let mut answers = Vec::new();
            for _ in 0..12 {
                answers.push(connection.submit("gzip", bomb.clone()).await.unwrap());
            }
            let codes: Vec<_> = join_all(answers.into_iter().map(code)).await;
            assert!(codes.iter().all(|code| code.as_ref().is_ok_and(|code| *code == expected)), "{codes:?}");
        }
    };
    target.under(attack).await;
    target.recovers(96 * MIB).await;
}

fn gzip(inside: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(inside).unwrap();
    encoder.finish().unwrap()
}
