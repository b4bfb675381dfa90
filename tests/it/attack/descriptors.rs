//! A process without a file descriptor left.

use futures_util::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::net::TcpStream;

use super::{
    control::BareProcess,
    target::{CALLS, CONFIG, Footprint, MIB, Target, cpu, until},
};
use crate::service::{Address, Caller, job};

/// Sockets that a process without room for them is offered.
const SOCKETS: usize = 64;
/// Processor time after which a server spins, and what one that waits may take while another does.
const SPIN: u64 = 500_000_000;
const WAIT: u64 = 100_000_000;

/// More connections than the process may have files (EMFILE).
///
/// Holds: those that are there are served, the process waits instead of asking again and again, and when there is room
/// connections are taken. A bare server spins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_file_descriptors_left() {
    let target = Target::serve(CONFIG).await;
    let bare = BareProcess::start().await;
    let (ours, theirs) = (target.process().id(), bare.id());
    let held = (exhaust(ours, target.public()).await, exhaust(theirs, bare.address).await);
    let begin = (cpu(ours), cpu(theirs));
    let spins = || Some(cpu(theirs) - begin.1).filter(|used| *used > SPIN).ok_or(());
    until(spins).await.expect("stock tonic spins");
    let used = cpu(ours) - begin.0;
    assert!(used < WAIT, "it spins: {used} ns, while a server that does took {SPIN}");

    for _ in 0..CALLS {
        target.caller().leave(job("echo", "")).await.unwrap().unwrap();
    }
    drop(held);
    Caller::of(target.public()).await.leave(job("echo", "")).await.unwrap().unwrap();
    target.recovers(32 * MIB).await;
}

/// Lets a process have eight files more than it has, and connects until it is without.
async fn exhaust(id: u32, address: Address) -> Vec<TcpStream> {
    let limit = Footprint::of(id).files as u64 + 8;
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    prlimit(Pid::from_raw(id.try_into().unwrap()), Resource::Nofile, limit).unwrap();
    join_all((0..SOCKETS).map(|_| TcpStream::connect(address.0))).await.into_iter().map(Result::unwrap).collect()
}
