//! Workers that attach over the network. Each job gets an answer while their slots appear and disappear.

mod blame;
mod hello;
mod idle;
mod keda;
mod network;
mod other_servers;
mod zero;

use std::time::Duration;

use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};
use waterwheel::proto::{
    AttachRequest, AttachResponse, StreamRequest, SubmitResponse,
    attach_request::{Done, Failed, Hello, Leaving, Message, Output, Progress},
    attach_response::{self, Cancel, Run},
    health::{HealthCheckRequest, health_check_response::ServingStatus},
    stream_response::Event,
    worker_service_client::WorkerServiceClient,
};

use crate::{
    jobs::explain,
    ops_pages,
    process::PATIENCE,
    refusal::reason,
    service::{Caller, Service, job, queued},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "20s", kill = "1s" }
    pool.far.cancel_grace = "100ms"
    kind.far.pool = "far"
    kind.far.remote = true
"#;

/// An attached worker that is driven by a test.
pub(crate) struct Worker {
    say: mpsc::Sender<AttachRequest>,
    hear: Streaming<AttachResponse>,
}

fn hello(kinds: &[&str], concurrency: u32) -> Hello {
    let kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
    Hello { name: "test 1".into(), kinds, concurrency, ..Hello::default() }
}

async fn attach_by(channel: Channel, first: Message) -> Result<Worker, Status> {
    let (say, said) = mpsc::channel(64);
    say.send(AttachRequest { message: Some(first) }).await.unwrap();
    let mut client = WorkerServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let hear = client.attach(ReceiverStream::new(said)).await?.into_inner();
    Ok(Worker { say, hear })
}

impl Worker {
    pub(crate) async fn attach(service: &Service, concurrency: u32) -> Self {
        attach_by(service.public.channel().await, Message::Hello(hello(&["far"], concurrency))).await.unwrap()
    }

    pub(crate) async fn say(&self, message: Message) {
        self.say.send(AttachRequest { message: Some(message) }).await.unwrap();
    }

    /// The next message of the server, or `None` at the end of the call.
    async fn hear(&mut self) -> Result<Option<attach_response::Message>, Status> {
        let heard = timeout(PATIENCE, self.hear.message()).await.expect("a message");
        heard.map(|heard| heard.map(|heard| heard.message.expect("a known message")))
    }

