//! Every command of the README and of `docs/` runs, in its order, and every file that they show is sound.

use std::{collections::BTreeSet, path::Path, process::Output};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use crate::process::Process;

const README: &str = include_str!("../../README.md");
const CALLING: &str = include_str!("../../docs/calling.md");

/// The README, and what is below `docs/`.
fn documents() -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut paths: Vec<_> = std::fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let docs = paths.iter().map(|path| std::fs::read_to_string(path).unwrap());
    [README.to_owned()].into_iter().chain(docs).collect()
}

/// The blocks of one language.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    document.split(&fence).skip(1).map(|rest| rest.split("```").next().expect("a block ends")).collect()
}

/// Names of reasons in what tells them: words of capitals between quotes.
fn reasons() -> BTreeSet<String> {
    const SOURCES: [&str; 7] = [
        "model/rejection.rs",
        "auth/denial.rs",
        "rpc/status.rs",
        "rpc/status/job.rs",
        "rpc/catalog.rs",
        "rpc/admin/pool.rs",
        "rpc/admin/cancel.rs",
    ];
    /// What `execution` says.
    const OTHERS: [&str; 3] = ["NOT_STARTED", "STARTED", "UNKNOWN"];
    let is_name = |text: &&str| text.len() > 3 && text.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let read = |path| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path)).unwrap();
    let texts = SOURCES.map(read);
    let names = texts.iter().flat_map(|text| text.split('"')).filter(is_name).map(str::to_owned);
    names.filter(|name| !OTHERS.contains(&name.as_str())).collect()
}

#[test]
fn the_table_of_reasons_has_each_of_them() {
    let rows = CALLING.lines().skip_while(|line| !line.starts_with("| reason |")).skip(2);
    let first_cells = rows.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
    let told: BTreeSet<String> =
        first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    let reasons = reasons();
    assert!(reasons.contains("POOL_DRAINING") && reasons.contains("QUEUE_FULL") && reasons.len() > 25, "{reasons:?}");
    assert_eq!(told, reasons);
}

fn commands(document: &str) -> Vec<&str> {
    blocks(document, "console").into_iter().flat_map(str::lines).filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// Runs `line` in `directory` as a shell would, beside a server.
async fn run(line: &str, directory: &TempDir, server: &Process) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_waterwheel")).parent().unwrap();
    let path = std::env::join_paths([program, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    Command::new("sh")
        .args(["-c", line])
        .current_dir(directory.path())
        .env_clear()
        .env("PATH", path)
        .env("WATERWHEEL_SERVER", server.public.0.to_string())
        .env("WATERWHEEL_OPS", server.ops.0.to_string())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap()
}

#[tokio::test]
async fn every_command_works() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("README.md"), README).unwrap();
    let mut server = None;
    let mut seen = 0;
    for document in documents() {
        for line in commands(&document) {
            seen += 1;
            match line {
                "cargo run --release -- dev" => server = Some(first_run().await),
                "cargo test" => {}
                "waterwheel serve --config waterwheel.toml" => serve(&directory).await,
                line => {
                    assert!(line.starts_with("waterwheel "), "this test does not know how to run {line:?}");
                    let output = run(line, &directory, server.as_ref().expect("`dev` comes first")).await;
                    let error = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{line}: {error}{}", String::from_utf8_lossy(&output.stdout));
                }
            }
        }
        assert!(!document.contains("_TABLE"), "a table is left to be filled in");
    }
    assert!(seen > 8, "only {seen} commands were found");
}

/// What `dev` prints has the lines that the README shows.
async fn first_run() -> Process {
    let mut server = Process::dev(&[]).await;
    let shown = blocks(README, "console")[0];
    let start = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    for expected in shown.lines().skip(2) {
        let line = server.line().await;
        assert_eq!(start(&line), start(expected), "{line:?} where the README shows {expected:?}");
    }
    server
}

async fn serve(directory: &TempDir) {
    let config = std::fs::read_to_string(directory.path().join("waterwheel.toml")).unwrap();
    let server = Process::serve(&format!("drain.notice = \"0s\"\n{}", without_drain(&config))).await;
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code, Some(0));
}

/// The file without its table of the drain, whose notice is too long for a test.
fn without_drain(config: &str) -> String {
    config.lines().filter(|line| !line.starts_with("[drain]")).map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn the_files_that_are_shown_are_sound() {
    let directory = tempfile::tempdir().unwrap();
    let (file, documents) = (directory.path().join("shown.toml"), documents());
    let shown: Vec<_> = documents.iter().flat_map(|document| blocks(document, "toml")).collect();
    for text in &shown {
        std::fs::write(&file, text).unwrap();
        let output =
            crate::process::program(&["check", "--config"]).arg(&file).env("LANG", "C").output().await.unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(shown.len() > 2, "{shown:?}");
}
