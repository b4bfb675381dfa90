//! HTTP pages for operators: probes, metrics and the list of jobs, over HTTP/1.1 and HTTP/2.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpStream;
use waterwheel::{
    app::App,
    proto::{Job, Phase},
};

use crate::{
    process::{Process, until},
    service::{Address, Caller, Client, job, load_config, queued},
    support::{Files, TlsClient},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    drain = { notice = "60s", finish = "1s", kill = "1s" }
    [pool.one]
    workers = 2
    queue = { jobs = 3, bytes = "8MiB", waiting = 5 }
"#;

#[derive(Clone, Copy, Debug)]
enum Version {
    Http1,
    Http2,
}

async fn get_in(address: Address, version: Version, path: &str) -> (StatusCode, String) {
    let request = Request::get(format!("http://{}{path}", address.0)).header("host", "localhost");
    // As Prometheus asks.
    let accepted = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.2";
    let request = request.header("accept", accepted).body(Full::default()).unwrap();
    let response = match version {
        Version::Http1 => address.http1(request).await,
        Version::Http2 => address.http2(request).await,
    };
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

pub(crate) async fn get(address: Address, path: &str) -> (StatusCode, String) {
    get_in(address, Version::Http1, path).await
}

/// The metrics by name and labels.
pub(crate) async fn metrics(address: Address) -> BTreeMap<String, f64> {
    let (status, page) = get(address, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.ends_with("# EOF\n"), "{page}");
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.into(), value.parse().unwrap()))
        .collect()
}

#[tokio::test]
async fn probes_answer_over_http_1_and_2_and_report_a_drain() {
    let process = Process::serve(CONFIG).await;
    for version in [Version::Http1, Version::Http2] {
        for path in ["/livez", "/readyz"] {
            assert_eq!(get_in(process.ops, version, path).await, (StatusCode::OK, "ok\n".into()), "{path} {version:?}");
        }
    }
    process.signal(Signal::TERM);
    while get(process.ops, "/readyz").await.0 == StatusCode::OK {}
    let (status, text) = get(process.ops, "/readyz").await;
    assert_eq!((status, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "the process is starting or draining\n"));
    // A probe must not kill a process that drains.
    assert_eq!(get(process.ops, "/livez").await.0, StatusCode::OK);
}

