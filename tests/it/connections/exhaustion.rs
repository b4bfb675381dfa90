//! A process without file descriptors waits for one, and takes the connections that waited meanwhile.
//!
// tidy: real time, because what is measured is the processor time of a process that waits.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::{net::TcpStream, time::sleep};

use crate::{
    process::Process,
    service::{Caller, job},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    pool.one.workers = 4
    server.connections.preface_timeout = "1h"
"#;

/// Descriptors that the process has open.
fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Processor time of the process, in ticks of a hundredth of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test]
async fn without_descriptors_it_neither_spins_nor_stops() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("sleep", "1")).await.unwrap().unwrap();
    // Room for two more.
    let pid = process.id();
    let limit = open_files(pid) + 2;
    set_limit(pid, limit as u64);
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(TcpStream::connect(process.public.0).await.unwrap());
    }
    while open_files(pid) < limit {
        sleep(Duration::from_millis(1)).await;
    }

    let before = ticks(pid);
    sleep(Duration::from_secs(2)).await;
    let spent = ticks(pid) - before;
    assert!(spent < 20, "{spent} hundredths of a second in two seconds of nothing");
    caller.leave(job("sleep", "1")).await.unwrap().expect("connections that are there go on");

    // Those that leave make room for one that waits.
    drop(silent);
    Caller::of(process.public).await.leave(job("sleep", "1")).await.unwrap().expect("taken after all");
}

fn set_limit(pid: u32, files: u64) {
    let pid = Pid::from_raw(pid.try_into().unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) }).unwrap();
}
