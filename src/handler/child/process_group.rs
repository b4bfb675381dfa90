//! The process group of a program: the program, and all processes that it started.
//!
//! The program leads a process group of its own, and signals go to the group. The id of the group is the leader's
//! process id. The kernel does not reuse that id until the leader is reaped, because an exited leader stays a zombie.
//! So the one rule is **no signal after the reaping**, and the type enforces it: only [`Process`] signals. It owns the
//! child, and only [`Process::reap`] and [`Drop`] take the child out, after they have killed the group. Therefore the
//! exit is watched with `WNOWAIT` and a pidfd, never by a wait that reaps.
//!
//! One SIGKILL to the group reaches every member. The kernel signals all of them under one lock, and restarts or kills
//! a `fork` that races with the signal. A process that moved to another group or session is out of reach. It delays no
//! job, because the handler does not wait for pipes that such a process holds open.

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::{
    io,
    process::{Child, ExitStatus},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
#[cfg(target_os = "linux")]
use tokio::io::{Interest, unix::AsyncFd};
use tokio::{signal::unix, time::timeout};

use super::workspace::{Workspace, remove_workspace};
use crate::{
    model::JobId,
    task::{Tasks, off_thread},
};

/// A process that is not reaped yet. Dropping it kills and reaps its whole group, and removes its workspace.
#[derive(Debug)]
pub(in crate::handler) struct Process {
    id: Pid,
    child: Option<Child>,
    exit: ExitWatch,
    workspace: Option<Workspace>,
    tasks: Tasks,
    /// The job that the process was started for; `None` if it serves many jobs.
    job: Option<JobId>,
}

impl Process {
    /// Takes over a child that was just spawned as the leader of its own group, and starts to watch it.
    ///
    /// # Errors
    /// The exit cannot be watched. Then the child is killed and reaped.
    pub(super) fn new(
        child: Child,
        workspace: Option<Workspace>,
        tasks: Tasks,
        job: Option<JobId>,
    ) -> io::Result<Self> {
        let id = Pid::from_child(&child);
        let mut process = Self { id, child: Some(child), exit: ExitWatch::None, workspace, tasks, job };
        process.exit = ExitWatch::new(id)?;
        Ok(process)
    }

    /// Process id.
    pub(in crate::handler) fn pid(&self) -> u32 {
        self.id.as_raw_pid().cast_unsigned()
    }

    /// Returns when the process has exited. It does not reap the process. Cancel safe.
    pub(in crate::handler) async fn exited(&mut self) {
        self.exit.wait(self.id).await;
    }

    /// Sends SIGTERM to the group.
    pub(in crate::handler) fn ask(&self) {
        self.signal_group(Signal::TERM);
    }

    /// The stop ladder: sends SIGTERM to the group, waits for `grace`, and kills the remaining processes.
    pub(in crate::handler) async fn stop(&mut self, grace: Duration) {
        self.ask();
        // The group is killed below, whether or not it exits within the grace.
        let _ = timeout(grace, self.exited()).await;
        self.kill().await;
    }

    /// Kills the group, and waits until the process has exited.
    pub(in crate::handler) async fn kill(&mut self) {
        self.signal_group(Signal::KILL);
        self.exited().await;
    }

    /// Signals every process of the group.
    fn signal_group(&self, signal: Signal) {
        // If the child is gone, something else reaped it, as the kernel does if SIGCHLD is ignored. The id may belong
        // to another process.
        if peek(self.id).is_ok()
            && let Err(fault) = kill_process_group(self.id, signal)
            && fault != rustix::io::Errno::SRCH
        {
            tracing::warn!(job = self.job.map(tracing::field::display), ?signal, %fault, "cannot signal the program");
        }
    }

    /// Reaps the process, which must have exited, and kills the rest of its group.
    pub(in crate::handler) fn reap(mut self) -> io::Result<ExitStatus> {
        self.signal_group(Signal::KILL);
        let mut child = self.child.take().expect("the child is taken once");
        let status = child.try_wait();
        if matches!(status, Ok(None)) {
            // It has not exited after all: the drop waits for it.
            self.child = Some(child);
        }
        status?.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
    }
}

/// Whether our child has exited, without reaping it. An error means that the process is no longer our child.
fn peek(id: Pid) -> rustix::io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    Ok(waitid(WaitId::Pid(id), options)?.is_some())
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.signal_group(Signal::KILL);
        }
        let (child, workspace, job) = (self.child.take(), self.workspace.take(), self.job);
        if child.is_none() && workspace.is_none() {
            return;
        }
        self.tasks.spawn(async move {
            // The group was killed above, so the wait is short.
            if let Some(mut child) = child
                && let Ok(Err(fault)) = off_thread(move || child.wait()).await
            {
                tracing::warn!(job = job.map(tracing::field::display), %fault, "cannot reap the program");
            }
            if let Some(workspace) = workspace {
                remove_workspace(workspace, job).await;
            }
        });
    }
}

