//! A process that has run out of file descriptors.

use futures_util::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::{
    net::TcpStream,
    time::{Duration, sleep},
};

use super::target::{CALLS, CONFIG, Footprint, MIB, Target, cpu};
use crate::service::{Address, Caller, job};

/// Number of connections that the test opens to each process, far more than its file limit allows.
const SOCKETS: usize = 64;
/// How long the server has no free descriptors.
const LASTS: Duration = Duration::from_secs(1);
/// CPU time in nanoseconds that a server that waits may use in that time.
const WAIT: u64 = 100_000_000;

// tidy: real time, because a process that spins is known by its CPU time.

/// More connections than the process may have open files (EMFILE).
///
/// Expected: open connections are served, and the process waits between attempts to accept. It accepts connections
/// again when descriptors are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_free_descriptors_does_not_spin() {
    let target = Target::serve(CONFIG).await;
    let id = target.process().id();
    let held = exhaust(id, target.public()).await;
    let begin = cpu(id);
    sleep(LASTS).await;
    let used = cpu(id) - begin;
    assert!(used < WAIT, "the server spins: it used {used} ns of CPU in {LASTS:?}");

    for _ in 0..CALLS {
        target.caller().leave(job("echo", "")).await.unwrap().unwrap();
    }
    drop(held);
    Caller::of(target.public()).await.leave(job("echo", "")).await.unwrap().unwrap();
    target.recovers(32 * MIB).await;
}

/// Limits a process to eight more files than it has open, and opens more connections than that.
async fn exhaust(id: u32, address: Address) -> Vec<TcpStream> {
    let limit = Footprint::of(id).files as u64 + 8;
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    prlimit(Pid::from_raw(id.try_into().unwrap()), Resource::Nofile, limit).unwrap();
    join_all((0..SOCKETS).map(|_| TcpStream::connect(address.0))).await.into_iter().map(Result::unwrap).collect()
}
