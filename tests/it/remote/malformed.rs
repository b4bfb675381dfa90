//! What attached workers get wrong: each case ends its own job with a status that names the fault, and costs the jobs
//! beside it nothing unless the worker is not to be understood any more.

use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use prost::{
    DecodeError, Message as _,
    bytes::{Buf, BufMut},
    encoding::{DecodeContext, WireType, encode_key, encode_varint},
};
use tokio::sync::mpsc;
use tonic::{Code, Request, Streaming, client::Grpc};
use tonic_prost::ProstCodec;
use waterwheel::proto::{AttachRequest, AttachResponse, attach_response};

use super::*;

/// An encoded message, which no message of the contract may be.
#[derive(Debug, Default, Clone)]
struct Raw(Vec<u8>);

impl prost::Message for Raw {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(&mut self, _: u32, _: WireType, _: &mut impl Buf, _: DecodeContext) -> Result<(), DecodeError> {
        unreachable!("it is only sent")
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// A message of the oneof, by number, with these fields of texts or bytes.
fn message(number: u32, fields: &[(u32, &[u8])]) -> Raw {
    let mut inner = Vec::new();
    for (number, value) in fields {
        put(&mut inner, *number, value);
    }
    let mut outer = Vec::new();
    put(&mut outer, number, &inner);
    Raw(outer)
}

fn put(buffer: &mut Vec<u8>, number: u32, value: &[u8]) {
    encode_key(number, WireType::LengthDelimited, buffer);
    encode_varint(value.len() as u64, buffer);
    buffer.extend_from_slice(value);
}

const OUTPUT: u32 = 2;
const PROGRESS: u32 = 3;
const DONE: u32 = 4;
const FAILED: u32 = 5;

/// How a job ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ends {
    Completes,
    Fails(Code, &'static str, &'static str),
    /// The call of the worker ends.
    Lost(&'static str),
}

/// The cases: a name, what is sent for a job with this id, and what becomes of it.
fn cases(id: &str, answered: &str) -> Vec<(&'static str, Vec<Raw>, Ends)> {
    let mebi = vec![b'x'; 1 << 20];
    let (id, answered, done) = (id.as_bytes(), answered.as_bytes(), message(DONE, &[(1, id.as_bytes())]));
    let failed = |code: &'static str| Ends::Fails(Code::NotFound, "HANDLER_FAILED", code);
    let unread = Ends::Fails(Code::Unknown, "HANDLER_FAILED", "the worker sent a message that cannot be read");
    let large = Ends::Fails(Code::ResourceExhausted, "OUTPUT_TOO_LARGE", "");
    let nan = Progress { id: String::from_utf8_lossy(id).into(), fraction: f64::NAN, ..Default::default() };
    let nan = AttachRequest { message: Some(Message::Progress(nan)) }.encode_to_vec();
    let mut cut = message(DONE, &[(1, id), (3, b"text/plain")]).0;
    // The content type announces more bytes than there are.
    let at = cut.len() - 11;
    cut[at] = 100;
    vec![
        ("content type with NUL", vec![message(DONE, &[(1, id), (3, b"a\0b")])], Ends::Completes),
        ("content type of 1 MB", vec![message(DONE, &[(1, id), (2, b"x"), (3, &mebi)])], large),
        ("output of 2 MB", vec![message(OUTPUT, &[(1, id), (2, &mebi.repeat(2))]), done.clone()], large),
        ("content type in Latin-1", vec![message(DONE, &[(1, id), (3, b"\xe9")])], unread),
        ("message of 1 MB", vec![message(FAILED, &[(1, id), (2, b"NOT_FOUND"), (3, &mebi)])], failed("xxx")),
        ("message of 3 MB", vec![message(FAILED, &[(1, id), (2, b"NOT_FOUND"), (3, &mebi.repeat(3))])], failed("xxx")),
        ("message with NUL", vec![message(FAILED, &[(1, id), (2, b"NOT_FOUND"), (3, b"no\0one")])], failed("no one")),
        ("message in Latin-1", vec![message(FAILED, &[(1, id), (2, b"NOT_FOUND"), (3, b"caf\xe9")])], failed("caf")),
        ("code absent", vec![message(FAILED, &[(1, id)])], Ends::Fails(Code::Unknown, "HANDLER_FAILED", "answered")),
        ("fraction NaN", vec![Raw(nan), done.clone()], Ends::Completes),
        ("progress in Latin-1", vec![message(PROGRESS, &[(1, id), (3, b"\xe9")]), done.clone()], Ends::Completes),
        ("progress of 1 MB", vec![message(PROGRESS, &[(1, id), (3, &mebi)]), done.clone()], Ends::Completes),
        ("progress, id absent", vec![message(PROGRESS, &[]), done.clone()], Ends::Completes),
        ("answered id", vec![message(DONE, &[(1, answered)]), done.clone()], Ends::Completes),
        ("two answers", vec![done.clone(), done.clone()], Ends::Completes),
        ("fields that break off", vec![Raw(cut)], unread),
        ("id absent", vec![message(DONE, &[])], Ends::Lost("it names a job that the worker does not have")),
        ("id unknown", vec![message(DONE, &[(1, b"999999")])], Ends::Lost("it names a job")),
        ("id in Latin-1", vec![message(DONE, &[(1, b"\xe9")])], Ends::Lost("it names a job")),
        ("output, id unknown", vec![message(OUTPUT, &[(1, b"999999")])], Ends::Lost("it names a job")),
        ("an unknown message", vec![message(15, &[(1, id)])], Ends::Lost("does not know the message")),
        ("no message", vec![Raw(vec![0xff; 20])], Ends::Lost("")),
    ]
}

/// A worker with four slots, which answers each job: the payload of a bad one is the number of its case.
async fn attach(service: &Service) {
    let channel = service.public.channel().await;
    let (say, said) = mpsc::channel(64);
    let first = AttachRequest { message: Some(Message::Hello(hello(&["far"], 4))) };
    say.send(Raw(first.encode_to_vec())).await.unwrap();
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static("/waterwheel.v1.WorkerService/Attach");
    let codec = ProstCodec::<Raw, AttachResponse>::default();
    let answer = grpc.streaming(Request::new(ReceiverStream::new(said)), path, codec).await.unwrap();
    let mut hear: Streaming<AttachResponse> = answer.into_inner();
    tokio::spawn(async move {
        let mut answered = "1".to_owned();
        while let Ok(Some(response)) = hear.message().await {
            let Some(attach_response::Message::Run(run)) = response.message else { continue };
            let number = String::from_utf8_lossy(&run.payload).parse::<usize>();
            let messages = match number {
                Ok(number) => cases(&run.id, &answered).swap_remove(number).1,
                Err(_) => vec![message(DONE, &[(1, run.id.as_bytes()), (2, &run.payload)])],
            };
            if number.is_err() {
                answered = run.id;
            }
            for message in messages {
                let _ = say.send(message).await;
            }
        }
    });
}

/// A job that waits for a worker.
fn waiting(payload: &str) -> waterwheel::proto::Job {
    waterwheel::proto::Job { when_full: 2, ..job("far", payload.to_owned()) }
}

#[tokio::test]
async fn a_malformed_message_of_an_attached_worker_costs_its_own_job() {
    let beside = std::env::var("WATERWHEEL_MALFORMED_JOBS").map_or(6, |jobs| jobs.parse().expect("a number"));
    let service = serve("    server.max_payload = \"1MiB\"");
    let caller = Caller::of(service.public).await;
    attach(&service).await;
    workers(&caller, 4).await;
    let (mut lost, number_of_cases) = (0, cases("1", "1").len());
    for number in 0..number_of_cases {
        let (name, _, ends) = cases("1", "1").swap_remove(number);
        assert_eq!(output(caller.leave(waiting("echo")).await.unwrap()), "echo", "before {name}");
        let bad = caller.leave(waiting(&number.to_string()));
        let others = stream::iter(0..beside).map(|_| caller.leave(waiting("echo"))).buffer_unordered(8);
        // A worker whose call has ended attaches again.
        let (ended, others) = tokio::join!(
            async {
                let ended = bad.await.unwrap();
                if matches!(ends, Ends::Lost(_)) {
                    attach(&service).await;
                }
                ended
            },
            others.collect::<Vec<_>>()
        );
        let mut lost_here = 0;
        for other in others {
            match other.unwrap() {
                Ok(answer) => assert_eq!(output(Ok(answer)), "echo"),
                Err(status) => {
                    assert_eq!(reason(&status), "WORKER_LOST", "{name}: {status}");
                    lost_here += 1;
                }
            }
        }
        match (ends, ended) {
            (Ends::Completes, Ok(answer)) => {
                let content_type = answer.into_inner().result.unwrap().content_type;
                assert!(content_type.len() <= 128 && !content_type.contains(char::is_control), "{name}");
            }
            (Ends::Fails(code, why, says), Err(status)) => {
                assert_eq!((status.code(), &*reason(&status)), (code, why), "{name}: {status}");
                assert!(status.message().contains(says), "{name}: {status}");
            }
            (Ends::Lost(says), Err(status)) => {
                assert_eq!(reason(&status), "WORKER_LOST", "{name}");
                assert!(status.message().contains(says), "{name}: {status}");
            }
            (_, ended) => panic!("{name}: {ended:?}"),
        }
        let may_lose = if matches!(ends, Ends::Lost(_)) { 3 } else { 0 };
        assert!(lost_here <= may_lose, "{name}: {lost_here} others are lost");
        lost += lost_here;
    }
    eprintln!("{lost} of {} jobs beside are lost", beside * number_of_cases);
}
