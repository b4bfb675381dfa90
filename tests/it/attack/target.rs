//! A server in a process of its own, what it holds, and another client of it whose calls must go on.

use std::time::Duration;

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::{Request, Status};
use waterwheel::proto::{Job, PoolStats, SubmitRequest, WhenFull};

use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller, Client, job, queued},
};

// tidy: real time, because what a real process holds is looked at until it is as wanted.

/// One pool, and short deadlines for those who set none.
pub(crate) const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "2s", kill = "500ms" }
    deadline = { default = "1s" }
    [pool.one]
    workers = 8
    queue = { jobs = 256 }
    [kind.echo]
    pool = "one"
    builtin = "echo"
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
"#;
/// Calls of the other client that must succeed while an attack runs.
pub(crate) const CALLS: usize = 100;
pub(crate) const MIB: u64 = 1 << 20;
/// What an allocator may keep of memory that was given back to it.
const SLACK: u64 = 16 * MIB;

/// The server that is attacked.
pub(crate) struct Target {
    process: Process,
    caller: Caller,
    base: Footprint,
}

/// What a process holds of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Resident memory in bytes.
    pub(crate) memory: u64,
    /// The most resident memory that it ever had.
    pub(crate) peak: u64,
    /// Open file descriptors.
    pub(crate) files: usize,
}

/// A client that calls and calls. Dropping it ends it.
pub(crate) struct Bystander {
    succeeded: watch::Receiver<usize>,
    calls: JoinHandle<Status>,
}

impl Target {
    /// Starts it, and lets it warm up.
    pub(crate) async fn serve(config: &str) -> Self {
        let process = Process::serve(config).await;
        let caller = Caller::of(process.public).await;
        caller.pool().await;
        let files = Footprint::of(process.id()).files;
        // Both threads meet calls before the memory is noted.
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

    pub(crate) fn base(&self) -> Footprint {
        self.base
    }

    pub(crate) fn footprint(&self) -> Footprint {
        Footprint::of(self.process.id())
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Attacks while another client calls: it must have [`CALLS`] answers, and more of them while what the attack
    /// leaves behind is still held. Not one may fail meanwhile.
    pub(crate) async fn under<T>(&self, attack: impl Future<Output = T>) -> T {
        let mut bystander = Bystander::of(self.public()).await;
        let (left, ()) = tokio::join!(attack, bystander.calls(CALLS));
        bystander.calls(CALLS / 10).await;
        left
    }

    /// Attacks for as long as another client needs for its calls.
    pub(crate) async fn under_endless(&self, attack: impl Future<Output = ()>) {
        let mut bystander = Bystander::of(self.public()).await;
        tokio::select! {
            () = async { attack.await; std::future::pending().await } => {}
            () = bystander.calls(2 * CALLS) => {}
        }
    }

    /// Waits until nothing runs or is queued, and memory and connections are what they were. The peak of its memory
    /// must have stayed within `bound` above the base.
    pub(crate) async fn recovers(&self, bound: u64) {
        self.caller.until(|pool: &PoolStats| pool.in_flight == 0 && queued(pool) == 0).await;
        // An allocator gives back what it holds when it is next asked, thread by thread.
        let others = (Bystander::of(self.public()).await, Bystander::of(self.public()).await);
        self.until(|held| held.memory <= self.base.memory + SLACK).await;
        drop(others);
        let held = self.until(|held| held.files == self.base.files).await;
        let over = held.peak.saturating_sub(self.base.memory);
        assert!(over <= bound, "it took {over} bytes more than at rest, {bound} were expected at most");
    }

    /// Looks at what the process holds until it is as wanted.
    pub(crate) async fn until(&self, reached: impl Fn(&Footprint) -> bool) -> Footprint {
        let look = || {
            let held = self.footprint();
            if reached(&held) { Ok(held) } else { Err(held) }
        };
        until(look).await.unwrap_or_else(|held| panic!("it holds {held:?}, and held {:?} at rest", self.base))
    }
}

/// Looks at another process until it is as wanted. Returns what was seen last where it does not become so.
pub(crate) async fn until<T, E>(look: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        match look() {
            Err(_) if begin.elapsed() < PATIENCE => sleep(Duration::from_millis(10)).await,
            seen => return seen,
        }
    }
}

/// Processor time that a process has used, in nanoseconds.
pub(crate) fn cpu(id: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let spent = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap());
    spent.map(|spent| spent.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
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

    /// Waits for that many more successes.
    ///
    /// # Panics
    /// Where one call fails, or they do not come.
    pub(crate) async fn calls(&mut self, more: usize) {
        let wanted = *self.succeeded.borrow() + more;
        let reached = timeout(2 * PATIENCE, self.succeeded.wait_for(|count| *count >= wanted));
        let reached = reached.await.map(|reached| reached.map(|count| *count));
        match reached {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => panic!("a call of another client failed: {:?}", (&mut self.calls).await),
            Err(_) => panic!("another client had {} answers, {wanted} were wanted", *self.succeeded.borrow()),
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.calls.abort();
    }
}

async fn echo(client: &mut Client) -> Result<(), Status> {
    // It stands in line behind the jobs of an attacker, whatever they lead the pool to expect.
    let job = Job { when_full: WhenFull::Wait.into(), ..job("echo", "still here") };
    let mut request = Request::new(SubmitRequest { job: Some(job) });
    request.set_timeout(PATIENCE);
    let answer = client.submit(request).await?.into_inner();
    assert_eq!(answer.result.unwrap().output, b"still here");
    Ok(())
}
