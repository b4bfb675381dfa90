//! Cases that attached workers send, with four slots: by the library of this test, and by those of other languages
//! where `tests/clients/run.sh` has installed them.

use std::{
    ops::Not,
    path::{Path, PathBuf},
};

use http::uri::PathAndQuery;
use prost::{
    DecodeError, Message as _,
    bytes::{Buf, BufMut},
    encoding::{DecodeContext, WireType, encode_key, encode_varint},
};
use tempfile::TempDir;
use tokio::{process::Command, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;
use waterwheel::proto::{
    AttachRequest, AttachResponse,
    attach_request::{Hello, Message, Progress},
    attach_response,
};

use super::{Case, Ends, check, serve};
use crate::service::Service;

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

/// The messages: a name, what is sent for a job with this id, and what becomes of it.
fn messages(id: &str, answered: &str) -> Vec<(&'static str, Vec<Raw>, Ends)> {
    let mebi = vec![b'x'; 1 << 20];
    let (id, answered, done) = (id.as_bytes(), answered.as_bytes(), message(DONE, &[(1, id.as_bytes())]));
    let failed = |says: &'static str| Ends::Fails("HANDLER_FAILED", says);
    let unread = failed("the worker sent a message that cannot be read");
    let large = Ends::Fails("OUTPUT_TOO_LARGE", "");
    let lost = |says: &'static str| Ends::Takes("WORKER_LOST", says);
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
        ("code absent", vec![message(FAILED, &[(1, id)])], failed("answered")),
        ("fraction NaN", vec![Raw(nan), done.clone()], Ends::Completes),
        ("progress in Latin-1", vec![message(PROGRESS, &[(1, id), (3, b"\xe9")]), done.clone()], Ends::Completes),
        ("progress of 1 MB", vec![message(PROGRESS, &[(1, id), (3, &mebi)]), done.clone()], Ends::Completes),
        ("progress, id absent", vec![message(PROGRESS, &[]), done.clone()], Ends::Completes),
        ("answered id", vec![message(DONE, &[(1, answered)]), done.clone()], Ends::Completes),
        ("two answers", vec![done.clone(), done.clone()], Ends::Completes),
        ("fields that break off", vec![Raw(cut)], unread),
        ("id absent", vec![message(DONE, &[])], lost("it names a job that the worker does not have")),
        ("id unknown", vec![message(DONE, &[(1, b"999999")])], lost("it names a job")),
        ("id with a zero before it", vec![message(DONE, &[(1, &[b"0", id].concat())])], lost("it names a job")),
        ("id in Latin-1", vec![message(DONE, &[(1, b"\xe9")])], lost("it names a job")),
        ("output, id unknown", vec![message(OUTPUT, &[(1, b"999999")])], lost("it names a job")),
        ("an unknown message", vec![message(15, &[(1, id)])], lost("does not know the message")),
        ("no message", vec![Raw(vec![0xff; 20])], lost("")),
    ]
}

/// Placeholders for the id of a job, and of one that is answered. A worker in another language replaces their fields.
const ID: &str = "IIIIIIII";
const ANSWERED: &str = "OOOOOOOO";

fn cases() -> Vec<Case> {
    let case = |(number, (name, _, ends)): (usize, (_, _, _))| Case { name, payload: number.to_string(), ends };
    messages(ID, ANSWERED).into_iter().enumerate().map(case).collect()
}

/// A file for each case: its messages, each behind its length in four bytes.
fn write_cases(folder: &Path) {
    for (number, (_, messages, _)) in messages(ID, ANSWERED).into_iter().enumerate() {
        let framed = messages.iter().flat_map(|Raw(message)| {
            let size = u32::try_from(message.len()).expect("few bytes");
            [&size.to_be_bytes()[..], message].concat()
        });
        std::fs::write(folder.join(number.to_string()), framed.collect::<Vec<_>>()).expect("a file");
    }
}

