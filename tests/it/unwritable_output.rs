//! If the output cannot be written, a command prints one error line and exits with a code, and never panics. A server
//! still serves.

use std::{fs::File, io::pipe, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Child, time::timeout};

use crate::process::{self, PATIENCE, Process, config_file};

const CONFIG: &str = r#"
    drain.notice = "0s"
    pool.one.workers = 1
    kind.echo = { pool = "one", builtin = "echo" }
"#;

/// Commands that need no server, and commands that call one.
const ALONE: [&[&str]; 8] = [
    &["--help"],
    &["--version"],
    &["serve", "--help"],
    &["config", "init"],
    &["config", "show", "--dev"],
    &["check"],
    &["completions", "bash"],
    &["sim", "--load", "2", "--seeds", "1", "--duration", "1s"],
];
const ASKING: [&[&str]; 6] = [
    &["submit", "echo", "x"],
    &["stream", "echo", "x"],
    &["stats"],
    &["stats", "--watch", "--interval", "100ms"],
    &["pause", "one"],
    &["drain", "--pool", "one"],
];

/// A standard output on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A standard output that is a pipe without a reader.
fn closed() -> Stdio {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    writer.into()
}

/// The exit code and the standard error of a command with this standard output.
async fn run(line: &[&str], server: Option<&Process>, config: &str, stdout: Stdio) -> (Option<i32>, String) {
    let mut command = process::program(line);
    if let Some(server) = server {
        command.env("WATERWHEEL_SERVER", server.public.0.to_string()).env("WATERWHEEL_OPS", server.ops.0.to_string());
    }
    let command = command.env("WATERWHEEL_CONFIG", config).stdout(stdout).stderr(Stdio::piped());
    let output = timeout(PATIENCE, command.spawn().unwrap().wait_with_output()).await;
    let output = output.expect("the command ends").unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // `stream` prints its job id to standard error first.
    let stderr = stderr.split_inclusive('\n').filter(|line| !line.starts_with("  job ")).collect();
    (output.status.code(), stderr)
}

#[tokio::test]
async fn every_command_reports_that_its_output_cannot_be_written() {
    let (_dir, file) = config_file(CONFIG);
    let server = Process::serve(CONFIG).await;
    let commands = ALONE.map(|line| (line, None)).into_iter().chain(ASKING.map(|line| (line, Some(&server))));
    for (line, server) in commands {
        let config = file.to_str().unwrap();
        let ended = run(line, server, config, full()).await;
        assert_eq!(ended, (Some(1), "cannot write the output: no space left on device\n".to_owned()), "{line:?}");
        // A closed pipe is no error to report.
        assert_eq!(run(line, server, config, closed()).await, (Some(141), String::new()), "{line:?}");
    }
}

#[tokio::test]
async fn the_exit_code_of_probe_does_not_depend_on_whether_its_output_can_be_written() {
    let server = Process::serve(CONFIG).await;
    let error = "cannot write the output: no space left on device\n";
    for (line, code) in [
        (&["probe"][..], 0),
        (&["probe", "--output", "json"], 0),
        (&["probe", "--service", "no-such-service"], 1),
        (&["probe", "--server", "127.0.0.1:1", "--output", "json"], 2),
    ] {
        assert_eq!(run(line, Some(&server), "", full()).await, (Some(code), error.to_owned()), "{line:?}");
        assert_eq!(run(line, Some(&server), "", closed()).await, (Some(code), String::new()), "{line:?}");
    }
}

/// Starts a server with these streams. Returns it, its directory and its address.
fn serve(verb: &str, config: &str, stdout: Stdio, stderr: Stdio) -> (Child, tempfile::TempDir, String) {
    let (dir, file) = config_file(config);
    let address = format!("unix:{}", dir.path().join("socket").display());
    let listen = ["--listen", &address, "--ops-listen", "127.0.0.1:0"];
    let mut command = process::program(&[&[verb, "--config", file.to_str().unwrap()], &listen[..]].concat());
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
        let output = process::program(line).args(["--server", &address]).output().await.unwrap();
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
    let ready = process::program(&["probe", "--wait", "30s", "--server", &address]).output().await.unwrap();
    assert!(ready.status.success(), "{ready:?}");
    let line = ["submit", "sleep", "600000", "--deadline", "9m", "--server", &address];
    let job = process::program(&line).stderr(Stdio::piped()).spawn().unwrap();
    let busy = async {
        let stats = ["stats", "--server", &address, "--output", "json"];
        while !String::from_utf8_lossy(&process::program(&stats).output().await.unwrap().stdout)
            .contains("\"in_flight\":1")
        {}
    };
    timeout(PATIENCE, busy).await.expect("the job runs");
    let (code, log) = drained(child).await;
    assert_eq!(code, Some(3), "{log}");
    let receipt = log.lines().last().unwrap();
    assert!(receipt.contains("broken pipe; the receipt is {") && receipt.contains("\"kind\":\"sleep\""), "{log}");
    drop(job);
}
