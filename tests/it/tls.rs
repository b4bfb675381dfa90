//! TLS of the public listener: which handshakes succeed, and files that change while connections stay open.

// tidy: real time, because the server polls files, and the handshake of a real socket has a timeout.

mod rotation;

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tonic::transport::Channel;
use waterwheel::proto::{SubmitRequest, SubmitResponse};

use crate::{
    process::{PATIENCE, until},
    service::{Client, Service, job, load_config, submission},
    support::{Authority, Files, Leaf, Name, TlsClient},
};

const ECHO: &str = "drain.notice = \"0s\"\npool.one.workers = 4\nkind.echo = { pool = \"one\", builtin = \"echo\" }\n";
const ALLOW_ALL: &str = "[auth.rule.all]\nprincipals = [\"**\", \"anonymous\"]\nrpcs = [\"*\"]\n";

fn client_of(channel: Channel) -> Client {
    Client::new(channel)
}

async fn call(client: &mut Client) -> Result<(), tonic::Status> {
    client.submit(SubmitRequest { job: Some(job("echo", "x")) }).await.map(drop)
}

/// Whether a call on a new connection succeeds.
///
/// In TLS 1.3 a client sees its handshake succeed before the server refuses the certificate.
async fn gets_through(client: &TlsClient, service: &Service) -> bool {
    match client.channel(service.public.0).await {
        Ok(channel) => call(&mut client_of(channel)).await.is_ok(),
        Err(_) => false,
    }
}

async fn serial(client: &TlsClient, service: &Service) -> Vec<u8> {
    let stream = client.handshake(service.public.0).await.unwrap();
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().unwrap()[0].clone();
    certificate.as_ref().to_vec()
}

/// Without its root in the client CA, a client cannot open connections. Open connections stay, and other roots are not
/// affected. Without a client CA, no client can connect until the file is restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_a_client_root_refuses_only_new_connections() {
    let files = Files::new();
    let [ca, old, new] = ["server", "old", "new"].map(Authority::new);
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &format!("{}{}", old.pem(), new.pem()));
    let config = format!("{ECHO}{}{ALLOW_ALL}", files.tls_section(Some("required")));
    let service = Service::start(&config, Vec::new());
    let show = |authority: &Authority| TlsClient::new(&ca, Some(&authority.client(&Name::Common("web"))));
    let (of_old, of_new) = (show(&old), show(&new));
    let mut kept = client_of(of_old.channel(service.public.0).await.unwrap());
    call(&mut kept).await.unwrap();
    assert!(gets_through(&of_new, &service).await);

    files.put("clients.crt", &new.pem());
    until("the end of the old root", async || !gets_through(&of_old, &service).await).await;
    assert!(gets_through(&of_new, &service).await, "the other root is trusted");
    call(&mut kept).await.expect("an open connection stays");

    std::fs::remove_file(files.path("clients.crt")).unwrap();
    until("the end of all", async || !gets_through(&of_new, &service).await).await;
    call(&mut kept).await.expect("an open connection stays");

    files.put("clients.crt", &new.pem());
    until("the root that is back", async || gets_through(&of_new, &service).await).await;
    assert!(!gets_through(&of_old, &service).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_needs_the_right_tls_version_alpn_and_certificate() {
    let files = Files::new();
    let [ca, unknown] = ["ca", "unknown"].map(Authority::new);
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &ca.pem());
    let leaf = ca.client(&Name::Common("web"));
    let foreign = unknown.client(&Name::Common("web"));
    let only = |version, leaf: Option<&Leaf>| TlsClient::of_version(&[version], &ca, leaf);
    let speaking = |protocols: &[&[u8]]| {
        let mut client = TlsClient::new(&ca, Some(&leaf));
        client.0.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
        client
    };
    // Whether a client connects, for TLS 1.3 with required and TLS 1.2 with optional client certificates.
    let cases = [
        ("TLS 1.3 with a certificate", only(&TLS13, Some(&leaf)), [true, true]),
        ("TLS 1.2 with a certificate", only(&TLS12, Some(&leaf)), [false, true]),
        ("no certificate", TlsClient::new(&ca, None), [false, true]),
        ("a certificate of an unknown CA", TlsClient::new(&ca, Some(&foreign)), [false, false]),
        ("no ALPN", speaking(&[]), [false, false]),
        ("HTTP/1.1 alone", speaking(&[b"http/1.1"]), [false, false]),
        ("HTTP/1.1 and h2", speaking(&[b"http/1.1", b"h2"]), [true, true]),
    ];
    let strict = format!("{ECHO}{}{ALLOW_ALL}", files.tls_section(Some("required")));
    let lax = format!("{ECHO}{}min_version = \"1.2\"\n{ALLOW_ALL}", files.tls_section(Some("optional")));
    for (at, config) in [strict, lax].iter().enumerate() {
        let service = Service::start(config, Vec::new());
        for (what, client, expected) in &cases {
            assert_eq!(gets_through(client, &service).await, expected[at], "{what} in case {at}");
        }
    }
}

/// Silent peers, plaintext HTTP/2 and malformed TLS are closed within the handshake timeout. Other clients are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_completes_no_handshake_is_disconnected() {
    let (files, ca) = Files::of_server();
    let config = format!("{ECHO}{}handshake_timeout = \"2s\"\n", files.tls_section(None));
    let service = Service::start(&config, Vec::new());
    for bytes in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"] {
        let mut socket = TcpStream::connect(service.public.0).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let begin = Instant::now();
        let mut answer = Vec::new();
        let ended = timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("a disconnect");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        assert!(ended.is_err() || answer.len() < 64, "an alert at most: {answer:?}");
        assert!(gets_through(&TlsClient::new(&ca, None), &service).await);
    }
}