/// Attaches with four slots and answers each job, until the call ends.
async fn attach(channel: Channel) -> Result<(), Status> {
    let (say, said) = mpsc::channel(64);
    let hello = Hello { kinds: ["do", "echo"].map(str::to_owned).into(), concurrency: 4, ..Hello::default() };
    say.try_send(Raw(AttachRequest { message: Some(Message::Hello(hello)) }.encode_to_vec())).expect("room");
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.expect("a connection");
    let path = PathAndQuery::from_static("/waterwheel.v1.WorkerService/Attach");
    let codec = ProstCodec::<Raw, AttachResponse>::default();
    let answer = grpc.streaming(Request::new(ReceiverStream::new(said)), path, codec).await;
    let mut hear = answer?.into_inner();
    let mut answered = "1".to_owned();
    while let Some(response) = hear.message().await? {
        let Some(attach_response::Message::Run(run)) = response.message else { continue };
        let is_echo = run.kind == "echo";
        let to_send = if is_echo {
            vec![message(DONE, &[(1, run.id.as_bytes()), (2, &run.payload)])]
        } else {
            let number: usize = String::from_utf8_lossy(&run.payload).parse().expect("a number");
            messages(&run.id, &answered).swap_remove(number).1
        };
        if is_echo {
            answered = run.id;
        }
        for message in to_send {
            let _ = say.send(message).await;
        }
    }
    Ok(())
}

async fn serve_attached() -> (Service, Option<crate::support::Cluster>) {
    serve(
        "pool.test = { when_full = \"wait\", cancel_grace = \"100ms\" }\n\
         kind.do = { pool = \"test\", remote = true }\nkind.echo = { pool = \"test\", remote = true }\n",
    )
    .await
}

#[tokio::test]
async fn a_malformed_message_of_an_attached_worker_costs_its_own_job() {
    let (service, _cluster) = serve_attached().await;
    let channel = service.public.channel().await;
    // Each end of its call is one that a case expects.
    let _worker = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let _ = attach(channel.clone()).await;
        }
    }));
    check(&service, &cases(), 4).await;
}

/// Runs all cases on a worker of this command, which gets the address of a server and the folder of the cases.
async fn check_command(mut command: Command) {
    let folder = TempDir::new().expect("a folder");
    write_cases(folder.path());
    let (service, _cluster) = serve_attached().await;
    command.arg(service.public.0.to_string()).arg(folder.path());
    let _worker = command.kill_on_drop(true).spawn().expect("it starts");
    check(&service, &cases(), 4).await;
}

/// What `tests/clients/run.sh` installs, below the root; `None`, with a word about it, if it is not there.
fn installed(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    path.exists().not().then(|| eprintln!("{} is not installed", path.display()));
    path.exists().then_some(path)
}

#[tokio::test]
async fn a_malformed_message_of_an_attached_worker_costs_its_own_job_python() {
    let (Some(python), Some(stubs)) =
        (installed("target/clients/python/venv/bin/python"), installed("target/clients/python/gen"))
    else {
        return;
    };
    let mut command = Command::new(python);
    command.env("PYTHONPATH", stubs).arg(installed("tests/clients/python/malformed.py").expect("a file"));
    check_command(command).await;
}

#[tokio::test]
async fn a_malformed_message_of_an_attached_worker_costs_its_own_job_node() {
    if installed("tests/clients/node/node_modules/@grpc/grpc-js").is_none() {
        return;
    }
    let mut command = Command::new("node");
    command.arg(installed("tests/clients/node/malformed.cjs").expect("a file"));
    check_command(command).await;
}

#[tokio::test]
async fn a_malformed_message_of_an_attached_worker_costs_its_own_job_go() {
    if installed("target/clients/go/bin/protoc-gen-go").is_none() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let binary = folder.path().join("worker");
    let module = installed("tests/clients/go").expect("a folder");
    let built = Command::new("go").current_dir(module).arg("build").arg("-o").arg(&binary).arg("./malformed").status();
    assert!(built.await.is_ok_and(|status| status.success()));
    check_command(Command::new(binary)).await;
}
