//! Protection against DNS rebinding: the operators' listener refuses requests whose host is not one of its own names.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use waterwheel::{app::App, proto::Phase};

use crate::{
    process::Process,
    service::{Address, Caller, load_config},
};

const CONFIG: &str = r#"
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

async fn get(address: Address, host: &str, path: &str) -> StatusCode {
    send(address, host, Request::get(path)).await.0
}

#[tokio::test]
async fn a_loopback_listener_refuses_foreign_host_names() {
    let process = Process::serve(CONFIG).await;
    for path in PAGES {
        assert_eq!(get(process.ops, EVIL, path).await, StatusCode::MISDIRECTED_REQUEST, "{path}");
        for host in [process.ops.0.to_string().as_str(), "localhost:7071", "[::1]", "10.0.0.1:9"] {
            assert_eq!(get(process.ops, host, path).await, StatusCode::OK, "{host}{path}");
        }
    }
    assert_eq!(get(process.ops, EVIL, "/none").await, StatusCode::MISDIRECTED_REQUEST);
}

/// With a rebound name the browser takes the request for one of the same origin, so it allows any method and media
/// type.
#[tokio::test]
async fn a_call_with_a_foreign_host_name_has_no_effect() {
    let process = Process::serve(CONFIG).await;
    let drain = || Request::post("/waterwheel.v1.AdminService/Drain").header("content-type", "application/grpc");
    assert_eq!(send(process.ops, EVIL, drain()).await, (StatusCode::OK, "7".to_owned()));
    // Over HTTP/1.1 no gRPC call is accepted, whatever the host name.
    assert_eq!(send(process.ops, "localhost", drain()).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(Caller::of(process.public).await.pool().await.phase(), Phase::Serving);
}

#[tokio::test]
async fn the_authority_of_http_2_requests_is_checked_too() {
    let process = Process::serve(CONFIG).await;
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
        assert_eq!(get(address, "waterwheel.jobs.svc:7071", "/metrics").await, service, "{names}");
        assert_eq!(get(address, "ops.example:7071", "/metrics").await, ours, "{names}");
        assert_eq!(get(address, "127.0.0.1", "/livez").await, 200, "{names}");
        control.drain();
        run.await.unwrap();
    }
}

#[tokio::test]
async fn a_loopback_listener_accepts_its_configured_host_names() {
    let process = Process::serve(&format!("server.ops_hosts = [\"ops.example\"]\n{CONFIG}")).await;
    assert_eq!(get(process.ops, "ops.example:80", "/metrics").await, 200);
    assert_eq!(get(process.ops, EVIL, "/metrics").await, 421);
}
