//! What the commands print and how they end, each as its own process against a service with real sockets.

use std::{
    io::Read,
    process::{Output, Stdio},
    time::Duration,
};

use flate2::read::GzDecoder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::Command,
    task::JoinHandle,
};
use waterwheel::{
    app::{App, Control, Receipt},
    config::{Flag, Sources, load, starter},
};

/// Longest that any of these commands may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service of the starter configuration on ports of its own.
struct Service {
    address: String,
    ops_address: String,
    control: Control,
    run: JoinHandle<Receipt>,
}

impl Service {
    fn start() -> Self {
        let settings = [
            ("server.listen", "127.0.0.1:0"),
            ("server.ops_listen", "127.0.0.1:0"),
            ("server.max_payload", "32MiB"),
            ("server.max_output", "32MiB"),
            ("drain.notice", "0s"),
            ("pool.cpu.workers", "2"),
        ];
        let flag = |(key, value): (&str, &str)| Flag { flag: "--set", key: key.to_owned(), value: value.to_owned() };
        let flags = settings.into_iter().map(flag).collect();
        let sources = Sources { file: Some(starter::file()), env: Vec::new(), flags, cpus: 2 };
        let app = App::start(&load(&sources).unwrap().config, None).unwrap();
        Self {
            address: app.address().to_string(),
            ops_address: app.ops_address().to_string(),
            control: app.control(),
            run: tokio::spawn(app.run()),
        }
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
        command
            .args(line)
            .env("WATERWHEEL_SERVER", &self.address)
            .env("WATERWHEEL_OPS", &self.ops_address)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, line: &[&str]) -> Ran {
        let output = tokio::time::timeout(PATIENCE, self.command(line).output()).await;
        output.expect("the command ends").unwrap().into()
    }

    /// Waits until `expected` jobs run in the pool for waiting work.
    async fn in_flight(&self, expected: u64) {
        let mut watch = self.command(&["stats", "--watch", "--interval", "100ms", "--pool", "io", "--output", "json"]);
        let mut watch = watch.spawn().unwrap();
        let mut snapshots = BufReader::new(watch.stdout.take().unwrap()).lines();
        let reached = async {
            while let Some(line) = snapshots.next_line().await.unwrap() {
                let snapshot: Value = serde_json::from_str(&line).unwrap();
                if snapshot["pools"][0]["in_flight"] == expected {
                    return;
                }
            }
            panic!("the watch ended before {expected} jobs ran");
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("so many jobs run");
    }

    async fn stop(self) -> Receipt {
        self.control.kill();
        tokio::time::timeout(PATIENCE, self.run).await.expect("the service ends").unwrap()
    }
}

/// What a command wrote and how it ended.
struct Ran {
    code: Option<i32>,
    out: Vec<u8>,
    err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: output.stdout,
            err: String::from_utf8(output.stderr).expect("what goes to standard error is text"),
        }
    }
}

impl Ran {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap()
    }
}

