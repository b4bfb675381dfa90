//! Permission to attach, workers that lose their network connection, and the output of attached workers.

use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tonic::{
    Code,
    codec::CompressionEncoding,
    transport::{Channel, Endpoint, Uri},
};
use tonic_types::StatusExt;
use tower::service_fn;
use waterwheel::proto::attach_request::Message;

use super::{CONFIG, attach_by, hello, serve, workers, *};
use crate::{
    attack::Footprint,
    process::Process,
    refusal::reason,
    service::{Address, Caller, Service, job},
    support::{Files, KEYS, toml_string},
};

fn far() -> Message {
    Message::Hello(hello(&["far"], 1))
}

/// A channel through a relay, and a sender that makes the relay stop forwarding.
async fn relayed(to: Address) -> (Channel, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = Address(listener.local_addr().unwrap());
    let (cut, is_cut) = oneshot::channel();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to.0).await.unwrap();
        tokio::select! {
            _ = copy_bidirectional(&mut near, &mut far) => {}
            _ = is_cut => {}
        }
        // Both connections stay open, as they do when a network drops all packets.
        std::future::pending::<()>().await;
    });
    (relay.channel().await, cut)
}

#[tokio::test]
async fn the_jobs_of_an_unreachable_worker_fail_after_the_keepalive_timeout() {
    let service = serve(r#"    server.http2 = { keepalive_interval = "200ms", keepalive_timeout = "300ms" }"#);
    let caller = Caller::of(service.public).await;
    let (channel, cut) = relayed(service.public).await;
    let mut worker = attach_by(channel, far()).await.unwrap();
    let call = caller.leave(job("far", ""));
    worker.run().await;
    cut.send(()).unwrap();
    let lost = call.await.unwrap().unwrap_err();
    assert_eq!((lost.code(), &*reason(&lost)), (Code::Aborted, "WORKER_LOST"));
    assert!(lost.message().contains("did not answer a ping in time (server.http2.keepalive_interval"), "{lost}");
    workers(&caller, 0).await;
}

#[tokio::test]
async fn without_rules_only_local_workers_may_attach() {
    let service = serve("    server.proxies = [\"127.0.0.1\"]");
    for (source, is_local) in [("127.0.0.1", true), ("192.0.2.7", false)] {
        let header = format!("PROXY TCP4 {source} 127.0.0.1 40000 7070\r\n");
        let address = service.public.0;
        let connect = service_fn(move |_: Uri| {
            let header = header.clone();
            async move {
                let mut stream = TcpStream::connect(address).await?;
                stream.write_all(header.as_bytes()).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let channel = Endpoint::from_static("http://there").connect_with_connector(connect).await.unwrap();
        match attach_by(channel, far()).await {
            Ok(_) => assert!(is_local, "{source}"),
            Err(denied) => {
                assert!(!is_local, "{source}: {denied}");
                assert_eq!((denied.code(), &*reason(&denied)), (Code::PermissionDenied, "RPC_DENIED"));
                assert!(denied.message().contains("server's own machine"), "{denied}");
            }
        }
    }
}

#[tokio::test]
async fn a_rule_limits_the_kinds_that_a_worker_may_run() {
    let files = Files::new();
    files.put("keys.json", KEYS);
    for (rule, expected) in [
        (r#"rpcs = ["Attach"], kinds = ["f*"]"#, None),
        (r#"rpcs = ["Attach"], kinds = ["near"]"#, Some("KIND_DENIED")),
        (r#"rpcs = ["Submit", "Stats"]"#, Some("RPC_DENIED")),
    ] {
        let keys = toml_string(&files.path("keys.json"));
        let auth = format!(
            "    auth.jwt = {{ jwks = {keys}, issuer = \"issuer\", audience = [\"here\"] }}\n    \
             auth.rule.workers = {{ principals = [\"anonymous\"], {rule} }}"
        );
        let service = Service::start(&format!("{CONFIG}{auth}"), Vec::new());
        let attached = attach_by(service.public.channel().await, far()).await;
        assert_eq!(attached.err().map(|denied| reason(&denied)).as_deref(), expected, "{rule}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_workers_take_less_than_64_mib() {
    const WORKERS: usize = 1_000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    workers(&caller, 0).await;
    let before = Footprint::of(process.id()).memory;
    let mut attached = Vec::new();
    for _ in 0..WORKERS / 50 {
        let attach = || async { attach_by(process.public.channel().await, far()).await.unwrap() };
        attached.extend(join_all([(); 50].map(|()| attach())).await);
    }
    workers(&caller, WORKERS as u32).await;
    let taken = Footprint::of(process.id()).memory - before;
    eprintln!("{WORKERS} workers take {} KiB each", (taken / WORKERS as u64) >> 10);
    assert!(taken < 64 << 20, "{taken} bytes");
    // Every worker is reachable: each gets one job.
    let calls: Vec<_> = attached.iter().map(|_| caller.leave(job("far", ""))).collect();
    join_all(attached.iter_mut().map(async |worker| {
        let run = worker.run().await;
        worker.done(&run.id, "").await;
    }))
    .await;
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn statistics_and_metrics_list_attached_workers() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut worker = attach_by(service.public.channel().await, far()).await.unwrap();
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, "").await;
    call.await.unwrap().unwrap();
    let pool = caller.pool().await;
    let [attached] = &pool.attached[..] else { panic!("{pool:?}") };
    let figures = (&*attached.name, attached.concurrency, attached.running, attached.jobs, attached.leaving);
    assert_eq!(figures, ("test 1", 1, 0, 1, false));
    assert!(attached.peer.starts_with("127.0.0.1:"), "{attached:?}");
    let metrics = ops_pages::metrics(service.ops).await;
    assert_eq!(metrics[r#"waterwheel_attached_workers{pool="far"}"#], 1.0);
    assert_eq!(metrics[r#"waterwheel_attached_abandoned_jobs{pool="far"}"#], 0.0);
}

#[tokio::test]
async fn a_message_over_a_limit_fails_only_its_job() {
    let service = serve("server.max_payload = '1MiB'");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 2).await;
    let other = caller.leave(job("far", ""));
    let Run { id: other_id, job_id, .. } = worker.run().await;
    let explained = explain(service.ops, &job_id).await;
    assert!(explained.runner.starts_with("worker test 1 at 127.0.0.1"), "{explained:?}");
    let large = |bytes: usize| bytes::Bytes::from(vec![b'a'; bytes]);
    let text = |bytes: usize| "a".repeat(bytes);
    let all = (1 << 20) + (64 << 10);
    for (make, limit) in [
        (
            &(|id| Message::Done(Done { id, data: large(3 << 20), ..Done::default() })) as &dyn Fn(String) -> Message,
            all,
        ),
        (&|id| Message::Output(Output { id, data: large(2 << 20) }), all),
        (&|id| Message::Done(Done { id, content_type: text(100 << 10), ..Done::default() }), 64 << 10),
    ] {
        let call = caller.leave(job("far", ""));
        let run = worker.run().await;
        let message = make(run.id.clone());
        let is_answer = matches!(message, Message::Done(_) | Message::Failed(_));
        worker.say(message).await;
        let status = call.await.unwrap().unwrap_err();
        assert_eq!((status.code(), &*reason(&status)), (Code::ResourceExhausted, "OUTPUT_TOO_LARGE"));
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().metadata["limit_bytes"], limit.to_string());
        if !is_answer {
            assert_eq!(worker.cancelled().await.id, run.id);
            worker.done(&run.id, "").await;
        }
    }
    worker.done(&other_id, "kept").await;
    assert_eq!(output(other.await.unwrap()), "kept");
    workers(&caller, 2).await;
}

#[tokio::test]
async fn a_worker_that_does_not_read_delays_no_other_worker() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut silent = Worker::attach(&service, 1).await;
    let late = waterwheel::proto::Job { run_timeout: Some(millis(50)), ..job("far", vec![0; 4 << 20]) };
    let cut = caller.leave(late.clone()).await.unwrap().unwrap_err();
    assert_eq!(&*reason(&cut), "RUN_TIMEOUT");
    workers(&caller, 0).await;
    let mut worker = Worker::attach(&service, 1).await;
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, "on time").await;
    assert_eq!(output(call.await.unwrap()), "on time");
    assert_eq!(silent.run().await.payload.len(), 4 << 20);
}

#[tokio::test]
async fn a_worker_may_compress_its_messages() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let (say, said) = mpsc::channel(8);
    say.send(AttachRequest { message: Some(Message::Hello(hello(&["far"], 1))) }).await.unwrap();
    let mut client =
        WorkerServiceClient::new(service.public.channel().await).send_compressed(CompressionEncoding::Gzip);
    let hear = client.attach(ReceiverStream::new(said)).await.unwrap().into_inner();
    let mut worker = Worker { say, hear };
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, &"a".repeat(100_000)).await;
    assert_eq!(output(call.await.unwrap()).len(), 100_000);

    // The server cannot read the job id of a compressed message that is too large, so the worker is disconnected.
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, &"a".repeat(8 << 20)).await;
    assert_eq!(worker.hear().await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(reason(&call.await.unwrap().unwrap_err()), "WORKER_LOST");
}

/// A worker may send four chunks ahead of the acknowledgements.
#[tokio::test]
async fn a_slow_reader_delays_only_its_own_job() {
    let service = serve("    kind.far.max_output = \"64MiB\"");
    let mut worker = Worker::attach(&service, 2).await;
    let mut client = service.public.client().await;
    let stream = client.stream(StreamRequest { job: Some(job("far", "slow")) });
    let (mut unread, slow) = tokio::join!(async { stream.await.unwrap().into_inner() }, worker.run());
    // Sends until no chunk is acknowledged any more, always four chunks ahead.
    let piece = || Message::Output(Output { id: slow.id.clone(), data: vec![7; 256 << 10].into() });
    let (mut sent, mut taken) = (0, 0);
    loop {
        while sent < taken + 4 {
            worker.say(piece()).await;
            sent += 1;
        }
        match timeout(Duration::from_secs(1), worker.hear.message()).await {
            Ok(Ok(Some(AttachResponse { message: Some(attach_response::Message::Taken(of)) }))) => {
                assert_eq!(of.id, slow.id);
                taken += 1;
            }
            Ok(other) => panic!("{other:?}"),
            // The flow-control window of the reader is full.
            Err(_) => break,
        }
    }
    let quick = Caller::of(service.public).await.leave(job("far", "quick"));
    let run = worker.run().await;
    worker.done(&run.id, "in time").await;
    assert_eq!(output(quick.await.unwrap()), "in time");
    worker.done(&slow.id, "").await;
    let mut bytes = 0;
    while let Some(event) = unread.message().await.unwrap() {
        if let Some(Event::OutputChunk(chunk)) = event.event {
            bytes += chunk.data.len();
        }
    }
    assert_eq!(bytes, sent * (256 << 10));
}

fn millis(millis: u64) -> prost_types::Duration {
    prost_types::Duration::try_from(Duration::from_millis(millis)).unwrap()
}
