//! What web pages of other sites, and callers that mean harm, send to the door for JSON.

use http::{Method, StatusCode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{CONFIG, JSON, STATS, STREAM, SUBMIT, Version, ask, echo, envelopes, zip};
use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller},
};

/// A browser sends what its page wants to any address that it can reach: another page's server, or a name that the page
/// has made resolve to this address.
#[tokio::test]
async fn no_page_of_another_site_may_call_whatever_name_it_takes() {
    let process = Process::serve(CONFIG).await;
    let own = |address: Address| format!("http://{}", address.0);
    let (callers, operators) = (own(process.public), own(process.ops));
    let (hosts, names) = ([process.public, process.ops].map(|address| address.0.to_string()), "evil.example:7070");
    let evil = "http://evil.example:7070";
    let get = format!("{STATS}?encoding=json&message=%7B%7D");
    for (address, method, headers, status) in [
        (process.public, Method::POST, vec![("origin", evil)], 403),
        (process.public, Method::POST, vec![("origin", evil), ("host", names)], 403),
        (process.public, Method::POST, vec![("origin", &callers), ("host", &hosts[0])], 403),
        (process.public, Method::POST, vec![("origin", "null")], 403),
        (process.public, Method::POST, vec![("sec-fetch-site", "cross-site")], 403),
        (process.public, Method::POST, vec![("host", "jobs.example")], 200),
        (process.public, Method::GET, vec![("host", names)], 403),
        (process.public, Method::GET, vec![("origin", evil)], 403),
        (process.public, Method::GET, vec![("sec-fetch-site", "cross-site")], 403),
        (process.public, Method::GET, vec![("sec-fetch-site", "same-site")], 403),
        (process.public, Method::GET, vec![("sec-fetch-site", "same-origin")], 200),
        (process.public, Method::GET, vec![("sec-fetch-site", "none")], 200),
        (process.ops, Method::POST, vec![("origin", &operators), ("host", &hosts[1])], 200),
        (process.ops, Method::GET, vec![("origin", &operators), ("host", &hosts[1])], 200),
        (process.ops, Method::POST, vec![("origin", &callers), ("host", &hosts[1])], 403),
        (process.ops, Method::POST, vec![("origin", evil), ("host", names)], 403),
        (process.ops, Method::POST, vec![("host", names)], 403),
        (process.ops, Method::GET, vec![("host", names)], 403),
    ] {
        let path = if method == Method::GET { &get } else { STATS };
        let headers = [&[JSON][..], &headers].concat();
        let answer = ask(address, Version::Http1, method.clone(), path, &headers, "{}").await;
        assert_eq!(answer.status, status, "{method} {headers:?}");
        assert!(status == 200 || answer.reason() == "MISDIRECTED", "{headers:?}");
    }
    for media_type in
        ["text/plain", "text/plain; a=application/json", "application/x-www-form-urlencoded", "multipart/form-data"]
    {
        for (address, path) in [(process.public, SUBMIT), (process.ops, "/waterwheel.v1.AdminService/Drain")] {
            let headers = [("content-type", media_type)];
            let refused = ask(address, Version::Http1, Method::POST, path, &headers, echo(b"x").to_string()).await;
            assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{media_type}");
        }
    }
    assert_eq!(Caller::of(process.public).await.pool().await.jobs.unwrap().accepted, 0);
}