#[tokio::test]
async fn metrics_are_plain_text_for_clients_that_do_not_accept_openmetrics() {
    let process = Process::serve(CONFIG).await;
    for accepted in [None, Some("*/*"), Some("text/plain;version=0.0.4")] {
        let mut request = Request::get("/metrics").header("host", "localhost");
        request.headers_mut().unwrap().extend(accepted.map(|value| (http::header::ACCEPT, value.parse().unwrap())));
        let response = process.ops.http1(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8", "{accepted:?}");
        let page = response.into_body().collect().await.unwrap().to_bytes();
        let page = str::from_utf8(&page).unwrap();
        let accepted =
            "# TYPE waterwheel_jobs_accepted_total counter\nwaterwheel_jobs_accepted_total{pool=\"one\"} 0\n";
        assert!(page.contains(accepted) && page.contains("# HELP waterwheel_jobs_accepted_total "), "{page}");
        assert!(page.contains("# TYPE waterwheel_queue_jobs gauge\n"), "{page}");
        assert!(!page.contains("# EOF") && !page.contains("# UNIT"), "{page}");
    }
}

#[tokio::test]
async fn metrics_report_pool_statistics_and_call_durations() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    for _ in 0..3 {
        caller.leave(job("echo", "x")).await.unwrap().unwrap();
    }
    caller.leave(job("none", "x")).await.unwrap().unwrap_err();
    caller.occupy(2).await;
    for ahead in 0..3 {
        caller.queue(job("echo", vec![0; 1 << 10]), ahead).await;
    }
    caller.leave(job("echo", "")).await.unwrap().unwrap_err();
    let left = caller.leave(Job { kind: "sleep".into(), ..Job::default() });
    assert!(left.await.unwrap().is_err(), "the queue is full");

    let metrics = metrics(process.ops).await;
    for (name, value) in [
        (r#"waterwheel_queue_jobs{pool="one"}"#, 3.0),
        (r#"waterwheel_queue_jobs_limit{pool="one"}"#, 3.0),
        (r#"waterwheel_queue_bytes{pool="one"}"#, 3.0 * 1024.0),
        (r#"waterwheel_jobs_running{pool="one"}"#, 2.0),
        (r#"waterwheel_worker_utilization_ratio{pool="one"}"#, 1.0),
        (r#"waterwheel_pool_paused{pool="one"}"#, 0.0),
        (r#"waterwheel_pool_workers_min{pool="one"}"#, 2.0),
        (r#"waterwheel_pool_workers_max{pool="one"}"#, 2.0),
        (r#"waterwheel_pool_workers{pool="one"}"#, 2.0),
        (r#"waterwheel_pool_slowdown_ratio{pool="one"}"#, 1.0),
        (r#"waterwheel_factory_failures_total{pool="one",kind="echo"}"#, 0.0),
        (r#"waterwheel_workers{pool="one",state="busy"}"#, 2.0),
        (r#"waterwheel_workers{pool="one",state="idle"}"#, 0.0),
        (r#"waterwheel_jobs_accepted_total{pool="one"}"#, 8.0),
        (r#"waterwheel_jobs_ended_total{pool="one",outcome="completed"}"#, 3.0),
        (r#"waterwheel_jobs_rejected_total{pool="one",reason="QUEUE_FULL"}"#, 2.0),
        ("waterwheel_jobs_unknown_kind_total", 1.0),
        (r#"waterwheel_phase{phase="serving"}"#, 1.0),
        (r#"waterwheel_health{service="capacity"}"#, 0.0),
        (r#"waterwheel_connections_accepted_total{listener="public"}"#, 1.0),
        (r#"waterwheel_connections{listener="ops"}"#, 1.0),
        (r#"waterwheel_connections_refused_total{listener="public",reason="per_address"}"#, 0.0),
        (r#"waterwheel_build_info{version="0.1.0",profile="debug"}"#, 1.0),
        (r#"waterwheel_job_queue_wait_seconds_count{pool="one",kind="echo"}"#, 3.0),
        (r#"waterwheel_job_run_time_seconds_bucket{le="+Inf",pool="one",kind="echo"}"#, 3.0),
    ] {
        assert_eq!(metrics.get(name), Some(&value), "{name} of {metrics:#?}");
    }
    assert!(!metrics.keys().any(|name| name.starts_with("waterwheel_kind_")), "no kind has limits: {metrics:#?}");
    let calls = |kind: &str, status: &str| {
        let labels =
            format!(r#"rpc_method="waterwheel.v1.WorkerPoolService/Submit",kind="{kind}",rpc_status_code="{status}""#);
        metrics.get(&format!("rpc_server_call_duration_seconds_count{{{labels}}}")).copied()
    };
    assert_eq!(calls("echo", "OK"), Some(3.0));
    assert_eq!((calls("echo", "RESOURCE_EXHAUSTED"), calls("sleep", "RESOURCE_EXHAUSTED")), (Some(1.0), Some(1.0)));
    assert_eq!((calls("_OTHER", "INVALID_ARGUMENT"), calls("none", "INVALID_ARGUMENT")), (Some(1.0), None));
    for runtime in ["main", "ops", "serve-0"] {
        assert!(metrics[&format!(r#"tokio_runtime_parks_total{{runtime="{runtime}"}}"#)] > 0.0, "{runtime}");
    }
    assert!(metrics[r#"tokio_runtime_busy_seconds_total{runtime="ops"}"#] > 0.0);
}

/// Metric families of a page by name, each with its type and the labels of its series.
fn families(page: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let mut last = String::new();
    for line in page.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            last = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            families.insert(last.clone(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((_, rest)) = line.split_once('{') {
            let labels = rest.split('"').step_by(2).filter_map(|name| name.trim_start_matches(',').strip_suffix('='));
            let labels = labels.filter(|label| *label != "le").map(str::to_owned);
            families.get_mut(&last).unwrap().1.extend(labels);
        }
    }
    families
}

/// Metric families that the tables of a document list.
fn documented(page: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    rows.map(|row| (row[0].trim_end_matches('`').to_owned(), (row[1].to_owned(), names(row[2])))).collect()
}

#[tokio::test]
async fn docs_metrics_lists_exactly_the_exported_metrics() {
    const MORE: &str = r#"
        [kind.paced]
        pool = "one"
        builtin = "echo"
        limit = { concurrency = 1, rate = 9, per_key = { concurrency = 1, rate = 9 } }
        [program.stays]
        command = ["/bin/sh", "-c", "echo '{\"ready\":{\"protocol\":1}}' >&4; while read line <&3; do :; done"]
        [kind.stays]
        pool = "one"
        program = "stays"
        [pool.far]
        [kind.far]
        pool = "far"
        remote = true
        [store]
        path = "jobs.db"
        [quota]
        tenant.shop.rate = 1000
        [auth.rule.all]
        principals = ["anonymous"]
        rpcs = ["*"]
    "#;
    let (files, ca) = Files::of_server();
    let process = Process::serve(&format!("{CONFIG}{MORE}{}", files.tls_section(Some("optional")))).await;
    let channel = TlsClient::new(&ca, None).channel(process.public.0).await.unwrap();
    Caller(Client::new(channel)).leave(job("echo", "x")).await.unwrap().unwrap();
    assert_eq!(process.run("pause far").await.code, Some(0), "a paused pool is a problem");
    let has = async |name: &str| get(process.ops, "/metrics").await.1.contains(name);
    let is_whole = async || has("waterwheel_detached_jobs").await && has("waterwheel_problem{").await;
    until("the detached jobs are counted, and a problem is reported", is_whole).await;
    let (_, page) = get(process.ops, "/metrics").await;
    assert_eq!(documented(include_str!("../../docs/metrics.md")), families(&page));
}

#[tokio::test]
async fn a_call_whose_caller_disconnects_counts_as_cancelled() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let call = caller.leave(job("sleep", "60000"));
    caller.until(|pool| pool.in_flight == 1).await;
    call.abort();
    caller.until(|pool| pool.in_flight == 0).await;
    let name = r#"rpc_server_call_duration_seconds_count{rpc_method="waterwheel.v1.WorkerPoolService/Submit",kind="sleep",rpc_status_code="CANCELLED"}"#;
    until("the call is counted", async || metrics(process.ops).await.get(name) == Some(&1.0)).await;
}

#[tokio::test]
async fn debug_tasks_lists_jobs_with_their_ids_and_ages() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    caller.occupy(2).await;
    let mut request = tonic::Request::new(waterwheel::proto::SubmitRequest { job: Some(job("echo", "x")) });
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    request.metadata_mut().insert("x-request-id", "queued-request".parse().unwrap());
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    request.set_timeout(std::time::Duration::from_secs(300));
    let mut client = caller.0.clone();
    tokio::spawn(async move { client.submit(request).await });
    caller.until(|pool| queued(pool) == 1).await;

    let (status, page) = get(process.ops, "/debug/tasks").await;
    assert_eq!(status, StatusCode::OK);
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["phase"], "serving");
    let pool = &page["pools"]["one"];
    let jobs = pool["jobs"].as_array().unwrap();
    let stages: Vec<_> = jobs.iter().map(|job| job["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["running", "running", "queued"]);
    for running in &jobs[..2] {
        let worker = &pool["workers"][running["worker"].as_u64().unwrap() as usize];
        assert_eq!((&worker["state"], &worker["job"]), (&"busy".into(), &running["job"]));
        assert!(running["run_ms"].as_f64().unwrap() <= running["age_ms"].as_f64().unwrap());
        assert_eq!(running["kind"], "sleep");
    }
    let waiting = &jobs[2];
    assert_eq!((&waiting["request_id"], &waiting["traceparent"]), (&"queued-request".into(), &parent.into()));
    assert!((200_000.0..=300_000.0).contains(&waiting["left_ms"].as_f64().unwrap()), "{waiting}");
    assert!(waiting["age_ms"].as_f64().unwrap() > 0.0 && waiting["run_ms"].is_null());
}

#[tokio::test]
async fn each_page_can_be_switched_off() {
    let all = ["/livez", "/readyz", "/metrics", "/debug/tasks", "/"];
    let switches = [
        ("probes = false", &all[..2]),
        ("metrics = false", &all[2..3]),
        ("debug_tasks = false", &all[3..4]),
        ("page = 'off'", &all[4..]),
    ];
    for (option, gone) in switches {
        let process = Process::serve(&format!("ops.{option}\n{CONFIG}")).await;
        for path in all {
            let (status, text) = get(process.ops, path).await;
            if gone.contains(&path) {
                assert_eq!(status, StatusCode::NOT_FOUND, "{path} without {option}");
                let rest: Vec<_> = all.into_iter().filter(|path| !gone.contains(path)).collect();
                let rest = rest.join(" ");
                assert!(text.starts_with(&format!("unknown path; pages: {rest} ")), "{text}");
            } else {
                assert_eq!(status, StatusCode::OK, "{path} without {option}");
            }
        }
    }
}

#[tokio::test]
async fn the_public_listener_serves_no_operator_pages() {
    let process = Process::serve(CONFIG).await;
    let (status, text) = get_in(process.public, Version::Http2, "/metrics").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(text.contains("pages: none; gRPC calls are a POST") && !text.contains("AdminService"), "{text}");
}

#[tokio::test]
async fn an_idle_keepalive_connection_does_not_delay_the_drain() {
    let config = CONFIG.replace("60s", "0s").replace(r#"finish = "1s""#, r#"finish = "60s""#);
    let process = Process::serve(&config).await;
    let stream = TokioIo::new(TcpStream::connect(process.ops.0).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/livez").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::OK);
    process.signal(Signal::TERM);
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0));
    assert!(ended.receipt["elapsed_ms"].as_u64().unwrap() < 20_000, "{ended:?}");
}

/// A configuration for the protection against DNS rebinding.
const HOSTS: &str = r#"
    drain.notice = "0s"
    pool.one.workers = 1
    kind.echo = { pool = "one", builtin = "echo" }
"#;
const EVIL: &str = "evil.example:7071";
const PAGES: [&str; 4] = ["/debug/tasks", "/metrics", "/livez", "/readyz"];

/// Sends a request over HTTP/1.1 with this host. Returns the HTTP status and the gRPC status, if there is one.
async fn send(address: Address, host: &str, request: http::request::Builder) -> (StatusCode, String) {
    // The frame of an empty gRPC message.
    let body = Full::new(Bytes::from_static(&[0; 5]));
    let answer = address.http1(request.header("host", host).body(body).unwrap()).await;
    let grpc = answer.headers().get("grpc-status").map(|code| code.to_str().unwrap().to_owned());
    (answer.status(), grpc.unwrap_or_default())
}

async fn get_from(address: Address, host: &str, path: &str) -> StatusCode {
    send(address, host, Request::get(path)).await.0
}

#[tokio::test]
async fn a_loopback_listener_refuses_foreign_host_names() {
    let process = Process::serve(HOSTS).await;
    for path in PAGES {
        assert_eq!(get_from(process.ops, EVIL, path).await, StatusCode::MISDIRECTED_REQUEST, "{path}");
        for host in [process.ops.0.to_string().as_str(), "localhost:7071", "[::1]", "10.0.0.1:9"] {
            assert_eq!(get_from(process.ops, host, path).await, StatusCode::OK, "{host}{path}");
        }
    }
    assert_eq!(get_from(process.ops, EVIL, "/none").await, StatusCode::MISDIRECTED_REQUEST);
}

/// With a rebound name the browser takes the request for one of the same origin, so it allows any method and media
/// type.
#[tokio::test]
async fn a_call_with_a_foreign_host_name_has_no_effect() {
    let process = Process::serve(HOSTS).await;
    let drain = || Request::post("/waterwheel.v1.AdminService/Drain").header("content-type", "application/grpc");
    assert_eq!(send(process.ops, EVIL, drain()).await, (StatusCode::OK, "7".to_owned()));
    // Over HTTP/1.1 no gRPC call is accepted, whatever the host name.
    assert_eq!(send(process.ops, "localhost", drain()).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(Caller::of(process.public).await.pool().await.phase(), Phase::Serving);
}

#[tokio::test]
async fn the_authority_of_http_2_requests_is_checked_too() {
    let process = Process::serve(HOSTS).await;
    for (host, expected) in [(EVIL, 421), ("localhost:1", 200)] {
        let request = Request::get(format!("http://{host}/debug/tasks")).body(Full::<Bytes>::default()).unwrap();
        let answer = process.ops.http2(request).await;
        assert_eq!(answer.status(), expected, "{host}");
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text.starts_with(b"{"), expected == 200, "{text:?}");
    }
}

/// Probes and scrapers in a cluster use service names as host names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_public_listener_accepts_any_host_name_unless_names_are_configured() {
    for (names, service, ours) in [("[]", 200, 200), ("[\"ops.example\"]", 421, 200)] {
        let listen = "ops_listen = \"0.0.0.0:0\"\nops_allow_plaintext = true\nlisten = \"127.0.0.1:0\"";
        let config = load_config(&format!("[server]\n{listen}\nops_hosts = {names}\n[drain]\nnotice = \"0s\"\n"));
        let app = App::start_with(&config, Vec::new(), None).unwrap();
        let port = app.ops_address().tcp().unwrap().port();
        let address = Address(([127, 0, 0, 1], port).into());
        let (control, run) = (app.control(), tokio::spawn(app.run()));
        assert_eq!(get_from(address, "waterwheel.jobs.svc:7071", "/metrics").await, service, "{names}");
        assert_eq!(get_from(address, "ops.example:7071", "/metrics").await, ours, "{names}");
        assert_eq!(get_from(address, "127.0.0.1", "/livez").await, 200, "{names}");
        control.drain();
        run.await.unwrap();
    }
}

#[tokio::test]
async fn a_loopback_listener_accepts_its_configured_host_names() {
    let process = Process::serve(&format!("server.ops_hosts = [\"ops.example\"]\n{HOSTS}")).await;
    assert_eq!(get_from(process.ops, "ops.example:80", "/metrics").await, 200);
    assert_eq!(get_from(process.ops, EVIL, "/metrics").await, 421);
}
