//! Tools: `sim`, `advise` and `bench` for capacity planning; workers that `waterwheel worker new` writes in other
//! languages, and the conformance tests of `waterwheel worker test`.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, process::Command, time::timeout};

use crate::{
    process::{PATIENCE, Process, program},
    service::{Caller, job},
};

/// Runs a command, and parses each line of its output as JSON.
async fn lines(args: &[&str]) -> Vec<Value> {
    let output = timeout(4 * PATIENCE, program(args).output()).await.expect("the command ends").unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn sim_simulates_a_flooding_tenant_and_a_bounded_queue() {
    let sim = ["sim", "--load", "0.45", "--tenants", "9", "--service", "exponential"];
    let flood = ["--flood", "10", "--duration", "20s", "--seeds", "1", "--output", "json"];
    let flooded = [&sim[..], &flood[..]].concat();
    let row = lines(&flooded).await.remove(0);
    let figure = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
    assert_eq!((figure(&row, "load"), figure(&row, "flood"), figure(&row, "queue")), (0.45, 10.0, 1024.0));
    assert_eq!(row["tenants"].as_u64(), Some(10), "{row}");
    let (others, all) = (figure(&row, "others_served"), figure(&row, "admitted") / figure(&row, "arrived"));
    assert!(others > 0.95 && all < 0.2 && figure(&row, "others_wait_p99_ms") > 0.0, "{row}");

    let bounded = lines(&[&flooded[..], &["--queue", "2"]].concat()).await.remove(0);
    assert!(figure(&bounded, "wait_p99_ms") < figure(&row, "wait_p99_ms"), "{bounded} {row}");

    let much = ["sim", "--load", "100", "--duration", "1h", "--workers", "65535", "--mean", "1us"];
    let refused = program(&much).output().await.unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(2) && error.contains("billion jobs") && error.contains("--workers"),
        "{error}"
    );
}

#[tokio::test]
async fn sim_replays_the_jobs_of_a_server_log() {
    let server = Process::dev(&["--log", "waterwheel::pool=debug"]).await;
    let address = server.public.0.to_string();
    for (ms, deadline) in [("30", "20s"), ("40", "20s"), ("60000", "2s")] {
        let mut submit =
            program(&["submit", "sleep", ms, "--deadline", deadline, "--tenant", "t", "--server", &address]);
        timeout(PATIENCE, submit.output()).await.expect("an answer").unwrap();
    }
    server.logged("job did not complete").await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    // A line of another program, and a last line that was cut off because the log was copied while in use.
    let cut = format!("not of this server\n{}{{\"timestamp\":\"2026-01", server.log());
    std::fs::write(&log, cut).unwrap();
    let replay = ["sim", "--replay", log.to_str().unwrap(), "--seeds", "1", "--output", "json"];
    let args = [&replay[..], &["--pool", "io"]].concat();
    let rows = lines(&args).await;
    let notes = String::from_utf8(program(&args).output().await.unwrap().stderr).unwrap();
    let note = "note: left out of the log: 2 lines without a whole message of the server\n";
    assert_eq!(notes, note);
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((row["arrived"].as_u64(), row["service"].as_str()), (Some(3), Some("recorded")), "{row}");
    // The third job hit its deadline. No job of its kind ran longer, so its recorded time counts as its service time.
    assert_eq!(row["admitted"].as_u64(), Some(3), "{row}");
    let useful = row["useful_s"].as_f64().unwrap();
    assert!((0.07..PATIENCE.as_secs_f64()).contains(&useful), "at least the runs of two jobs: {row}");
}

#[tokio::test]
async fn advise_replays_the_last_jobs_of_a_server_with_other_numbers_of_workers() {
    let server = Process::serve(CONFIG).await;
    let caller = Caller::of(server.public).await;
    for _ in 0..200 {
        caller.leave(job("echo", "")).await.unwrap().expect("it is served");
    }
    let ran = server.run("advise --pool one").await;
    for line in [
        "pool one: its last 200 jobs, of ",
        "\n  workers  refused  missed  p99 wait ",
        "\n       16    0.0 %   0.0 % ",
        "\n  1 worker is the fewest for at most 1 % refused or missed; there are up to 8\n",
    ] {
        assert!(ran.code == Some(0) && ran.out.contains(line), "{line}: {}{}", ran.out, ran.err);
    }
    let answer: Value = serde_json::from_str(&server.run("advise --output json").await.out).unwrap();
    let sizes: Vec<_> = answer["pools"][0]["sizes"].as_array().unwrap().iter().map(|size| &size["workers"]).collect();
    assert_eq!(sizes, [1, 4, 6, 8, 10, 12, 16], "{answer}");
    let ran = server.run("advise --pool two").await;
    assert!(ran.code == Some(0) && ran.out.contains("set pool.two.recorded_jobs to 200 or more"), "{}", ran.out);
    let none = server.run("advise --pool none").await;
    assert!(none.code == Some(2) && none.err.contains("one"), "{}", none.err);
}