/// A call that is not read as JSON must not become another call.
#[tokio::test]
async fn hostile_texts_are_refused_and_nothing_runs() {
    let process = Process::serve(CONFIG).await;
    let nested = ["[".repeat(100_000), "{\"job\":".repeat(10_000)];
    let many = (0..15_000).map(|number| format!("\"{number}\":\"\"")).collect::<Vec<_>>().join(",");
    let many = format!(r#"{{"job": {{"kind": "echo", "labels": {{{many}}}}}}}"#);
    let with = |field: &str| format!(r#"{{"job": {{"kind": "echo", {field}}}}}"#);
    let fields = [r#""payload": "a""#, r#""payload": "~~~~""#, r#""kind": "x""#, r#""when_full": 1, "whenFull": 2"#];
    let others = [
        r#""whenFull": "NEVER""#,
        r#""priority": {}"#,
        r#""labels": {"a": 1}"#,
        r#""labels": []"#,
        r#""runTimeout": "1""#,
        r#""kind": "\ud800""#,
        r#""__proto__": {}"#,
    ];
    let mut texts: Vec<_> = fields.iter().chain(&others).map(|field| with(field).into_bytes()).collect();
    texts.extend(nested.map(String::into_bytes));
    texts.extend(
        ["null", "[]", "\u{feff}{}", "{} {}", "{'job': 1}", "{\"job\": {}}//"].map(|text| text.as_bytes().to_vec()),
    );
    texts.extend([b"{\"job\": {\"kind\": \"\xff\"}}".to_vec(), b"\x1f\x8b".to_vec(), b"{\0}".to_vec()]);
    for text in texts {
        let shown = String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
        let refused = ask(process.public, Version::Http1, Method::POST, SUBMIT, &[JSON], text).await;
        assert_eq!((refused.status, refused.reason().as_str()), (StatusCode::BAD_REQUEST, "INVALID_FORM"), "{shown}");
    }
    let bombs = [many.into_bytes(), echo(&[0; 100 << 10]).to_string().into_bytes(), vec![b' '; 4 << 20]];
    for text in bombs {
        let refused = ask(process.public, Version::Http1, Method::POST, SUBMIT, &[JSON], text).await;
        assert_eq!((refused.status, refused.reason().as_str()), (StatusCode::TOO_MANY_REQUESTS, "PAYLOAD_TOO_LARGE"));
    }
    let zipped = [JSON, ("content-encoding", "gzip")];
    let whole = zip(&echo(b"x").to_string());
    let (cut, trailing) = (whole[..whole.len() - 9].to_vec(), [&whole[..], b"more"].concat());
    for text in [cut, trailing, [&whole[..], &whole[..]].concat(), b"{}".to_vec()] {
        let refused = ask(process.public, Version::Http1, Method::POST, SUBMIT, &zipped, text).await;
        assert_eq!(refused.reason(), "INVALID_FORM");
    }
    let whole = echo(b"x").to_string();
    let cut = [b"\0\0\0\0\xff", whole.as_bytes()].concat();
    for envelope in
        [&b"\x02\0\0\0\x02{}"[..], b"\x01\0\0\0\x02{}", b"\x80\0\0\0\x02{}", b"\0\xff\xff\xff\xff{}", b"\0\0", &cut]
    {
        let headers = [("content-type", "application/connect+json")];
        let answer = ask(process.public, Version::Http1, Method::POST, STREAM, &headers, envelope.to_vec()).await;
        let found = envelopes(&answer.body);
        assert!(found.len() == 1 && found[0].1.get("error").is_some(), "{envelope:?}: {found:?}");
    }
    assert_eq!(Caller::of(process.public).await.pool().await.jobs.unwrap().accepted, 0);
}

/// Sends raw bytes, and returns all that comes until the server closes the connection.
async fn exchange(address: Address, sent: &[u8]) -> String {
    let mut peer = TcpStream::connect(address.0).await.unwrap();
    peer.write_all(sent).await.unwrap();
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, peer.read_to_end(&mut answer)).await.expect("the connection ends");
    read.expect("the answer is not lost");
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn bodies_that_stay_away_early_refusals_and_pipelined_calls_get_their_answers() {
    let process = Process::serve(CONFIG).await;
    let head = |path: &str, length: usize, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{more}\r\n"
        )
    };
    // Chunks that are none.
    let chunked = format!(
        "POST {SUBMIT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\nzz\r\n{{}}\r\n"
    );
    let answer = exchange(process.public, chunked.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("INVALID_FORM"), "{answer}");
    // The body never comes, or stops: the deadline of the call answers.
    for begin in ["", "{\"job\":"] {
        let answer =
            exchange(process.public, (head(SUBMIT, 100, "connect-timeout-ms: 300\r\n") + begin).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("CALL_TIMEOUT"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    // Refused before its body is read: the answer arrives, and what follows is no call.
    let smuggled = format!("{}{}", head(SUBMIT, 2, ""), "{}");
    for (more, path, status) in
        [("content-encoding: br\r\n", SUBMIT, "501"), ("", "/none/None", "404"), ("", STREAM, "415")]
    {
        let body = smuggled.repeat(2_000);
        let answer = exchange(process.public, (head(path, body.len(), more) + &body).as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert_eq!((answer.matches("HTTP/1.1").count(), answer.contains("connection: close")), (1, true), "{answer}");
    }
    let too_long = exchange(process.public, head(SUBMIT, usize::MAX >> 2, "").as_bytes()).await;
    assert!(too_long.starts_with("HTTP/1.1 429") && too_long.contains("PAYLOAD_TOO_LARGE"), "{too_long}");

    let body = echo(b"x").to_string();
    let calls =
        [head(SUBMIT, body.len(), "") + &body, head(SUBMIT, body.len(), "connection: close\r\n") + &body].concat();
    let answers = exchange(process.public, calls.as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    assert_eq!(Caller::of(process.public).await.pool().await.jobs.unwrap().accepted, 2);
}
