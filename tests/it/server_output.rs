//! A server whose standard output and standard error are read slowly, not at all, or cannot be written.

use std::{
    io::{PipeReader, PipeWriter, Write as _, pipe},
    process::Stdio,
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    process::{Pid, Signal, kill_process},
};
use tokio::{process::Child, time::timeout};

use crate::{
    command_line::{closed, full},
    ops_pages::{get, metrics},
    process::{PATIENCE, config_file, program, until},
    service::Address,
};

const CONFIG: &str = r#"
    drain.notice = "0s"
    pool.one.workers = 1
    kind.echo = { pool = "one", builtin = "echo" }
"#;

/// Starts a server with these streams. Returns it, its directory and its address.
fn serve(verb: &str, config: &str, stdout: Stdio, stderr: Stdio) -> (Child, tempfile::TempDir, String) {
    let (dir, file) = config_file(config);
    let address = format!("unix:{}", dir.path().join("socket").display());
    let listen = ["--listen", &address, "--ops-listen", "127.0.0.1:0"];
    let mut command = program(&[&[verb, "--config", file.to_str().unwrap()], &listen[..]].concat());
    let child = command.env("WATERWHEEL_SERVER__THREADS", "1").stdout(stdout).stderr(stderr).spawn().unwrap();
    (child, dir, address)
}