/// Bytes that do not compress well, the same in every run.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submit_prints_the_output_and_where_the_time_went() {
    let service = Service::start();
    let ran = service.run(&["submit", "sha256", "abc", "--deadline", "20s"]).await;
    assert_eq!(ran.text(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "{}", ran.err);
    assert!(ran.err.starts_with("done in ") && ran.err.contains("   budget 20s = queue "), "{}", ran.err);
    assert_eq!(ran.code, Some(0));

    let ran = service.run(&["submit", "echo", "abc", "--output", "json", "--request-id", "r1"]).await;
    assert_eq!(ran.json()["output"], "YWJj");
    assert!(service.stop().await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_carries_twenty_mebibytes() {
    let service = Service::start();
    let input = noise(20 << 20);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &input).unwrap();
    let ran = service.run(&["stream", "gzip", "--file", file.path().to_str().unwrap(), "--deadline", "10m"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let mut output = Vec::new();
    GzDecoder::new(&ran.out[..]).read_to_end(&mut output).unwrap();
    assert!(output == input, "{} bytes came back", output.len());
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stats_and_probe_show_a_service_that_serves() {
    let service = Service::start();
    service.run(&["submit", "echo", "abc"]).await;
    let ran = service.run(&["stats"]).await;
    for part in ["SERVING  up ", "pool cpu  SERVING  0 of 2 workers busy, 0%", "1 completed", "  64 idle workers"] {
        assert!(ran.text().contains(part), "no {part:?} in\n{}", ran.text());
    }
    let ran = service.run(&["stats", "--pool", "nowhere"]).await;
    assert!(ran.err.starts_with("NOT_FOUND  "), "{}", ran.err);
    assert_eq!(ran.code, Some(2));

    for name in ["", "readiness", "liveness", "capacity", "pool/io", "waterwheel.v1.WorkerPoolService"] {
        let ran = service.run(&["probe", "--timeout", "20s", "--service", name]).await;
        assert_eq!((ran.code, ran.text().starts_with("SERVING  ")), (Some(0), true), "{name}: {}", ran.err);
    }
    let ran = service.run(&["probe", "--timeout", "20s", "--service", "pool/nowhere"]).await;
    assert_eq!((ran.code, ran.text().starts_with("SERVICE_UNKNOWN  ")), (Some(1), true), "{}", ran.err);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_one_line_of_what_and_one_of_what_to_do() {
    let service = Service::start();
    let cases: [(&[&str], &str, i32); 4] = [
        (&["submit", "gizp"], "UNKNOWN_KIND  ", 2),
        (&["submit", "echo", "--label", "NO=x"], "INVALID_FIELD  the request has invalid fields\n  job.labels: ", 2),
        (&["submit", "sleep", "{}"], "HANDLER_FAILED  ", 1),
        (
            &["submit", "sleep", "60000", "--deadline", "200ms"],
            "RUN_TIMEOUT  the job reached its deadline or run timeout while it ran (",
            5,
        ),
    ];
    for (line, start, code) in cases {
        let ran = service.run(line).await;
        assert!(ran.err.starts_with(start) && ran.err.contains("\n  help: "), "{}", ran.err);
        assert_eq!((ran.code, ran.text()), (Some(code), ""), "{}", ran.err);
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_cancels_the_job() {
    let service = Service::start();
    let submit = service.command(&["submit", "sleep", "600000", "--deadline", "9m"]).spawn().unwrap();
    service.in_flight(1).await;
    let process = Pid::from_raw(submit.id().unwrap().cast_signed()).unwrap();
    kill_process(process, Signal::INT).unwrap();
    let ran: Ran = submit.wait_with_output().await.unwrap().into();
    assert_eq!((ran.code, ran.err.as_str()), (Some(130), ""));
    service.in_flight(0).await;
    assert!(service.stop().await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_ends_the_command_quietly() {
    let service = Service::start();
    let mut watch = service.command(&["stats", "--watch", "--interval", "100ms"]).spawn().unwrap();
    let mut first = [0; 1];
    watch.stdout.take().unwrap().read_exact(&mut first).await.unwrap();
    let ran: Ran = watch.wait_with_output().await.unwrap().into();
    assert_eq!((ran.code, ran.err.as_str()), (Some(141), ""));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_watches_until_nothing_is_left() {
    let service = Service::start();
    let job = service.command(&["submit", "sleep", "300", "--deadline", "20s"]).spawn().unwrap();
    service.in_flight(1).await;
    let ran = service.run(&["drain", "--watch"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let last = ran.text().lines().last().unwrap();
    assert!(last.starts_with("drained 1/1 in ") && last.ends_with(", lost 0"), "{}", ran.text());
    let job: Ran = job.wait_with_output().await.unwrap().into();
    assert_eq!((job.code, job.text()), (Some(0), "slept 300 ms"), "{}", job.err);
    let receipt = tokio::time::timeout(PATIENCE, service.run).await.expect("the service ends").unwrap();
    assert!(receipt.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_tells_of_jobs_that_were_lost() {
    let service = Service::start();
    let line = ["submit", "sleep", "{\"ms\":600000,\"ignore_cancel\":true}", "--deadline", "9m"];
    let job = service.command(&line).spawn().unwrap();
    service.in_flight(1).await;
    let drain = service.command(&["drain", "--watch"]).spawn().unwrap();
    service.control.kill();
    let drain: Ran = drain.wait_with_output().await.unwrap().into();
    assert_eq!(drain.code, Some(3), "{}{}", drain.text(), drain.err);
    assert!(drain.text().contains(", lost 1\n  help: "), "{}", drain.text());
    let job: Ran = job.wait_with_output().await.unwrap().into();
    assert!(job.err.starts_with("DRAIN_KILLED  "), "{}", job.err);
    assert_eq!(job.code, Some(1));
}
