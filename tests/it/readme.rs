//! Runs every command of the README and of `docs/`, in order, and compares the output. Checks every configuration
//! there.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{process::Command, task::JoinSet};
use tonic::Status;
use waterwheel::{
    model::Reason,
    proto::{Job, SubmitRequest, worker_pool_service_server::SERVICE_NAME},
};

use crate::{
    process::Process,
    service::{Caller, counts, job, queued},
};

const README: &str = include_str!("../../README.md");
const CALLING: &str = include_str!("../../docs/calling.md");

/// Name and text of the README and of each file in `docs/`.
fn documents() -> Vec<(String, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let paths = std::fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    [("README.md".to_owned(), README.to_owned())].into_iter().chain(paths.iter().map(read)).collect()
}

/// The code blocks of one language.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    document.split(&fence).skip(1).map(|rest| rest.split("```").next().expect("a block ends")).collect()
}

#[test]
fn the_rust_code_of_the_readme_is_part_of_docs_rust() {
    let example = include_str!("../../docs/rust.md");
    let lines: Vec<&str> = blocks(README, "rust").into_iter().flat_map(str::lines).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| example.contains(line)), "{lines:?}");
}

#[test]
fn the_table_of_reasons_in_docs_calling_is_complete() {
    let rows = CALLING.lines().skip_while(|line| !line.starts_with("| reason |")).skip(2);
    let first_cells = rows.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
    let documented: BTreeSet<String> =
        first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    let of_failures = Reason::ALL.iter().filter(|reason| **reason != Reason::Completed);
    assert_eq!(documented, of_failures.map(|reason| reason.name().to_owned()).collect());
}

/// A command in a document, and the output below it.
struct Shown<'a> {
    command: String,
    output: Vec<&'a str>,
}

fn commands(document: &str) -> Vec<Shown<'_>> {
    let mut shown: Vec<Shown<'_>> = Vec::new();
    for line in blocks(document, "console").into_iter().flat_map(str::lines) {
        match (line.strip_prefix("$ "), shown.last_mut()) {
            (Some(command), _) => shown.push(Shown { command: command.to_owned(), output: Vec::new() }),
            (None, Some(last)) if last.command.ends_with('\\') => last.command.extend(["\n", line]),
            (None, Some(last)) => last.output.push(line),
            (None, None) => panic!("a block begins with a command, not with {line:?}"),
        }
    }
    shown
}

/// Files that the commands of a document use. Their code blocks start with a comment that names the file.
fn named_files(document: &str) -> impl Iterator<Item = (&str, &str)> {
    let shown = blocks(document, "toml").into_iter().chain(blocks(document, "python"));
    shown.filter_map(|text| {
        let name = text.lines().next()?.strip_prefix("# ")?;
        (name.ends_with(".toml") || name.ends_with(".py")).then_some((name, text))
    })
}

/// The words of a line without those that contain digits, which differ between runs.
fn words(line: &str) -> Vec<&str> {
    let stays = |word: &&str| *word != "-" && !word.contains(|c: char| c.is_ascii_digit());
    line.split_whitespace().filter(stays).collect()
}

/// Runs `line` in a shell in `directory`, with the addresses of a server in the environment.
async fn run(line: &str, directory: &TempDir, server: Option<&Process>) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_waterwheel")).parent().unwrap();
    let path = std::env::join_paths([program, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(directory.path()).env_clear().env("PATH", path).kill_on_drop(true);
    if let Some(server) = server {
        command.env("WATERWHEEL_SERVER", server.public.0.to_string()).env("WATERWHEEL_OPS", server.ops.0.to_string());
    }
    command.output().await.unwrap()
}

#[tokio::test]
async fn every_command_of_the_documents_prints_the_documented_output() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("README.md"), README).unwrap();
    let mut seen = 0;
    for (name, text) in documents() {
        let mut scene = if name == "operating.md" { Some(Scene::new().await) } else { None };
        let mut server = None;
        for (file, config) in named_files(&text) {
            std::fs::write(directory.path().join(file), config).unwrap();
        }
        for Shown { command, output } in commands(&text) {
            seen += 1;
            if let Some(config) = command.strip_prefix("waterwheel serve --config ") {
                end(server).await;
                server = Some(Process::serve_file(&directory.path().join(config)).await);
                continue;
            }
            if let Some(file) = command.strip_prefix("waterwheel dev --worker ") {
                let path = directory.path().join(file);
                server = Some(Process::dev(&["--worker", path.to_str().unwrap()]).await);
                continue;
            }
            match (&*command, &mut scene) {
                ("cargo test", _) => continue,
                ("cargo run --release -- dev", _) => {
                    server = Some(first_run(&output).await);
                    continue;
                }
                ("waterwheel reload --dry-run", Some(scene)) => scene.change(),
                ("waterwheel drain --watch", Some(scene)) => scene.calls.abort_all(),
                _ => {}
            }
            let known = ["waterwheel ", "WATERWHEEL_GRACE=", "openssl ", "printf "]
                .iter()
                .any(|start| command.starts_with(start));
            assert!(known, "this test does not know how to run {command:?} of {name}");
            let beside = server.as_ref().or(scene.as_ref().map(|scene| &scene.server));
            let ended = run(&command, &directory, beside).await;
            let printed = [ended.stdout, ended.stderr].join(&b"\n"[..]);
            let printed = String::from_utf8_lossy(&printed);
            // This machine may be too small for `check --env`.
            assert!(ended.status.success() || command.contains("check --env"), "{name}: {command}: {printed}");
            let lines: BTreeSet<_> = printed.lines().map(words).collect();
            for line in output {
                assert!(lines.contains(&words(line)), "{name}: {command} does not print {line:?}, but\n{printed}");
            }
        }
        end(server).await;
        assert!(!text.contains("_TABLE"), "{name}: a placeholder for a table is left");
    }
    assert!(seen > 30, "only {seen} commands were found");
}

