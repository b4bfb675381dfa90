//! `waterwheel bench` measures real servers.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    time::timeout,
};

/// Longest that any of these commands may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_load_tells_what_its_calls_took() {
    let (_server, address) = serve().await;
    for rpc in ["submit", "submit-many"] {
        let load = "--connections 2 --in-flight 4 --duration 2s --warm-up 0s";
        let (code, report) = bench(&format!("echo --server {address} --rpc {rpc} {load}")).await;
        assert_eq!((code, &report["errors"]), (Some(0), &serde_json::json!({})), "{report}");
        assert!(report["completed"].as_u64() > Some(8) && report["latency_us"]["p50"].as_f64() > Some(0.0), "{report}");
        assert_eq!(report["unanswered"], 0, "{report}");
    }
}

/// Figures of nothing are no success, whatever is printed.
#[tokio::test]
async fn a_load_of_which_each_call_fails_fails() {
    let (_server, address) = serve().await;
    for rpc in ["submit", "submit-many"] {
        let load = "--connections 1 --in-flight 4 --duration 500ms --warm-up 0s";
        let (code, report) = bench(&format!("nobody --server {address} --rpc {rpc} {load}")).await;
        assert!(report["errors"]["UNKNOWN_KIND"].as_u64() > Some(0), "{report}");
        assert_eq!((code, report["completed"].as_u64()), (Some(1), Some(0)), "{report}");
    }
}

#[tokio::test]
async fn a_signal_ends_a_load() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut bench =
            waterwheel(&format!("bench --server {address} --duration 60s --connections 1")).spawn().unwrap();
        let pid = Pid::from_raw(bench.id().unwrap().try_into().unwrap()).unwrap();
        let _connection = timeout(PATIENCE, listener.accept()).await.expect("it connects").unwrap();
        kill_process(pid, signal).unwrap();
        let status = timeout(PATIENCE, bench.wait()).await.expect("the load ends").unwrap();
        assert_eq!(status.code(), Some(130), "{signal:?}");
    }
}

/// A server of one kind, `echo`, and its address.
async fn serve() -> (Child, String) {
    let mut server = waterwheel("serve --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0 --set pool.one.workers=8")
        .args(["--set", "kind.echo.pool=one", "--set", "kind.echo.builtin=echo"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.as_mut().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.expect("the server comes up").unwrap().unwrap();
    let address = line.split(' ').nth(1).expect("the line tells the address").to_owned();
    (server, address)
}

/// The exit code and the report of a load.
async fn bench(line: &str) -> (Option<i32>, Value) {
    let output = waterwheel(&format!("bench {line} --output json")).output();
    let output = timeout(PATIENCE, output).await.expect("the load ends").unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn waterwheel(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
    command.args(line.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}
