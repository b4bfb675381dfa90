//! `waterwheel bench` measures real servers, and leaves none behind.

// tidy: real time, because the processes of another program are looked at until they are gone.

use std::{fs, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

/// Longest that any of these commands may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_load_tells_what_the_server_took() {
    let (server, address) = serve().await;
    let pid = server.id().unwrap();
    for rpc in ["submit", "submit-many"] {
        let load = "--connections 2 --in-flight 4 --duration 2s --warm-up 0s";
        let line = format!("echo --server {address} --server-pid {pid} --rpc {rpc} {load}");
        let report = bench(&line).await.1;
        assert_eq!(report["server_pid"].as_u64(), Some(pid.into()), "{report}");
        assert!(report["server_cpu_us_per_request"].as_f64() > Some(0.0), "{report}");
        assert_eq!(report["errors"], serde_json::json!({}));
    }
}

/// Figures of nothing are no success, whatever is printed.
#[tokio::test]
async fn a_load_of_which_each_call_fails_fails() {
    let (_server, address) = serve().await;
    let (code, report) = bench(&format!("nobody --server {address} --duration 500ms --warm-up 0s")).await;
    assert!(report["errors"]["UNKNOWN_KIND"].as_u64() > Some(0), "{report}");
    assert_eq!(code, Some(1), "{report}");
}

#[tokio::test]
async fn a_signal_ends_the_server_of_a_load_too() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut bench = waterwheel("bench overload --load 1 --duration 60s").spawn().unwrap();
        let pid = bench.id().unwrap();
        let server = until(|| children(pid).first().copied()).await;
        kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
        let status = timeout(PATIENCE, bench.wait()).await.expect("the load ends").unwrap();
        assert_eq!(status.code(), Some(130), "{signal:?}");
        until(|| (!is_alive(server)).then_some(())).await;
    }
}

/// Processes that the threads of a process started.
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Whether a process runs: one that ended and that its new parent has not looked at does not.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, looking).await.expect("it comes true")
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
