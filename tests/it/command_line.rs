//! The output and exit codes of the commands, in the order in which a new user runs them first. Each is a process.

use std::io::Read;

use flate2::read::GzDecoder;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use crate::{
    process::{Process, Ran, program},
    service::Caller,
};

#[tokio::test]
async fn ctrl_c_cancels_the_job() {
    let process = Process::dev(&[]).await;
    let caller = Caller::of(process.public).await;
    let submit = process.command(&["submit", "sleep", "600000", "--deadline", "9m"]).spawn().unwrap();
    caller.until_all(|pools| pools.iter().any(|pool| pool.in_flight == 1)).await;
    kill_process(Pid::from_raw(submit.id().unwrap().cast_signed()).unwrap(), Signal::INT).unwrap();
    let ran = Ran::from(submit.wait_with_output().await.unwrap());
    assert_eq!((ran.code, &*ran.err), (Some(130), ""));
    caller.until_all(|pools| pools.iter().all(|pool| pool.in_flight == 0)).await;
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
    let job: serde_json::Value = serde_json::from_str(&process.run(create).await.out).unwrap();
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