const CONFIG: &str = r#"
    pool.one.workers = 8
    pool.two.recorded_jobs = 0
    kind.echo = { pool = "one", builtin = "echo" }
"#;

#[tokio::test]
async fn bench_reports_completed_calls_and_fails_if_every_call_fails() {
    let server = Process::serve(CONFIG).await;
    for rpc in ["submit", "submit-many"] {
        let load = format!("--rpc {rpc} --connections 2 --in-flight 4 --duration 1s --warm-up 0s");
        let (code, report) = bench(&server, &format!("echo {load}")).await;
        assert_eq!((code, &report["errors"], &report["unanswered"]), (Some(0), &json!({}), &0.into()), "{report}");
        assert!(report["completed"].as_u64() > Some(8) && report["latency_us"]["p50"].as_f64() > Some(0.0), "{report}");

        let (code, report) = bench(&server, &format!("no-such-kind {load}")).await;
        assert!(report["errors"]["UNKNOWN_KIND"].as_u64() > Some(0), "{report}");
        assert_eq!((code, &report["completed"]), (Some(1), &0.into()), "{report}");
    }
}

#[tokio::test]
async fn a_signal_ends_bench() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let line = ["bench", "--server", &address, "--duration", "60s", "--connections", "1"];
        let mut bench = program(&line).stderr(Stdio::null()).spawn().unwrap();
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

/// Languages with their file extensions and the commands that run such a file.
const LANGUAGES: [(&str, &str, &[&str]); 6] = [
    ("python", "py", &["python3"]),
    ("node", "mjs", &["node"]),
    ("go", "go", &["go", "run"]),
    ("java", "java", &["java"]),
    ("ruby", "rb", &["ruby"]),
    ("bash", "sh", &["bash"]),
];

async fn waterwheel(directory: &TempDir, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
    command.args(args).current_dir(directory.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), text)
}

/// Runs the conformance tests. Returns the exit code, the name and verdict of each test, and the output.
async fn verdicts(directory: &TempDir, command: &[&str]) -> (i32, Vec<(String, String)>, String) {
    // The compiler of Go needs HOME.
    let args: Vec<_> = ["worker", "test", "--timeout", "2m", "--output", "json", "--pass-env", "HOME", "--"]
        .into_iter()
        .chain(command.iter().copied())
        .collect();
    let (exit, text) = waterwheel(directory, &args).await;
    let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text_of = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let verdicts = rows.map(|row| (text_of(&row, "test"), text_of(&row, "verdict"))).collect();
    (exit, verdicts, text)
}

/// A language that is not installed is skipped. `.ci/run` needs all but Ruby, which it installs if it can.
#[tokio::test]
async fn a_generated_worker_of_each_language_passes_every_conformance_test() {
    let directory = tempfile::tempdir().unwrap();
    for (language, extension, run) in LANGUAGES {
        if Command::new(run[0]).arg("--help").output().await.is_err() {
            eprintln!("{} is not installed", run[0]);
            continue;
        }
        let (exit, said) = waterwheel(&directory, &["worker", "new", "--bare", "--language", language, "thumb"]).await;
        assert_eq!(exit, 0, "{said}");
        let file = format!("thumb.{extension}");
        let command: Vec<_> = run.iter().copied().chain([file.as_str()]).collect();
        let (exit, verdicts, text) = verdicts(&directory, &command).await;
        let passed = verdicts.iter().filter(|(_, verdict)| verdict == "pass").count();
        assert_eq!((exit, passed, verdicts.len()), (0, 15, 15), "{language}: {text}");
    }
}