    /// The next job. Acknowledgements of output are skipped.
    pub(crate) async fn run(&mut self) -> Run {
        loop {
            match self.hear().await {
                Ok(Some(attach_response::Message::Run(run))) => return run,
                Ok(Some(attach_response::Message::Taken(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn cancelled(&mut self) -> Cancel {
        loop {
            match self.hear().await {
                Ok(Some(attach_response::Message::Cancel(cancel))) => return cancel,
                Ok(Some(attach_response::Message::Taken(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn done(&self, id: &str, data: &str) {
        let data = data.to_owned().into();
        self.say(Message::Done(Done { id: id.into(), data, content_type: "text/plain".into() })).await;
    }
}

fn output(answer: Result<tonic::Response<SubmitResponse>, Status>) -> String {
    let result = answer.expect("a result").into_inner().result.unwrap();
    String::from_utf8(result.output).unwrap()
}

async fn workers(caller: &Caller, count: u32) {
    caller.until(|pool| pool.size.as_ref().unwrap().workers == count).await;
}

fn serve(more: &str) -> Service {
    Service::start(&format!("{CONFIG}{more}"), Vec::new())
}

#[tokio::test]
async fn a_pool_has_one_worker_per_attached_slot() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    workers(&caller, 0).await;
    let mut first = Worker::attach(&service, 2).await;
    let second = Worker::attach(&service, 3).await;
    workers(&caller, 5).await;
    drop(second);
    workers(&caller, 2).await;
    // The third job has no slot, and stays in the queue.
    let calls: Vec<_> = (0..3).map(|n| caller.leave(job("far", n.to_string()))).collect();
    let [one, two] = [first.run().await, first.run().await];
    caller.until(|pool| pool.in_flight == 2 && queued(pool) == 1).await;
    first.done(&two.id, "second").await;
    let three = first.run().await;
    for run in [one, three] {
        assert_eq!((&*run.kind, run.attempt), ("far", 1));
        assert!(run.budget_ms > 0 && !run.job_id.is_empty() && !run.request_id.is_empty());
        first.done(&run.id, &String::from_utf8_lossy(&run.payload)).await;
    }
    let mut outputs = Vec::new();
    for call in calls {
        outputs.push(output(call.await.unwrap()));
    }
    outputs.sort();
    assert_eq!(outputs.len(), 3);
    assert!(outputs.contains(&"second".to_owned()), "{outputs:?}");
}

#[tokio::test]
async fn a_pool_without_workers_refuses_jobs_unless_their_callers_wait() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut health = service.public.health().await;
    let mut pool = async || {
        let answer = health.check(HealthCheckRequest { service: "pool/far".into() }).await.unwrap();
        answer.into_inner().status()
    };
    assert_eq!(pool().await, ServingStatus::NotServing);
    let refused = caller.leave(job("far", "")).await.unwrap().unwrap_err();
    assert_eq!((refused.code(), &*reason(&refused)), (Code::Unavailable, "NO_WORKERS"));
    assert!(refused.metadata().contains_key("grpc-retry-pushback-ms"));
    let waiting = caller.leave(waterwheel::proto::Job { when_full: 2, ..job("far", "held") });
    caller.until(|pool| queued(pool) == 1).await;
    let mut worker = Worker::attach(&service, 1).await;
    let run = worker.run().await;
    worker.done(&run.id, "at last").await;
    assert_eq!(output(waiting.await.unwrap()), "at last");
    assert_eq!(pool().await, ServingStatus::Serving);
}

#[tokio::test]
async fn a_worker_that_disconnects_loses_its_running_jobs_but_no_queued_jobs() {
    for (idempotent, code) in [(false, Code::Aborted), (true, Code::Unavailable)] {
        let service = serve(&format!("    kind.far.idempotent = {idempotent}"));
        let caller = Caller::of(service.public).await;
        let mut worker = Worker::attach(&service, 1).await;
        let running = caller.leave(job("far", "runs"));
        worker.run().await;
        caller.queue(job("far", "waits"), 0).await;
        drop(worker);
        let lost = running.await.unwrap().unwrap_err();
        assert_eq!((lost.code(), &*reason(&lost)), (code, "WORKER_LOST"));
        let said = lost.message();
        assert!(said.contains("worker test 1 is no longer attached") && !said.contains("127.0.0.1"), "{said}");
        let mut worker = Worker::attach(&service, 1).await;
        assert_eq!(worker.run().await.payload, "waits");
    }
}

#[tokio::test]
async fn output_progress_and_failure_of_a_remote_job_reach_its_caller() {
    let service = serve("");
    let mut worker = Worker::attach(&service, 1).await;
    let mut client = service.public.client().await;
    let stream = tokio::spawn(async move {
        let mut stream = client.stream(StreamRequest { job: Some(job("far", "")) }).await.unwrap().into_inner();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await.unwrap() {
            events.push(event.event.unwrap());
        }
        events
    });
    let id = worker.run().await.id;
    worker.say(Message::Progress(Progress { id: id.clone(), fraction: 0.5, message: "half".into() })).await;
    worker.say(Message::Output(Output { id: id.clone(), data: "a".into() })).await;
    worker.done(&id, "b").await;
    let events = stream.await.unwrap();
    let progress = events.iter().any(|event| matches!(event, Event::Progress(progress) if progress.message == "half"));
    assert!(progress, "{events:?}");
    let chunk = |event: &Event| match event {
        Event::OutputChunk(chunk) => Some(chunk.data.clone()),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(chunk).collect::<Vec<_>>().concat(), b"ab");

    let failed = Caller::of(service.public).await.leave(job("far", ""));
    let id = worker.run().await.id;
    let (code, message) = ("INVALID_ARGUMENT".into(), "no image".into());
    worker.say(Message::Failed(Failed { id, code, message, ..Failed::default() })).await;
    let failed = failed.await.unwrap().unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::InvalidArgument, "no image"));
}

#[tokio::test]
async fn a_slot_that_ignores_a_cancel_is_unavailable_until_it_answers() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 2).await;
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    call.abort();
    let Cancel { id, reason, grace_ms } = worker.cancelled().await;
    assert_eq!((id, &*reason, grace_ms), (run.id.clone(), "CALLER", 100));
    // After the grace period only the other slot is available.
    workers(&caller, 1).await;
    let next = caller.leave(job("far", ""));
    let other = worker.run().await;
    worker.done(&run.id, "too late").await;
    workers(&caller, 2).await;
    worker.done(&other.id, "in time").await;
    assert_eq!(output(next.await.unwrap()), "in time");
}

#[tokio::test]
async fn a_leaving_worker_finishes_its_running_job() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 2).await;
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.say(Message::Leaving(Leaving {})).await;
    workers(&caller, 1).await;
    worker.done(&run.id, "done").await;
    assert_eq!(output(call.await.unwrap()), "done");
    assert_eq!(worker.hear().await.unwrap(), None);
    workers(&caller, 0).await;
}

#[tokio::test]
async fn a_drain_keeps_the_workers_until_the_last_job() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 1).await;
    let running = caller.leave(job("far", "1"));
    let first = worker.run().await;
    caller.queue(job("far", "2"), 0).await;
    service.control.drain();
    worker.done(&first.id, "one").await;
    let second = worker.run().await;
    worker.done(&second.id, "two").await;
    assert_eq!(output(running.await.unwrap()), "one");
    let mut leaves = 0;
    let end = loop {
        match worker.hear().await {
            Ok(Some(attach_response::Message::Leave(_))) => leaves += 1,
            Ok(other) => panic!("{other:?}"),
            Err(end) => break end,
        }
    };
    assert_eq!((leaves, end.code(), &*reason(&end)), (1, Code::Unavailable, "DRAINING"));
    assert!(service.ended().await.is_clean());
}

#[tokio::test]
async fn a_worker_that_breaks_the_protocol_gets_an_error_and_loses_its_slots() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let done = |id: &str| Message::Done(Done { id: id.into(), ..Done::default() });
    let mut worker = Worker::attach(&service, 1).await;
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, "").await;
    assert_eq!((run.id, output(call.await.unwrap())), ("1".to_owned(), String::new()));
    drop(worker);
    workers(&caller, 0).await;
    for message in [
        Some(done("77")),
        Some(done("x")),
        Some(Message::Output(Output { id: "1000".into(), data: "a".into() })),
        // Other spellings of the id of an answered job, which the server would repeat.
        Some(Message::Output(Output { id: format!("{}1", "0".repeat(60_000)), data: "a".into() })),
        Some(Message::Output(Output { id: "+1".into(), data: "a".into() })),
        Some(Message::Hello(hello(&["far"], 1))),
        None,
    ] {
        let mut worker = Worker::attach(&service, 3).await;
        workers(&caller, 3).await;
        worker.say.send(AttachRequest { message: message.clone() }).await.unwrap();
        let end = worker.hear().await.unwrap_err();
        assert_eq!((end.code(), &*reason(&end)), (Code::InvalidArgument, "INVALID_FIELD"), "{message:?}");
        workers(&caller, 0).await;
    }
}

