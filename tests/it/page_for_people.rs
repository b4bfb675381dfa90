//! The page for people: its files, its policy, and what it may do. `tests/page` shows it in a browser.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};

use crate::process::Process;

const CONFIG: &str = r#"
    kind.echo = { pool = "one", builtin = "echo" }
    [pool.one]
    workers = 2
"#;

#[tokio::test]
async fn the_page_comes_from_the_program_with_its_policy_and_is_sent_once() {
    let process = Process::serve(CONFIG).await;
    let ask = async |path: &str, known: &str| {
        let request = Request::get(format!("http://{}{path}", process.ops.0)).header("host", "localhost");
        let request = request.header("if-none-match", known).header("accept-encoding", "gzip");
        process.ops.http1(request.body(Full::default()).unwrap()).await
    };
    for path in ["/", "/jobs?state=running", "/job/schedule/nightly/1", "/pool/one"] {
        let document = ask(path, "").await;
        assert_eq!(document.status(), StatusCode::OK, "{path}");
        let header = |name: &str| document.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-security-policy").starts_with("default-src 'none'; script-src 'self'"));
        assert_eq!((&*header("cache-control"), &*header("referrer-policy")), ("no-store", "no-referrer"));
        let text = document.into_body().collect().await.unwrap().to_bytes();
        assert!(str::from_utf8(&text).unwrap().contains(r#"<tr><th scope="row">one</th><td>serving</td>"#), "{path}");
    }
    for path in ["/page.js", "/reasons.js", "/page.css", "/icon.svg"] {
        let file = ask(path, "").await;
        assert_eq!((file.status(), &file.headers()["content-encoding"]), (StatusCode::OK, &"gzip".parse().unwrap()));
        let tag = file.headers()["etag"].to_str().unwrap();
        assert_eq!(ask(path, tag).await.status(), StatusCode::NOT_MODIFIED, "{path}");
    }
    assert_eq!(ask("/elsewhere", "").await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_page_changes_something_only_if_the_operator_lets_it() {
    for (mode, expected) in [("read", StatusCode::FORBIDDEN), ("act", StatusCode::OK)] {
        let process = Process::serve(&format!("ops.page = '{mode}'\n{CONFIG}")).await;
        let call = async |method: &str, origin: Option<&str>| {
            let request = Request::post(format!("/waterwheel.v1.AdminService/{method}"))
                .header("host", "localhost")
                .header("content-type", "application/json");
            let request = origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
            let body = Full::from(if method == "Pause" { r#"{"pool": "one"}"# } else { "{}" });
            process.ops.http1(request.body(body).unwrap()).await.status()
        };
        let own = Some("http://localhost");
        assert_eq!(call("Pause", own).await, expected, "{mode}");
        assert_eq!(call("WhoAmI", own).await, StatusCode::OK, "{mode}");
        assert_eq!(call("Pause", Some("http://other.example")).await, StatusCode::FORBIDDEN, "{mode}");
        assert_eq!(call("Pause", None).await, StatusCode::OK, "{mode}");
    }
}
