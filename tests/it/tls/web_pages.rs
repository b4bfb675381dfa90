//! Web pages that call over gRPC-Web and TLS, in HTTP/2 or HTTP/1.1, with or without a client certificate.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use waterwheel::proto::SubmitResponse;

use super::{ECHO, gets_through};
use crate::{
    service::{Service, submission},
    support::{Files, Name, TlsClient},
};

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