/// Each worker breaks one rule, and the report names it.
#[tokio::test]
async fn a_worker_that_breaks_the_protocol_fails_the_matching_test() {
    let directory = tempfile::tempdir().unwrap();
    let ready = r#"echo '{"ready":{"protocol":1,"kinds":["conformance"]}}' >&4; "#;
    for (script, test, seen) in [
        ("exit 7", "ready", "closed descriptor 4 (exit status: 7)"),
        ("echo hello >&4; read y <&3", "ready", "hello"),
        (r#"echo '{"ready":{"protocol":2}}' >&4; read y <&3"#, "ready", "version 2"),
        (&format!(r#"{ready} read x <&3; echo '{{"done":{{"id":"9"}}}}' >&4"#), "echo of no bytes", "job `9`"),
        (
            &format!(r#"{ready} read x <&3; echo '{{"done":{{"id":"1"}},"bytes":3}}' >&4; printf abc >&4"#),
            "echo of no bytes",
            "3 bytes",
        ),
    ] {
        let (exit, verdicts, text) = verdicts(&directory, &["bash", "-c", script]).await;
        let failed = verdicts.iter().find(|(name, _)| name == test).expect("each test is reported");
        assert_eq!((exit, failed.1.as_str()), (1, "fail"), "{script}: {text}");
        assert!(text.contains(seen), "{seen}: {text}");
    }
}

#[tokio::test]
async fn tests_that_need_the_conformance_kind_are_skipped_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let own = include_str!("../../examples/workers/thumbnail.py").replace("\"conformance\": conformance", "");
    std::fs::write(directory.path().join("own.py"), own).unwrap();
    let (exit, verdicts, text) = verdicts(&directory, &["python3", "own.py"]).await;
    let count = |wanted: &str| verdicts.iter().filter(|(_, verdict)| verdict == wanted).count();
    assert_eq!((exit, count("pass"), count("skip")), (0, 4, 11), "{text}");
}

#[tokio::test]
async fn a_kind_of_the_workers_own_is_tested_with_a_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("input"), "text").unwrap();
    let python = include_str!("../../examples/workers/thumbnail.py").replace("KINDS = {", "import os\nKINDS = {");
    let node = include_str!("../../examples/workers/thumbnail.mjs");
    for (file, body, passes, fails, seen) in [
        (
            "decodes.py",
            "return job.payload.decode().upper().encode(), 'text/plain'",
            4,
            0,
            "INTERNAL: UnicodeDecodeError",
        ),
        ("shell.py", "return os.environ['WORKER_SECRET'].encode(), ''", 2, 2, "KeyError: 'WORKER_SECRET'"),
        ("leaves.py", "os._exit(0 if job.payload else 3)", 0, 4, "it closed descriptor 4 (exit status: 3)"),
        ("text.mjs", "return ['é'.repeat(1000), 'text/plain']", 4, 0, "2000 bytes"),
        ("number.mjs", "return [5, 'text/plain']", 2, 2, "INTERNAL: "),
        ("null.mjs", "throw null", 2, 2, "INTERNAL: null"),
    ] {
        let (program, handler) = match file.ends_with("py") {
            true => ("python3", python.replacen("return job.payload, job.content_type", body, 1)),
            false => ("node", node.replacen("return [job.payload, job.content_type]", body, 1)),
        };
        std::fs::write(directory.path().join(file), handler).unwrap();
        let args = ["worker", "test", "--output", "json", "--payload", "input", "--", program, file];
        let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
        command.args(args).current_dir(directory.path()).env("WORKER_SECRET", "of the shell");
        let output = command.stdin(Stdio::null()).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("cannot start") {
            eprintln!("{program} is not installed");
            continue;
        }
        let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let own: Vec<_> = rows.filter(|row| row["test"].as_str().unwrap().starts_with("own kind")).collect();
        let count = |verdict: &str| own.iter().filter(|row| row["verdict"] == verdict).count();
        assert_eq!((count("pass"), count("fail")), (passes, fails), "{text}");
        assert!(text.contains(seen), "{seen}: {text}");
    }
}

/// A test of an author can import the file: only the program speaks to a server.
#[tokio::test]
async fn a_generated_worker_can_be_imported() {
    let workers = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/workers");
    for (program, code) in [
        ("python3", "import thumbnail; assert thumbnail.KINDS"),
        ("node", "import('./thumbnail.mjs').then(({ run }) => process.exit(run ? 0 : 1))"),
        ("ruby", "load './thumbnail.rb'; exit KINDS.size == 2"),
        ("bash", "source ./thumbnail.sh && [[ ${#kinds[@]} == 2 ]]"),
    ] {
        let flag = if matches!(program, "python3" | "bash") { "-c" } else { "-e" };
        let mut command = Command::new(program);
        command.args([flag, code]).current_dir(workers).env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
        match command.output().await {
            Ok(output) => assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => eprintln!("{program} is not installed: {error}"),
        }
    }
}