/// Without TLS, a public address needs the setting that allows plaintext.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_a_public_address_needs_no_permission_for_plaintext() {
    let (files, ca) = Files::of_server();
    let config = load_config(&format!("server.listen = \"0.0.0.0:0\"\n{ECHO}{}", files.tls_section(None)));
    let service = Service::start_with(config, Vec::new()).unwrap();
    let here = (std::net::Ipv4Addr::LOCALHOST, service.public.0.port()).into();
    let channel = TlsClient::new(&ca, None).channel(here).await.unwrap();
    call(&mut client_of(channel)).await.unwrap();
}

/// A client that has negotiated HTTP/2 must use it, although HTTP/1.1 is enabled for web pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_is_refused_on_a_connection_that_negotiated_http_2() {
    let (files, ca) = Files::of_server();
    let pages = "server.grpc_web_origins = [\"https://app.example\"]\n";
    let service = Service::start(&format!("{pages}{ECHO}{}", files.tls_section(None)), Vec::new());
    let client = TlsClient::new(&ca, None);
    let mut stream = client.handshake(service.public.0).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The connection may end with an alert or without one.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end");
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    assert!(gets_through(&client, &service).await);
}

const ORIGIN: &str = "https://app.example";
const RULE: &str = "[auth.rule.pages]\nprincipals = [\"subject:CN=user\"]\nrpcs = [\"Submit\"]\ntenant = \"pages\"\n";

async fn from_page(client: &TlsClient, service: &Service, method: Method, body: Vec<u8>) -> Response<Incoming> {
    let stream = client.handshake(service.public.0).await.unwrap();
    let agreed = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = TokioIo::new(stream);
    let uri = format!("https://{}/waterwheel.v1.WorkerPoolService/Submit", service.public.0);
    let request = Request::builder().method(&method).uri(uri).header("origin", ORIGIN);
    let request = if method == Method::OPTIONS {
        request
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "content-type,x-grpc-web")
    } else {
        request.header("content-type", "application/grpc-web+proto").header("x-grpc-web", "1")
    };
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    if agreed {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }
}

/// The message of an answer, if any, and its gRPC status.
async fn read(answer: Response<Incoming>) -> (Option<SubmitResponse>, String) {
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["access-control-allow-origin"], ORIGIN);
    if let Some(status) = answer.headers().get("grpc-status") {
        return (None, status.to_str().unwrap().to_owned());
    }
    let mut frames = answer.into_body().collect().await.unwrap().to_bytes();
    let mut message = None;
    loop {
        let length = u32::from_be_bytes(frames[1..5].try_into().unwrap()) as usize;
        let (flags, frame) = (frames[0], frames.split_to(5 + length).split_off(5));
        if flags & 0x80 == 0 {
            message = Some(SubmitResponse::decode(frame).unwrap());
            continue;
        }
        let trailers = String::from_utf8(frame.to_vec()).unwrap();
        let status = trailers.lines().find_map(|line| line.strip_prefix("grpc-status:")).unwrap();
        return (message, status.trim().to_owned());
    }
}

fn speaking(protocols: &[&[u8]], mut client: TlsClient) -> TlsClient {
    client.0.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
    client
}

/// The certificate of the connection authenticates the page, by the same rules as for other callers. A preflight
/// request, which has no certificate, is answered. All of this holds in HTTP/2, in HTTP/1.1 and without ALPN.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_is_authenticated_by_the_certificate_of_its_connection() {
    let (files, ca) = Files::of_server();
    let pages = format!("server.grpc_web_origins = [\"{ORIGIN}\"]\n");
    let service = Service::start(&format!("{pages}{ECHO}{}{RULE}", files.tls_section(Some("optional"))), Vec::new());
    for protocols in [&[&b"h2"[..], b"http/1.1"][..], &[b"http/1.1"], &[]] {
        let shows = |name: Option<&str>| {
            let leaf = name.map(|name| ca.client(&Name::Common(name)));
            speaking(protocols, TlsClient::new(&ca, leaf.as_ref()))
        };
        let stream = shows(None).handshake(service.public.0).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), protocols.first().copied());
        let asked = from_page(&shows(None), &service, Method::OPTIONS, Vec::new()).await;
        assert_eq!(
            (asked.status(), &asked.headers()["access-control-allow-origin"]),
            (StatusCode::OK, &ORIGIN.parse().unwrap())
        );
        for (name, expected) in [(None, "16"), (Some("other"), "7"), (Some("user"), "0")] {
            let answer = from_page(&shows(name), &service, Method::POST, submission("echo", "from a page")).await;
            let (message, status) = read(answer).await;
            assert_eq!(status, expected, "{name:?} of {protocols:?}");
            let output = message.map(|message| message.result.unwrap().output);
            assert_eq!(output, (expected == "0").then(|| b"from a page".to_vec()));
        }
    }
    let caller = TlsClient::new(&ca, Some(&ca.client(&Name::Common("user"))));
    assert!(gets_through(&caller, &service).await, "other callers use HTTP/2");
    assert!(speaking(&[b"http/1.0"], caller).handshake(service.public.0).await.is_err());
}