/// Starts `waterwheel dev`, and compares the first word of each line with the README.
async fn first_run(shown: &[&str]) -> Process {
    let mut server = Process::dev(&[]).await;
    let start = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    for expected in &shown[1..] {
        let line = server.line().await;
        assert_eq!(start(&line), start(expected), "got {line:?}, but the README shows {expected:?}");
    }
    server
}

/// Drains a server, and checks that it ends without an error.
async fn end(server: Option<Process>) {
    if let Some(server) = server {
        server.signal(Signal::TERM);
        assert_eq!(server.ended().await.code, Some(0));
    }
}

/// The server of the runbook: a tenant has filled the queue of one pool, and a limit blocks a job of another pool.
struct Scene {
    server: Process,
    calls: JoinSet<Result<(), Status>>,
}

impl Scene {
    const CONFIG: &str = r#"
        kind.thumb = { pool = "cpu", builtin = "sleep" }
        drain = { notice = "0s", finish = "30s", kill = "5s" }
        [pool.cpu]
        workers = 2
        queue = { jobs = 8 }
        [pool.io]
        workers = { min = 2, max = 8 }
        [kind.report]
        pool = "io"
        exec = ["/bin/sh", "-c", "cat > /dev/null; echo no such order >&2; exit 3"]
        [kind.charge]
        pool = "io"
        builtin = "sleep"
        limit = { concurrency = 1 }
    "#;

    async fn new() -> Self {
        let server = Process::serve(Self::CONFIG).await;
        let caller = Caller::of(server.public).await;
        let mut calls = JoinSet::new();
        let mut call = |kind: &str, milliseconds: &'static str, tenant: &str, id: &str| {
            let job = Job { tenant: tenant.to_owned(), ..job(kind, milliseconds) };
            let mut request = tonic::Request::new(SubmitRequest { job: Some(job) });
            request.set_timeout(Duration::from_secs(300));
            request.metadata_mut().insert("x-request-id", id.parse().unwrap());
            let mut client = caller.0.clone();
            calls.spawn(async move { client.submit(request).await.map(drop) });
        };
        // Pools are reported by name: cpu, io.
        call("report", "", "shop", "report-17");
        caller.until_all(|pools| counts(&pools[1]).failed == 1).await;
        for (running, id) in [(1, "thumb-1"), (2, "thumb-2")] {
            call("thumb", "60000", "web", id);
            caller.until_all(|pools| pools[0].in_flight == running).await;
        }
        (0..9).for_each(|number| call("thumb", "100", "batch", &format!("batch-{number}")));
        caller.until_all(|pools| !counts(&pools[0]).rejected.is_empty() && queued(&pools[0]) >= 3).await;
        call("charge", "60000", "web", "order-4710");
        caller.until_all(|pools| pools[1].in_flight == 1).await;
        call("charge", "100", "shop", "order-4711");
        caller.until_all(|pools| queued(&pools[1]) == 1).await;
        Self { server, calls }
    }

    /// Sets a longer queue in the configuration file.
    fn change(&self) {
        self.server.configure(&Self::CONFIG.replace("jobs = 8", "jobs = 16"));
    }
}

#[tokio::test]
async fn every_configuration_of_the_documents_is_valid() {
    let directory = tempfile::tempdir().unwrap();
    let (file, documents) = (directory.path().join("shown.toml"), documents());
    let shown = documents.iter().flat_map(|(_, text)| blocks(text, "toml"));
    // Blocks that name a file are served by the test of the commands, because they need files made by them.
    let shown: Vec<_> = shown.filter(|text| !text.starts_with("# ")).collect();
    for text in &shown {
        std::fs::write(&file, text).unwrap();
        let output =
            crate::process::program(&["check", "--config"]).arg(&file).env("LANG", "C").output().await.unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(shown.len() > 1, "{shown:?}");
}

fn service_config(name: &str) -> Value {
    let path = format!("{}/deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Behind a proxy, a health check reaches one arbitrary backend. Its drain would make all backends look unhealthy.
#[test]
fn the_config_for_clients_behind_a_proxy_retries_without_health_checks() {
    let (mut direct, behind_proxy) =
        (service_config("service-config.json"), service_config("service-config-behind-proxy.json"));
    let retry = &behind_proxy["methodConfig"][0];
    assert_eq!(retry["name"], json!([{ "service": SERVICE_NAME }]));
    assert_eq!(retry["retryPolicy"]["retryableStatusCodes"], json!(["RESOURCE_EXHAUSTED", "UNAVAILABLE"]));
    assert!(behind_proxy["retryThrottling"].is_object(), "retries have a cap");
    let of_direct = direct.as_object_mut().unwrap();
    assert_eq!(of_direct.remove("healthCheckConfig"), Some(json!({ "serviceName": SERVICE_NAME })));
    assert_eq!(of_direct.remove("loadBalancingConfig"), Some(json!([{ "round_robin": {} }])));
    assert_eq!(direct, behind_proxy, "there is no other difference");
}
