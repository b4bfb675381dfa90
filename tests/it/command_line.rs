//! The output and exit codes of commands, each in a process: what a new user runs first, the faults of a configuration,
//! and output that cannot be written.

use std::{
    fs::File,
    io::{Read, pipe},
    path::Path,
    process::{Command, Output, Stdio},
};

use flate2::read::GzDecoder;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::{
    process::{PATIENCE, Process, Ran, config_file, program},
    service::Caller,
};

#[tokio::test]
async fn ctrl_c_cancels_the_job() {
    let process = Process::dev(&[]).await;
    let caller = Caller::of(process.public).await;
    let submit = process.command(&["submit", "sleep", "600000", "--deadline", "9m"]).spawn().unwrap();
    // The first job of `dev` runs in the pool `cpu`.
    caller.until_all(|pools| pools.iter().any(|pool| pool.name == "io" && pool.in_flight == 1)).await;
    kill_process(Pid::from_raw(submit.id().unwrap().cast_signed()).unwrap(), Signal::INT).unwrap();
    let ran = Ran::from(submit.wait_with_output().await.unwrap());
    assert_eq!((ran.code, &*ran.err), (Some(130), ""));
    caller.until_all(|pools| pools.iter().all(|pool| pool.in_flight == 0)).await;
}

#[tokio::test]
async fn dev_ends_with_its_terminal() {
    let process = Process::dev(&[]).await;
    process.signal(Signal::HUP);
    assert_eq!(process.ended().await.code, Some(0));
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn dev_runs_a_first_job_and_prints_the_next_commands() {
    let mut process = Process::dev(&[]).await;
    println!("dev served after {:?}", process.served_after);
    let pools = process.line().await;
    assert!(pools.starts_with("pools  cpu ") && pools.contains("io 64 workers / 1024 queued"), "{pools}");
    assert_eq!(process.line().await, "kinds  sha256 gzip sleep echo upper");
    assert_eq!(process.run("submit upper hello").await.out.trim(), "HELLO");
    let store = process.line().await;
    assert!(store.starts_with("store  /") && store.ends_with("/waterwheel.db (detached jobs)"), "{store}");
    let first = process.line().await;
    let digest = hex(&Sha256::digest(b"hello waterwheel"));
    assert!(first.starts_with(&format!(r#"first job: sha256 of "hello waterwheel" → {digest}  queue "#)), "{first}");
    assert!(first.contains(" + run "), "{first}");
    let next = process.line().await;
    for command in ["waterwheel submit sha256 --file README.md", "waterwheel stats", "Ctrl-C drains"] {
        assert!(next.starts_with("next:  ") && next.contains(command), "{next}");
    }
    // The drain of `dev` has no notice phase.
    process.signal(Signal::INT);
    let ended = process.ended().await;
    assert_eq!((ended.code, &ended.receipt["finished"]), (Some(0), &0.into()), "{ended:?}");
}

#[tokio::test]
async fn the_flags_of_a_detached_job_reach_the_server() {
    let process = Process::dev(&["--set", "store.memory=true"]).await;
    let create = "jobs create echo hi --id a --wait --output json --expire-in 1h --attempts 7 --retain 2h";
    let job: Value = serde_json::from_str(&process.run(create).await.out).unwrap();
    assert_eq!(job["retry"]["max_attempts"], 7, "{job}");
    let time = |name: &str| humantime::parse_rfc3339(job[name].as_str().unwrap()).unwrap();
    let hours = |from, to| time(to).duration_since(time(from)).unwrap().as_secs_f64() / 3600.0;
    assert_eq!(hours("create_time", "expire_time").round(), 1.0, "{job}");
    assert_eq!(hours("end_time", "purge_time").round(), 2.0, "{job}");
    let cancelled = process.run("jobs cancel a").await;
    assert_eq!(cancelled.code, Some(2), "it has ended, so that no repetition helps: {}", cancelled.err);
}

#[tokio::test]
async fn a_detached_job_survives_a_kill_of_dev() {
    let dir = tempfile::tempdir().unwrap();
    let process = Process::dev_in(dir.path(), &[]).await;
    let created = process.run(r#"jobs create sleep {"ms":3000} --job-id a"#).await;
    assert_eq!((created.code, &*created.out), (Some(0), "a\n"), "{}", created.err);
    process.killed().await;
    let process = Process::dev_in(dir.path(), &[]).await;
    let ended = process.run("jobs wait a").await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "slept 3000 ms"), "{}", ended.err);
    let shown = process.run("jobs get a").await.out;
    assert!(shown.starts_with("a  succeeded  kind sleep\n"), "{shown}");
}

#[tokio::test]
async fn dev_refuses_a_store_that_it_cannot_use_and_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Process::dev_in(dir.path(), &[]).await;
    let cases = [
        ("store.max_jobs=5", "waterwheel.db is in use by another server; give each its own `store.path`"),
        ("store.path=none/jobs.db", "none/jobs.db: its directory does not exist; make it, or set another `store.path`"),
        // The tests may run as root, which can write to most other directories.
        ("store.path=/sys/jobs.db", "/sys/jobs.db cannot be written; set `store.path`"),
    ];
    for (setting, expected) in cases {
        let line = ["dev", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--set", setting];
        let mut dev = program(&line);
        dev.current_dir(dir.path());
        let Ran { code, err, .. } = Ran::of(dev).await;
        assert!(code == Some(1) && err.contains(expected), "{setting}: {err}");
    }
    for (setting, expected) in [
        ("store.memory=true", "store  memory (detached jobs, which end with this server)"),
        ("store.path=other.db", "/other.db (detached jobs)"),
    ] {
        let mut second = Process::dev_in(dir.path(), &["--set", setting]).await;
        let (_, _, store) = (second.line().await, second.line().await, second.line().await);
        assert!(store.ends_with(expected), "{store}");
    }
}

#[tokio::test]
async fn dev_compresses_a_large_file_through_a_stream() {
    let process = Process::dev(&["--max-payload", "32MiB"]).await;
    // Random bytes do not compress, so the output is as large as the input.
    let mut payload = vec![0; 20 << 20];
    StdRng::seed_from_u64(20).fill(&mut payload[..]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("noise");
    std::fs::write(&file, &payload).unwrap();
    let file = file.to_str().unwrap();
    let output = process.command(&["stream", "gzip", "--file", file, "--deadline", "5m"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut unzipped = Vec::with_capacity(payload.len());
    GzDecoder::new(&output.stdout[..]).read_to_end(&mut unzipped).unwrap();
    assert!(unzipped == payload, "{} bytes came back", unzipped.len());
}

const BAD: &str = "\
[pool.cpu]
workers = 0

[kind.digest]
pool = \"cpuu\"
builtin = \"sha255\"
";

#[test]
fn every_fault_of_every_source_is_reported_in_one_run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ww.toml"), BAD).unwrap();
    let env = [("WATERWHEEL_DRAIN__KILL", "5"), ("WATERWHEEL_SRVER__LISTEN", "127.0.0.1:0")];
    let args = ["check", "--config", "ww.toml", "--set", "pool.cpu.queue.jobs=none"];
    let output = run_in(dir.path(), &args, &env);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    let report = text(&output.stderr);
    let lines: Vec<&str> = report.lines().collect();
    let starting = |start: &str| lines.iter().filter(|line| line.trim_start().starts_with(start)).count();
    assert_eq!(starting("error: "), 6, "{report}");
    assert_eq!(starting("= help: "), 6, "{report}");
    for line in [
        "2 | workers = 0",
        "error: kind `digest` runs in pool `cpuu`, which is not declared",
        "  = help: did you mean `sha256`?",
        " | WATERWHEEL_DRAIN__KILL=5",
        " = help: did you mean `server`?",
        " | --set pool.cpu.queue.jobs=none",
    ] {
        assert!(lines.contains(&line), "{line}\n{report}");
    }
}

#[test]
fn check_prints_faults_as_json() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ww.toml"), BAD).unwrap();
    let output = run_in(dir.path(), &["check", "--config", "ww.toml", "--output", "json"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_str(&text(&output.stderr)).unwrap();
    assert_eq!(report["error"]["message"], "the configuration has 3 faults");
    assert_eq!(report["error"]["exit_code"], 2);
    let place = serde_json::json!({ "source": "file", "file": "ww.toml", "line": 2, "column": 11 });
    assert_eq!(report["error"]["faults"][0]["places"], serde_json::json!([place]));
}

#[test]
fn a_file_that_is_no_configuration_is_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    for text_of_file in [&*pem, &format!("[server]\n{pem}"), "hunter2"] {
        std::fs::write(dir.path().join("key"), text_of_file).unwrap();
        let report = text(&run_in(dir.path(), &["check", "--config", "key"], &[]).stderr);
        assert!(report.contains("it is not TOML") && report.contains("key:1:1"), "{report}");
        assert!(text_of_file.lines().all(|line| line == "[server]" || !report.contains(line)), "{report}");
    }
}

/// Reading a pipe or a device could block, or never end.
#[test]
fn a_configuration_must_be_a_regular_file_of_limited_size() {
    let dir = tempfile::tempdir().unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, dir.path().join("ww.toml"), FileType::Fifo, mode, 0).unwrap();
    File::create(dir.path().join("huge.toml")).unwrap().set_len(1 << 40).unwrap();
    for (file, what) in [
        ("none.toml", "no such file"),
        ("ww.toml", "it is a pipe, and only regular files are read"),
        (".", "it is a directory, and only regular files are read"),
        ("/dev/zero", "it is a device, and only regular files are read"),
        ("huge.toml", "it is larger than 4MiB"),
    ] {
        let output = run_in(dir.path(), &["check", "--config", file], &[]);
        let report = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{report}");
        assert!(report.starts_with(&format!("error: cannot read `{file}`: {what}")), "{report}");
    }
}

/// Runs the program in a directory, with only these environment variables.
fn run_in(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
    command.current_dir(dir).args(args).env_clear().envs(env.iter().copied());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

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
pub(crate) fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A standard output that is a pipe without a reader.
pub(crate) fn closed() -> Stdio {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    writer.into()
}

/// The exit code and the standard error of a command with this standard output.
async fn run(line: &[&str], server: Option<&Process>, config: &str, stdout: Stdio) -> (Option<i32>, String) {
    let mut command = program(line);
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
async fn commands_that_read_ask_operators_whatever_the_address_for_callers_in_the_environment() {
    let server = Process::serve(CONFIG).await;
    for line in [&["probe"][..], &["stats"]] {
        let mut command = server.command(line);
        command.env("WATERWHEEL_SERVER", "127.0.0.1:1");
        let ran = Ran::of(command).await;
        assert_eq!(ran.code, Some(0), "{line:?}: {}", ran.err);
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
