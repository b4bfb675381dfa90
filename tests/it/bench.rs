//! `waterwheel bench` measures real servers, and leaves none behind.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    os::unix::fs::symlink,
    process::Stdio,
    time::Duration,
};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader as AsyncBufReader},
    process::Command,
    task::spawn_blocking,
    time::timeout,
};

/// Longest that any of these commands may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_comparison_prints_its_ratios_beside_the_raw_figures() {
    let line =
        "bench --compare-bare --rounds 3 --burst 300ms --connections 2 --in-flight 4 --deadline 30s --output json";
    let output = timeout(PATIENCE, waterwheel(line).output()).await.expect("the comparison ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for ratio in ["/compare_bare/cpu_ratio", "/compare_bare/throughput_ratio", "/submit_many/jobs_per_cpu_second_ratio"]
    {
        assert!(report.pointer(ratio).and_then(Value::as_f64).is_some_and(|ratio| ratio > 0.0), "{ratio}: {report}");
    }
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 3);
    for side in ["bare", "submit", "submit_many"] {
        assert!(rounds.iter().all(|round| round[side]["replies"].as_u64() > Some(0)), "{side}: {report}");
    }
}

#[tokio::test]
async fn a_load_finds_the_process_of_a_server_on_this_machine() {
    let mut server = waterwheel("bare-echo").stdin(Stdio::piped()).spawn().unwrap();
    let address = announced(&mut server).await;
    let line = format!("bench --server {address} --rpc submit-many --duration 2s --warm-up 0s --output json");
    let output = timeout(PATIENCE, waterwheel(&line).output()).await.expect("the load ends").unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["server_pid"].as_u64(), server.id().map(u64::from), "{report}");
    assert!(report["server_cpu_us_per_request"].as_f64() > Some(0.0), "{report}");
    assert_eq!(report["errors"], serde_json::json!({}));
}

/// Figures of nothing are no success, whatever is printed.
#[tokio::test]
async fn a_load_of_which_each_call_fails_fails() {
    let mut server = waterwheel("serve --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0 --set pool.one.workers=1")
        .args(["--set", "kind.echo.pool=one", "--set", "kind.echo.builtin=echo"])
        .spawn()
        .unwrap();
    let mut lines = AsyncBufReader::new(server.stdout.as_mut().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.expect("the server comes up").unwrap().unwrap();
    let address = line.split(' ').nth(1).expect("the line tells the address");
    let line = format!("bench nobody --server {address} --duration 500ms --warm-up 0s --output json");
    let output = timeout(PATIENCE, waterwheel(&line).output()).await.expect("the load ends").unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["errors"]["UNKNOWN_KIND"].as_u64() > Some(0), "{report}");
    assert_eq!(output.status.code(), Some(1), "{report}");
}

#[tokio::test]
async fn the_bare_echo_ends_with_its_standard_input() {
    let mut server = waterwheel("bare-echo").stdin(Stdio::piped()).spawn().unwrap();
    announced(&mut server).await;
    drop(server.stdin.take());
    assert!(timeout(PATIENCE, server.wait()).await.expect("it ends").unwrap().success());
}

#[tokio::test]
async fn a_signal_ends_the_servers_of_a_comparison_too() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let folder = tempfile::tempdir().unwrap();
        let (server, life) = (folder.path().join("server"), folder.path().join("server.life"));
        mknodat(CWD, &life, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // A link, since a program that was just written may still be open for writing in another test's child.
        symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/bench/silent_server.sh"), &server).unwrap();

        let line = format!("bench --compare-bare --bare-executable {}", server.display());
        let mut bench = waterwheel(&line).spawn().unwrap();
        let up = spawn_blocking(move || {
            let mut life = BufReader::new(File::open(life).unwrap());
            life.read_line(&mut String::new()).unwrap();
            life
        });
        let mut life = timeout(PATIENCE, up).await.expect("the server comes up").unwrap();
        let pid = Pid::from_raw(bench.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let status = timeout(PATIENCE, bench.wait()).await.expect("the comparison ends").unwrap();
        assert_eq!(status.code(), Some(130), "{signal:?}");
        let ended = spawn_blocking(move || life.read_to_end(&mut Vec::new()));
        timeout(PATIENCE, ended).await.expect("the server ends with it").unwrap().unwrap();
    }
}

fn waterwheel(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
    command.args(line.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn announced(server: &mut tokio::process::Child) -> String {
    let mut lines = AsyncBufReader::new(server.stdout.as_mut().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.expect("the server comes up").unwrap().unwrap();
    line.strip_prefix("listening ").expect("the line tells the address").to_owned()
}
