//! Attacks by hostile peers. Each test attacks a server that runs as a separate process.
//!
//! During the attack, and until the server has cleaned up after it, another client's calls succeed. Afterwards the
//! server's memory, open files and jobs return to the values from before the attack.

// tidy: real time, because the tests poll the resource use of a real process.

mod floods;
mod memory;
pub(crate) mod peer;
mod streams;

use std::time::Duration;

use http::HeaderMap;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Request, Status};
use waterwheel::proto::{Job, PoolStats, SubmitRequest, WhenFull};

use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller, Client, job, queued},
};

/// The RPC that all attackers call.
pub(crate) const SUBMIT: &str = "/waterwheel.v1.WorkerPoolService/Submit";

/// One pool, and a short default deadline.
pub(crate) const CONFIG: &str = r#"
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sleep = { pool = "one", builtin = "sleep" }
    drain = { notice = "0s", finish = "2s", kill = "500ms" }
    deadline = { default = "1s" }
    [pool.one]
    workers = 8
    queue = { jobs = 256 }
"#;
/// Calls of the other client that must succeed while an attack runs.
pub(crate) const CALLS: usize = 100;
pub(crate) const MIB: u64 = 1 << 20;
/// Freed memory that the allocator may keep.
const SLACK: u64 = 16 * MIB;

/// The server that is attacked.
pub(crate) struct Target {
    process: Process,
    caller: Caller,
    base: Footprint,
}

/// Resource use of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Resident memory in bytes.
    pub(crate) memory: u64,
    /// Peak of the resident memory.
    pub(crate) peak: u64,
    /// Open file descriptors.
    pub(crate) files: usize,
}

/// A client that calls `echo` in a loop until it is dropped.
pub(crate) struct Bystander {
    succeeded: watch::Receiver<usize>,
    calls: JoinHandle<Status>,
}

impl Target {
    /// Starts the server and warms it up.
    pub(crate) async fn serve(config: &str) -> Self {
        let process = Process::serve(config).await;
        let caller = Caller::of(process.public).await;
        caller.pool().await;
        let files = Footprint::of(process.id()).files;
        // Both threads of the server must have served calls before its memory is measured.
        for _ in 0..2 {
            Bystander::of(process.public).await.calls(CALLS).await;
        }
        let base = Footprint { files, ..Footprint::of(process.id()) };
        Self { process, caller, base }
    }

    pub(crate) fn public(&self) -> Address {
        self.process.public
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn footprint(&self) -> Footprint {
        Footprint::of(self.process.id())
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Runs the attack while another client calls. [`CALLS`] of its calls must succeed, and some more before the result
    /// of the attack is dropped. None may fail.
    pub(crate) async fn under<T>(&self, attack: impl Future<Output = T>) -> T {
        let mut bystander = Bystander::of(self.public()).await;
        let (left, ()) = tokio::join!(attack, bystander.calls(CALLS));
        bystander.calls(CALLS / 10).await;
        left
    }

    /// Runs the attack until another client's calls have succeeded.
    pub(crate) async fn under_endless(&self, attack: impl Future<Output = ()>) {
        let mut bystander = Bystander::of(self.public()).await;
        tokio::select! {
            () = async { attack.await; std::future::pending().await } => {}
            () = bystander.calls(2 * CALLS) => {}
        }
    }

    /// Waits until no job runs or is queued, and memory and open files are back at the base. The memory's peak must be
    /// at most `bound` above the base.
    pub(crate) async fn recovers(&self, bound: u64) {
        self.caller.until(|pool: &PoolStats| pool.in_flight == 0 && queued(pool) == 0).await;
        self.shrinks(SLACK).await;
        let held = self.until(|held| held.files == self.base.files).await;
        let over = held.peak.saturating_sub(self.base.memory);
        assert!(over <= bound, "the peak was {over} bytes above the base, and {bound} are allowed");
    }

    /// Waits until memory is at most `over` bytes above the base, while two clients call: the allocator returns freed
    /// memory on its next use, for each thread separately.
    pub(crate) async fn shrinks(&self, over: u64) {
        let clients = (Bystander::of(self.public()).await, Bystander::of(self.public()).await);
        self.until(|held| held.memory <= self.base.memory + over).await;
        drop(clients);
    }

    /// Samples the footprint until it is `reached`.
    pub(crate) async fn until(&self, reached: impl Fn(&Footprint) -> bool) -> Footprint {
        let sample = || {
            let held = self.footprint();
            if reached(&held) { Ok(held) } else { Err(held) }
        };
        until(sample).await.unwrap_or_else(|held| panic!("the process uses {held:?}; its base is {:?}", self.base))
    }
}

/// Takes samples until one is `Ok`. Returns the last `Err` if none is in time.
pub(crate) async fn until<T, E>(sample: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        match sample() {
            Err(_) if begin.elapsed() < PATIENCE => sleep(Duration::from_millis(10)).await,
            seen => return seen,
        }
    }
}

/// CPU time that a process has used, in nanoseconds.
pub(crate) fn cpu(id: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let spent = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap());
    spent.map(|spent| spent.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// The status code in the headers and trailers of an answer.
pub(crate) fn code(end: &HeaderMap) -> Code {
    Code::from_bytes(end["grpc-status"].as_bytes())
}

impl Footprint {
    pub(crate) fn of(id: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let files = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().count();
        Self { memory: kib("VmRSS:") << 10, peak: kib("VmHWM:") << 10, files }
    }
}

impl Bystander {
    pub(crate) async fn of(address: Address) -> Self {
        let mut client = address.client().await;
        let (count, succeeded) = watch::channel(0);
        let calls = tokio::spawn(async move {
            loop {
                if let Err(status) = echo(&mut client).await {
                    return status;
                }
                count.send_modify(|count| *count += 1);
            }
        });
        Self { succeeded, calls }
    }

    /// Waits until `more` further calls have succeeded.
    ///
    /// # Panics
    /// If a call fails, or the calls take too long.
    pub(crate) async fn calls(&mut self, more: usize) {
        let wanted = *self.succeeded.borrow() + more;
        let reached = timeout(2 * PATIENCE, self.succeeded.wait_for(|count| *count >= wanted));
        let reached = reached.await.map(|reached| reached.map(|count| *count));
        match reached {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => panic!("a call of another client failed: {:?}", (&mut self.calls).await),
            Err(_) => panic!("{} calls of another client succeeded, not {wanted}", *self.succeeded.borrow()),
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.calls.abort();
    }
}

async fn echo(client: &mut Client) -> Result<(), Status> {
    // The job waits in the queue behind those of the attacker, however long the pool expects it to wait.
    let job = Job { when_full: WhenFull::Wait.into(), ..job("echo", "still here") };
    let mut request = Request::new(SubmitRequest { job: Some(job) });
    request.set_timeout(PATIENCE);
    let answer = client.submit(request).await?.into_inner();
    assert_eq!(answer.result.unwrap().output, b"still here");
    Ok(())
}
