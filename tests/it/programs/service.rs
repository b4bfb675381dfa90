//! A program from a configuration file, and the example of docs/workers.md.

use std::path::Path;

use crate::{
    ops_pages,
    process::Process,
    service::{Caller, job},
};

const PAGE: &str = include_str!("../../../docs/workers.md");

/// The first code block of the page in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("there is one");
    rest.split("```").next().unwrap()
}

fn write_page(directory: &Path) -> std::path::PathBuf {
    std::fs::write(directory.join("upper.py"), block("python")).unwrap();
    let config = directory.join("workers.toml");
    std::fs::write(&config, block("toml")).unwrap();
    config
}

#[tokio::test]
async fn the_example_of_docs_workers_runs() {
    let directory = tempfile::tempdir().unwrap();
    let process = Process::serve_file(&write_page(directory.path())).await;
    // The server is ready when its processes are.
    while ops_pages::get(process.ops, "/readyz").await.0 != http::StatusCode::OK {}
    let caller = Caller::of(process.public).await;
    let response = caller.leave(job("upper", "hello")).await.unwrap().unwrap().into_inner();
    assert_eq!(response.result.unwrap().output, b"HELLO");
    let metrics = ops_pages::metrics(process.ops).await;
    assert_eq!(metrics[r#"waterwheel_program_starts_total{pool="text",program="upper"}"#], 2.0);
    assert_eq!(block("python"), include_str!("../../../examples/workers/upper.py"));
    assert_eq!(metrics[r#"waterwheel_program_processes{pool="text",program="upper",state="idle"}"#], 2.0);
}
