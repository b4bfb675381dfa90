//! The first minutes: `dev`, a digest, and a large file through a stream.

use std::{io::Read, process::Output};

use flate2::read::GzDecoder;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::process::Signal;
use sha2::{Digest, Sha256};

use crate::process::{Process, program};

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn dev_serves_runs_a_first_job_and_says_what_is_next() {
    let mut process = Process::dev(&[]).await;
    println!("dev served after {:?}", process.served_after);
    let pools = process.line().await;
    assert!(pools.starts_with("pools  cpu ") && pools.contains("io 64 workers / 1024 queued"), "{pools}");
    assert_eq!(process.line().await, "kinds  sha256 gzip sleep echo upper");
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
    // Nothing runs, and nobody needs a notice of the end of an experiment.
    process.signal(Signal::INT);
    let ended = process.ended().await;
    assert_eq!((ended.code, &ended.receipt["finished"]), (Some(0), &0.into()), "{ended:?}");
}

/// Runs `line` on a server.
async fn asked(server: &Process, line: &[&str]) -> Output {
    program(&[line, &["--server", &server.public.0.to_string()]].concat()).output().await.unwrap()
}

#[tokio::test]
async fn a_detached_job_outlives_a_kill_of_dev() {
    let dir = tempfile::tempdir().unwrap();
    let process = Process::dev_in(dir.path(), &[]).await;
    let created = asked(&process, &["jobs", "create", "sleep", r#"{"ms":3000}"#, "--job-id", "a"]).await;
    assert_eq!((created.status.code(), &*created.stdout), (Some(0), &b"a\n"[..]), "{created:?}");
    process.killed().await;
    let process = Process::dev_in(dir.path(), &[]).await;
    let ended = asked(&process, &["jobs", "wait", "a"]).await;
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(0), &b"slept 3000 ms"[..]), "{ended:?}");
    let shown = asked(&process, &["jobs", "get", "a"]).await;
    assert!(shown.stdout.starts_with(b"a  succeeded  kind sleep\n"), "{shown:?}");
}

#[tokio::test]
async fn dev_says_what_to_do_where_it_cannot_keep_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Process::dev_in(dir.path(), &[]).await;
    let cases = [
        ("store.max_jobs=5", "waterwheel.db is in use by another server; give each its own `store.path`"),
        ("store.path=none/jobs.db", "none/jobs.db: its directory does not exist; make it, or set another `store.path`"),
        // Root may write elsewhere.
        ("store.path=/sys/jobs.db", "/sys/jobs.db cannot be written; set `store.path`"),
    ];
    for (setting, expected) in cases {
        let line = ["dev", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--set", setting];
        let refused = program(&line).current_dir(dir.path()).output().await.unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(1) && told.contains(expected), "{setting}: {told}");
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
async fn a_digest_of_a_file() {
    let process = Process::dev(&[]).await;
    let server = process.public.0.to_string();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = program(&["submit", "sha256", "--file", file, "--server", &server]).output().await.unwrap();
    let expected = hex(&Sha256::digest(std::fs::read(file).unwrap()));
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), expected);
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test]
async fn a_kind_in_python() {
    let process = Process::dev(&[]).await;
    let server = process.public.0.to_string();
    let output = program(&["submit", "upper", "hello", "--server", &server]).output().await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "HELLO");
}

#[tokio::test]
async fn a_large_file_through_a_stream() {
    let process = Process::dev(&["--max-payload", "32MiB"]).await;
    let server = process.public.0.to_string();
    // Noise does not shrink: all of it comes back.
    let mut payload = vec![0; 20 << 20];
    StdRng::seed_from_u64(20).fill(&mut payload[..]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("noise");
    std::fs::write(&file, &payload).unwrap();
    let file = file.to_str().unwrap();
    let output = program(&["stream", "gzip", "--file", file, "--server", &server, "--deadline", "120s"]);
    let output = { output }.output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut unzipped = Vec::with_capacity(payload.len());
    GzDecoder::new(&output.stdout[..]).read_to_end(&mut unzipped).unwrap();
    assert!(unzipped == payload, "{} bytes came back", unzipped.len());
}
