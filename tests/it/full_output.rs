//! What becomes of a command whose output cannot be written: one line that says so and an exit code, never a panic; and
//! of a server: it serves.

use std::{fs::File, io::pipe, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Child, time::timeout};

use crate::process::{self, PATIENCE, Process};

const CONFIG: &str = r#"
    drain.notice = "0s"
    pool.one.workers = 1
    kind.echo = { pool = "one", builtin = "echo" }
"#;

/// Commands that ask no server, and those that do.
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
const ASKING: [&[&str]; 5] =
    [&["submit", "echo", "x"], &["stream", "echo", "x"], &["stats"], &["pause", "one"], &["drain", "--pool", "one"]];

/// A disk without room.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe that nobody reads.
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
    let output = timeout(PATIENCE, command.spawn().unwrap().wait_with_output()).await.expect("an end").unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    // A stream names its job there, before there is any output.
    let told = told.split_inclusive('\n').filter(|line| !line.starts_with("  job ")).collect();
    (output.status.code(), told)
}

#[tokio::test]
async fn every_command_says_that_its_output_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waterwheel.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let server = Process::serve(CONFIG).await;
    let commands = ALONE.map(|line| (line, None)).into_iter().chain(ASKING.map(|line| (line, Some(&server))));
    for (line, server) in commands {
        let config = file.to_str().unwrap();
        let told = run(line, server, config, full()).await;
        assert_eq!(told, (Some(1), "cannot write the output: no space left on device\n".to_owned()), "{line:?}");
        // Who does not read any more is told nothing.
        assert_eq!(run(line, server, config, closed()).await, (Some(141), String::new()), "{line:?}");
    }
}

/// The exit code of `probe` is what the server answered, which a print that failed does not change.
#[tokio::test]
async fn a_probe_tells_of_the_server_by_its_exit_code_whether_or_not_it_can_print() {
    let server = Process::serve(CONFIG).await;
    let told = "cannot write the output: no space left on device\n";
    for (line, code) in [
        (&["probe"][..], 0),
        (&["probe", "--output", "json"], 0),
        (&["probe", "--service", "nobody"], 1),
        (&["probe", "--server", "127.0.0.1:1", "--output", "json"], 2),
    ] {
        assert_eq!(run(line, Some(&server), "", full()).await, (Some(code), told.to_owned()), "{line:?}");
        assert_eq!(run(line, Some(&server), "", closed()).await, (Some(code), String::new()), "{line:?}");
    }
}

/// A server with these streams, and the socket on which it serves.
fn serve(verb: &str, stdout: Stdio, stderr: Stdio) -> (Child, tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waterwheel.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let address = format!("unix:{}", dir.path().join("socket").display());
    let listen = ["--listen", &address, "--ops-listen", "127.0.0.1:0"];
    let mut command = process::program(&[&[verb, "--config", file.to_str().unwrap()], &listen[..]].concat());
    let child = command.env("WATERWHEEL_SERVER__THREADS", "1").stdout(stdout).stderr(stderr).spawn().unwrap();
    (child, dir, address)
}

/// Lets it serve a job and drain. Returns its exit code and standard error.
async fn serve_one(verb: &str, stdout: Stdio, stderr: Stdio) -> (Option<i32>, String) {
    let (child, _dir, address) = serve(verb, stdout, stderr);
    for line in [&["probe", "--wait", "30s"][..], &["submit", "echo", "x"]] {
        let output = process::program(line).args(["--server", &address]).output().await.unwrap();
        assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("an end").unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    // A stream names its job there, before there is any output.
    let told = told.split_inclusive('\n').filter(|line| !line.starts_with("  job ")).collect();
    (output.status.code(), told)
}

#[tokio::test]
async fn a_server_serves_whether_or_not_it_can_say_so() {
    for verb in ["serve", "dev"] {
        let (code, log) = serve_one(verb, full(), Stdio::piped()).await;
        assert_eq!(code, Some(0), "{log}");
        let told: Vec<_> = log.lines().filter(|line| line.contains("cannot write to standard output")).collect();
        let [banner, receipt] = told[..] else { panic!("{log}") };
        assert!(banner.contains("still serving"), "{log}");
        assert!(
            receipt.contains("no space left on device; the receipt is {") && receipt.contains("\"event\":\"drained\""),
            "{log}"
        );

        let (code, log) = serve_one(verb, closed(), Stdio::piped()).await;
        assert_eq!(code, Some(0), "{log}");
        let told: Vec<_> = log.lines().filter(|line| line.contains("cannot write")).collect();
        let [receipt] = told[..] else { panic!("{log}") };
        assert!(receipt.contains("broken pipe; the receipt is {") && log.ends_with(&format!("{receipt}\n")), "{log}");

        assert_eq!(serve_one(verb, full(), full()).await.0, Some(0), "{verb}");
    }
}

/// The receipt names what was lost: it must reach somebody.
#[tokio::test]
async fn a_receipt_that_names_a_job_goes_to_standard_error_where_nobody_reads_the_output() {
    let sleep = CONFIG.replace("echo", "sleep").replace("drain.notice", "drain.finish = \"0s\"\ndrain.notice");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("waterwheel.toml");
    std::fs::write(&file, sleep).unwrap();
    let address = format!("unix:{}", dir.path().join("socket").display());
    let listen = ["--listen", &address, "--ops-listen", "127.0.0.1:0"];
    let mut command = process::program(&[&["serve", "--config", file.to_str().unwrap()], &listen[..]].concat());
    let child = command.stdout(closed()).stderr(Stdio::piped()).spawn().unwrap();
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
    timeout(PATIENCE, busy).await.expect("it runs");
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), Signal::TERM).unwrap();
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("an end").unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{log}");
    let receipt = log.lines().last().unwrap();
    assert!(receipt.contains("broken pipe; the receipt is {") && receipt.contains("\"kind\":\"sleep\""), "{log}");
    drop(job);
}
