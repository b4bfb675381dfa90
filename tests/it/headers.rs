//! Headers over their limit are refused with a reason. HTTP itself refuses headers that are far over the limit.

use tonic::{Code, Request, metadata::MetadataValue};
use waterwheel::proto::SubmitRequest;

use crate::{
    process::Process,
    refusal::Refusal,
    service::{Caller, job},
};

const CONFIG: &str = r#"
    kind.echo = { pool = "one", builtin = "echo" }
    pool.one.workers = 1
    server.http2.max_header_list = "8KiB"
"#;

/// Submits a job with this many bytes of metadata.
async fn submit(caller: &Caller, bytes: usize) -> Result<(), tonic::Status> {
    let mut request = Request::new(SubmitRequest { job: Some(job("echo", "")) });
    let value = MetadataValue::try_from("x".repeat(bytes)).unwrap();
    request.metadata_mut().insert("baggage", value);
    caller.0.clone().submit(request).await.map(drop)
}

#[tokio::test]
async fn headers_over_their_limit_are_refused_with_a_reason() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    submit(&caller, 7_000).await.expect("the headers are within the limit");
    for bytes in [8 << 10, 15 << 10] {
        let refusal = Refusal::of_call(submit(&caller, bytes).await.expect_err("too large"), false);
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "HEADERS_TOO_LARGE"));
        assert_eq!(refusal.facts()["execution"], "NOT_STARTED");
    }
    // HTTP itself refuses these headers, and clients report that without a reason.
    submit(&caller, 40 << 10).await.expect_err("much too large");
    submit(&caller, 1).await.expect("the connection still works");
}

#[tokio::test]
async fn a_command_explains_the_refusal_of_headers_by_http() {
    let process = Process::serve(CONFIG).await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "x".repeat(40 << 10)).unwrap();
    let ran = process.run(&format!("submit echo x --token-file {}", token.path().display())).await;
    let report = ran.err;
    assert_eq!(ran.code, Some(2), "{report}");
    assert!(
        report.contains("the headers of the call are larger than the server accepts")
            && report.contains("a shorter token"),
        "{report}"
    );
}
