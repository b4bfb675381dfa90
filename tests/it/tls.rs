//! TLS in front of the service: who gets through a handshake, and files that change while connections stay.

// tidy: real time, because the files are polled and the handshake has a timer of real sockets.

mod command_line;
mod odd_files;
mod pages;
mod rotation;

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tonic::transport::Channel;
use waterwheel::proto::SubmitRequest;

use crate::{
    process::PATIENCE,
    service::{Client, Service, job, load_config},
    support::{Authority, Files, Leaf, Name, TlsClient},
};

const ECHO: &str = "drain.notice = \"0s\"\npool.one.workers = 4\nkind.echo = { pool = \"one\", builtin = \"echo\" }\n";
const EVERYBODY: &str = "[auth.rule.all]\nprincipals = [\"**\", \"anonymous\"]\nrpcs = [\"*\"]\n";

fn client_of(channel: Channel) -> Client {
    Client::new(channel)
}

async fn call(client: &mut Client) -> Result<(), tonic::Status> {
    client.submit(SubmitRequest { job: Some(job("echo", "x")) }).await.map(drop)
}

/// Whether a connection of its own gets an answer. In TLS 1.3 a server refuses a certificate after the handshake, as
/// its client sees it.
async fn gets_through(client: &TlsClient, service: &Service) -> bool {
    match client.channel(service.public.0).await {
        Ok(channel) => call(&mut client_of(channel)).await.is_ok(),
        Err(_) => false,
    }
}

async fn until(what: &str, reached: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !reached().await {
        assert!(begin.elapsed() < PATIENCE, "not reached: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn serial(client: &TlsClient, service: &Service) -> Vec<u8> {
    let stream = client.handshake(service.public.0).await.unwrap();
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().unwrap()[0].clone();
    certificate.as_ref().to_vec()
}

/// A root that is taken out of the client CA stops new connections of its clients; those that stand go on, and so do
/// the clients of other roots. A CA that is gone stops all, and one that is back lets them in again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_ca_that_is_taken_out_stops_new_connections() {
    let files = Files::new();
    let [ca, old, new] = ["server", "old", "new"].map(Authority::new);
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &format!("{}{}", old.pem(), new.pem()));
    let config = format!("{ECHO}{}{EVERYBODY}", files.tls_section(Some("required")));
    let service = Service::start(&config, Vec::new());
    let show = |authority: &Authority| TlsClient::new(&ca, Some(&authority.client(&Name::Common("web"))));
    let (of_old, of_new) = (show(&old), show(&new));
    let mut kept = client_of(of_old.channel(service.public.0).await.unwrap());
    call(&mut kept).await.unwrap();
    assert!(gets_through(&of_new, &service).await);

    files.put("clients.crt", &new.pem());
    until("the end of the old root", async || !gets_through(&of_old, &service).await).await;
    assert!(gets_through(&of_new, &service).await, "the other root stays");
    call(&mut kept).await.expect("a connection that stands goes on");

    std::fs::remove_file(files.path("clients.crt")).unwrap();
    until("the end of all", async || !gets_through(&of_new, &service).await).await;
    call(&mut kept).await.expect("a connection that stands goes on");

    files.put("clients.crt", &new.pem());
    until("the root that is back", async || gets_through(&of_new, &service).await).await;
    assert!(!gets_through(&of_old, &service).await);
}

/// What a client speaks and shows decides whether it gets through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_needs_the_version_the_protocol_and_the_certificate() {
    let files = Files::new();
    let [ca, stranger] = ["ca", "stranger"].map(Authority::new);
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &ca.pem());
    let leaf = ca.client(&Name::Common("web"));
    let foreign = stranger.client(&Name::Common("web"));
    let only = |version, leaf: Option<&Leaf>| TlsClient::of_version(&[version], &ca, leaf);
    let speaking = |protocols: &[&[u8]]| {
        let mut client = TlsClient::new(&ca, Some(&leaf));
        client.0.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
        client
    };
    // Which clients get through with [1.3 and required, 1.2 too and optional].
    let cases = [
        ("TLS 1.3 with a certificate", only(&TLS13, Some(&leaf)), [true, true]),
        ("TLS 1.2 with a certificate", only(&TLS12, Some(&leaf)), [false, true]),
        ("no certificate", TlsClient::new(&ca, None), [false, true]),
        ("a certificate of a stranger", TlsClient::new(&ca, Some(&foreign)), [false, false]),
        ("no ALPN", speaking(&[]), [false, false]),
        ("HTTP/1.1 alone", speaking(&[b"http/1.1"]), [false, false]),
        ("HTTP/1.1 and h2", speaking(&[b"http/1.1", b"h2"]), [true, true]),
    ];
    let strict = format!("{ECHO}{}{EVERYBODY}", files.tls_section(Some("required")));
    let lax = format!("{ECHO}{}min_version = \"1.2\"\n{EVERYBODY}", files.tls_section(Some("optional")));
    for (at, config) in [strict, lax].iter().enumerate() {
        let service = Service::start(config, Vec::new());
        for (what, client, expected) in &cases {
            assert_eq!(gets_through(client, &service).await, expected[at], "{what} in case {at}");
        }
    }
}

/// A peer that is silent, one that speaks HTTP/2 in plaintext and one that speaks nonsense are cut within the time of
/// the handshake, while others are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_a_handshake_is_cut() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    let config = format!("{ECHO}{}handshake_timeout = \"2s\"\n", files.tls_section(None));
    let service = Service::start(&config, Vec::new());
    for bytes in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"] {
        let mut socket = TcpStream::connect(service.public.0).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let begin = Instant::now();
        let mut answer = Vec::new();
        let ended = timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("a cut");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        assert!(ended.is_err() || answer.len() < 64, "an alert at most: {answer:?}");
        assert!(gets_through(&TlsClient::new(&ca, None), &service).await);
    }
}

/// With TLS, other machines are served without the permission for plaintext.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_machines_are_served_with_tls() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    let config = load_config(&format!("server.listen = \"0.0.0.0:0\"\n{ECHO}{}", files.tls_section(None)));
    let service = Service::start_with(config, Vec::new()).unwrap();
    let here = (std::net::Ipv4Addr::LOCALHOST, service.public.0.port()).into();
    let channel = TlsClient::new(&ca, None).channel(here).await.unwrap();
    call(&mut client_of(channel)).await.unwrap();
}

/// Whoever has agreed on HTTP/2 in the handshake speaks it, though pages may call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_tls_nothing_but_http2_is_spoken() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    let pages = "server.grpc_web_origins = [\"https://app.example\"]\n";
    let service = Service::start(&format!("{pages}{ECHO}{}", files.tls_section(None)), Vec::new());
    let client = TlsClient::new(&ca, None);
    let mut stream = client.handshake(service.public.0).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The end may come with an alert or without one.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end");
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    assert!(gets_through(&client, &service).await);
}