#[tokio::test]
async fn a_late_message_of_a_worker_is_dropped_and_counted() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 2).await;
    let [call, other] = [caller.leave(job("far", "")), caller.leave(job("far", ""))];
    let [run, beside] = [worker.run().await, worker.run().await];
    worker.done(&run.id, "once").await;
    worker.done(&run.id, "twice").await;
    worker.say(Message::Output(Output { id: run.id.clone(), data: "late".into() })).await;
    worker.say(Message::Progress(Progress { id: run.id, fraction: 1.0, message: String::new() })).await;
    worker.say(Message::Progress(Progress { id: "1000".into(), ..Progress::default() })).await;
    worker.done(&beside.id, "beside").await;
    let mut outputs = [output(call.await.unwrap()), output(other.await.unwrap())];
    outputs.sort();
    assert_eq!(outputs, ["beside", "once"]);
    assert_eq!(ops_pages::metrics(service.ops).await[r#"waterwheel_late_messages_total{pool="far"}"#], 4.0);
}

#[tokio::test]
async fn a_worker_without_a_concurrency_has_one_slot() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 0).await;
    workers(&caller, 1).await;
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, "done").await;
    assert_eq!(output(call.await.unwrap()), "done");
}

#[tokio::test]
async fn a_worker_is_sent_leave_when_its_call_is_too_old_and_finishes_its_job() {
    let service = serve("    server.connections.max_age = \"3s\"");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 2).await;
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    assert!(matches!(worker.hear().await, Ok(Some(attach_response::Message::Leave(_)))));
    worker.done(&run.id, "done").await;
    assert_eq!(worker.hear().await.unwrap(), None);
    drop(call);
}

#[tokio::test]
async fn a_hello_that_fits_no_pool_is_refused() {
    let more = r#"
        pool.pair = {}
        kind.a = { pool = "pair", remote = true }
        kind.b = { pool = "pair", remote = true }
        pool.own.workers = 1
        kind.echo = { pool = "own", builtin = "echo" }
    "#;
    let service = serve(more);
    let long = Hello { name: "n".repeat(129), ..hello(&["far"], 1) };
    let labelled = Hello { labels: [("a".into(), "b\n".into())].into(), ..hello(&["far"], 1) };
    let leaving = Message::Leaving(Leaving {});
    for (first, field) in [
        (leaving, "hello"),
        (Message::Hello(hello(&[], 1)), "hello.kinds"),
        (Message::Hello(hello(&["echo"], 1)), "hello.kinds"),
        (Message::Hello(hello(&["none"], 1)), "hello.kinds"),
        (Message::Hello(hello(&["a"], 1)), "hello.kinds"),
        (Message::Hello(hello(&["a", "far"], 1)), "hello.kinds"),
        (Message::Hello(hello(&["far"], 1025)), "hello.concurrency"),
        (Message::Hello(long), "hello.name"),
        (Message::Hello(hello(&["far", "a\0b"], 1)), "hello.kinds"),
        (Message::Hello(hello(&vec!["far"; 1025], 1)), "hello.kinds"),
        (Message::Hello(labelled), "hello.labels"),
    ] {
        let refused = attach_by(service.public.channel().await, first).await.err().expect("it does not fit");
        assert_eq!((refused.code(), &*reason(&refused)), (Code::InvalidArgument, "INVALID_FIELD"));
        assert!(refused.message().contains(field), "{refused}");
    }
    let both = Message::Hello(hello(&["a", "b"], 0));
    attach_by(service.public.channel().await, both).await.expect("it fits");
    let more = Message::Hello(hello(&["more", "far"], 1));
    attach_by(service.public.channel().await, more).await.expect("kinds that the server does not have are ignored");
}
