//! Permission to attach, and workers that lose their network connection.

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
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;
use waterwheel::proto::attach_request::Message;

use super::{CONFIG, attach_by, hello, serve, workers};
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
    let metrics = crate::ops_pages::metrics(service.ops).await;
    assert_eq!(metrics[r#"waterwheel_attached_workers{pool="far"}"#], 1.0);
    assert_eq!(metrics[r#"waterwheel_attached_abandoned_jobs{pool="far"}"#], 0.0);
}
