//! `waterwheel bench` against real servers.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{net::TcpListener, time::timeout};

use crate::process::{PATIENCE, Process, program};

const CONFIG: &str = r#"
    pool.one.workers = 8
    kind.echo = { pool = "one", builtin = "echo" }
"#;

#[tokio::test]
async fn bench_reports_completed_calls_and_their_latency() {
    let server = Process::serve(CONFIG).await;
    for rpc in ["submit", "submit-many"] {
        let load = "--connections 2 --in-flight 4 --duration 2s --warm-up 0s";
        let (code, report) = bench(&server, &format!("echo --rpc {rpc} {load}")).await;
        assert_eq!((code, &report["errors"]), (Some(0), &serde_json::json!({})), "{report}");
        assert!(report["completed"].as_u64() > Some(8) && report["latency_us"]["p50"].as_f64() > Some(0.0), "{report}");
        assert_eq!(report["unanswered"], 0, "{report}");
    }
}

#[tokio::test]
async fn bench_fails_if_every_call_fails() {
    let server = Process::serve(CONFIG).await;
    for rpc in ["submit", "submit-many"] {
        let load = "--connections 1 --in-flight 4 --duration 500ms --warm-up 0s";
        let (code, report) = bench(&server, &format!("no-such-kind --rpc {rpc} {load}")).await;
        assert!(report["errors"]["UNKNOWN_KIND"].as_u64() > Some(0), "{report}");
        assert_eq!((code, report["completed"].as_u64()), (Some(1), Some(0)), "{report}");
    }
}

#[tokio::test]
async fn a_signal_ends_bench() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let line = ["bench", "--server", &address, "--duration", "60s", "--connections", "1"];
        let mut bench = program(&line).stderr(std::process::Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(bench.id().unwrap().cast_signed()).unwrap();
        let _connection = timeout(PATIENCE, listener.accept()).await.expect("bench connects").unwrap();
        kill_process(pid, signal).unwrap();
        let status = timeout(PATIENCE, bench.wait()).await.expect("bench ends").unwrap();
        assert_eq!(status.code(), Some(130), "{signal:?}");
    }
}

/// Runs `waterwheel bench` and returns its exit code and report.
async fn bench(server: &Process, line: &str) -> (Option<i32>, Value) {
    let ran = server.run(&format!("bench {line} --output json")).await;
    (ran.code, ran.json())
}