/// Notifies of the exit of one process, without reaping it.
#[derive(Debug)]
enum ExitWatch {
    /// Not watching yet.
    None,
    /// A pidfd, which is readable when the process has exited.
    #[cfg(target_os = "linux")]
    Descriptor(AsyncFd<OwnedFd>),
    /// SIGCHLD, for the exits of all children: used if the kernel or a sandbox has no pidfds.
    AnyChild(unix::Signal),
}

impl ExitWatch {
    fn new(id: Pid) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Ok(descriptor) = rustix::process::pidfd_open(id, rustix::process::PidfdFlags::NONBLOCK) {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; an OwnedFd is open and the same for all its life"
            )]
            return Ok(Self::Descriptor(AsyncFd::with_interest(descriptor, Interest::READABLE)?));
        }
        Ok(Self::AnyChild(unix::signal(unix::SignalKind::child())?))
    }

    /// Returns when the watched process has exited. Cancel safe.
    async fn wait(&mut self, id: Pid) {
        match self {
            Self::None => unreachable!("a process is watched from the beginning"),
            // The pidfd is readable from the exit on. An error means that the runtime shuts down, and this future with
            // it.
            #[cfg(target_os = "linux")]
            Self::Descriptor(descriptor) => drop(descriptor.readable().await),
            Self::AnyChild(signals) => {
                while matches!(peek(id), Ok(false)) {
                    signals.recv().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[expect(clippy::disallowed_types, reason = "as where programs are started")]
    use std::process::Command;
    use std::{os::unix::process::CommandExt, process::Stdio};

    use super::{super::workspace::create_workspace, *};

    fn start(tasks: &Tasks) -> (Process, impl Sized + use<>) {
        let workspace = Some(create_workspace().expect("a directory"));
        #[expect(clippy::disallowed_types, reason = "as where programs are started")]
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read line; exit 7"]).process_group(0).stdin(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let stdin = child.stdin.take().expect("piped");
        (Process::new(child, workspace, tasks.clone(), Some(JobId::next())).expect("descriptors are left"), stdin)
    }

    #[tokio::test]
    async fn either_watch_sees_the_exit_and_leaves_the_reaping() {
        let tasks = Tasks::new();
        let signals = unix::signal(unix::SignalKind::child()).expect("a runtime");
        let mut any_child = Some(ExitWatch::AnyChild(signals));
        for _ in 0..2 {
            let (mut leader, stdin) = start(&tasks);
            if let Some(watch) = any_child.take() {
                leader.exit = watch;
            }
            let id = leader.id;
            assert_eq!(peek(id), Ok(false));
            let exit = async { drop(stdin) };
            tokio::join!(leader.exited(), exit);
            assert_eq!(peek(id), Ok(true), "it must be a zombie still");
            assert_eq!(leader.reap().expect("it exited").code(), Some(7));
        }
        tasks.wait().await;
    }

    #[tokio::test]
    async fn reaping_too_early_kills() {
        let tasks = Tasks::new();
        let (leader, _stdin) = start(&tasks);
        let path = leader.workspace.as_ref().expect("kept").path().to_owned();
        // The kill may or may not have taken effect when the status is asked for.
        if let Ok(status) = leader.reap() {
            assert_eq!(status.code(), None);
        }
        tasks.wait().await;
        assert!(!path.exists());
    }
}