/// Drains a server. Returns its exit code and standard error.
async fn drained(server: Child) -> (Option<i32>, String) {
    let pid = Pid::from_raw(server.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let output = timeout(PATIENCE, server.wait_with_output()).await.expect("the server ends").unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Starts a server, runs a job on it, and drains it. Returns its exit code and standard error.
async fn serve_one(verb: &str, stdout: Stdio, stderr: Stdio) -> (Option<i32>, String) {
    let (child, _dir, address) = serve(verb, CONFIG, stdout, stderr);
    for line in [&["probe", "--wait", "30s"][..], &["submit", "echo", "x"]] {
        let output = program(line).args(["--server", &address]).output().await.unwrap();
        assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    drained(child).await
}

#[tokio::test]
async fn a_server_serves_although_its_output_cannot_be_written() {
    for verb in ["serve", "dev"] {
        let (code, log) = serve_one(verb, full(), Stdio::piped()).await;
        assert_eq!(code, Some(0), "{log}");
        let reports: Vec<_> = log.lines().filter(|line| line.contains("cannot write to standard output")).collect();
        let [banner, receipt] = reports[..] else { panic!("{log}") };
        assert!(banner.contains("still serving"), "{log}");
        assert!(
            receipt.contains("no space left on device; the receipt is {") && receipt.contains("\"event\":\"drained\""),
            "{log}"
        );

        let (code, log) = serve_one(verb, closed(), Stdio::piped()).await;
        assert_eq!(code, Some(0), "{log}");
        let reports: Vec<_> = log.lines().filter(|line| line.contains("cannot write")).collect();
        let [receipt] = reports[..] else { panic!("{log}") };
        assert!(receipt.contains("broken pipe; the receipt is {") && log.ends_with(&format!("{receipt}\n")), "{log}");

        assert_eq!(serve_one(verb, full(), full()).await.0, Some(0), "{verb}");
    }
}

#[tokio::test]
async fn a_receipt_with_lost_jobs_is_logged_if_standard_output_is_closed() {
    let sleep = CONFIG.replace("echo", "sleep").replace("drain.notice", "drain.finish = \"0s\"\ndrain.notice");
    let (child, _dir, address) = serve("serve", &sleep, closed(), Stdio::piped());
    let ready = program(&["probe", "--wait", "30s", "--server", &address]).output().await.unwrap();
    assert!(ready.status.success(), "{ready:?}");
    let line = ["submit", "sleep", "600000", "--deadline", "9m", "--server", &address];
    let job = program(&line).stderr(Stdio::piped()).spawn().unwrap();
    let busy = async {
        let stats = ["stats", "--server", &address, "--output", "json"];
        while !String::from_utf8_lossy(&program(&stats).output().await.unwrap().stdout).contains("\"in_flight\":1") {}
    };
    timeout(PATIENCE, busy).await.expect("the job runs");
    let (code, log) = drained(child).await;
    assert_eq!(code, Some(3), "{log}");
    let receipt = log.lines().last().unwrap();
    assert!(receipt.contains("broken pipe; the receipt is {") && receipt.contains("\"kind\":\"sleep\""), "{log}");
    drop(job);
}

/// A pipe that is full, with a reader that does not read.
fn stuck() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(b"\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// A free port, for a server that cannot tell its own.
fn free_port() -> Address {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    Address(listener.local_addr().unwrap())
}

const NOISE: &str = r#"
    drain.notice = "0s"
    pool.one.workers = 4
    kind.noise = { pool = "one", exec = ["/bin/sh", "-c", "yes \"$(printf %0500d 7)\" | head -n 99 >&2; exit 3"] }
"#;

/// Starts a server that logs everything. Returns it and its operators' address.
async fn noisy(verb: &str, stdout: Stdio, stderr: Stdio) -> (Child, tempfile::TempDir, Address, Address) {
    let (dir, file) = config_file(NOISE);
    let (public, ops) = (free_port(), free_port());
    let (listen, ops_listen) = (public.0.to_string(), ops.0.to_string());
    let path = file.to_str().unwrap();
    let mut command =
        program(&[verb, "--config", path, "--listen", &listen, "--ops-listen", &ops_listen, "--log", "debug"]);
    let child = command.env("WATERWHEEL_SERVER__THREADS", "1").stdout(stdout).stderr(stderr).spawn().unwrap();
    let ready = program(&["probe", "--wait", "30s", "--server", &listen]).output().await.unwrap();
    assert!(ready.status.success(), "{ready:?}");
    (child, dir, public, ops)
}

/// Jobs that fail, with many lines on their standard error.
async fn fail_jobs(public: Address) {
    let submit = ["submit", "noise", "x", "--server", &public.0.to_string()];
    let submit = || async { program(&submit).output().await.unwrap().status.code() };
    let codes = futures_util::future::join_all((0..8).map(|_| submit())).await;
    assert!(codes.iter().all(|code| *code == Some(1)), "{codes:?}");
}

async fn lost(ops: Address, stream: &str) -> f64 {
    metrics(ops).await[&format!("waterwheel_output_lost_lines_total{{stream=\"{stream}\"}}")]
}

#[tokio::test]
async fn a_server_serves_and_drains_although_nobody_reads_its_log() {
    for verb in ["serve", "dev"] {
        let ((_log, stderr), (_unread, stdout)) = (stuck(), stuck());
        let (child, _dir, public, ops) = noisy(verb, stdout.into(), stderr.into()).await;
        until("lines are lost", async || {
            fail_jobs(public).await;
            lost(ops, "stderr").await > 0.0
        })
        .await;
        assert_eq!(get(ops, "/livez").await.0, 200);
        assert_eq!(drained(child).await.0, Some(0), "{verb}");
    }
}

#[tokio::test]
async fn a_log_that_is_read_again_goes_on_and_tells_how_many_lines_were_lost() {
    let (log, stderr) = stuck();
    let (child, _dir, public, ops) = noisy("serve", Stdio::null(), stderr.into()).await;
    until("lines are lost", async || {
        fail_jobs(public).await;
        lost(ops, "stderr").await > 0.0
    })
    .await;
    let lost = lost(ops, "stderr").await;
    let reader = tokio::task::spawn_blocking(move || std::io::read_to_string(log).unwrap());
    assert_eq!(drained(child).await.0, Some(0));
    let text = timeout(PATIENCE, reader).await.expect("the end of the log").unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let told = lines.filter(|line| line["message"].as_str().is_some_and(|text| text.contains("lines were lost")));
    let told: u64 = told.map(|line| line["lost"].as_u64().unwrap()).sum();
    assert!(told as f64 >= lost, "{told} of {lost}");
    assert!(text.ends_with('\n'), "the last line is whole");
}
