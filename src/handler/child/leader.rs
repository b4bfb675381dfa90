//! The process of a program, and everything that it started in turn.
//!
//! The program leads a process group of its own, and signals go to the group. The id of the group is the leader's
//! process id, and the kernel gives that number to nobody else for as long as the leader is not reaped: a leader that
//! has exited stays a zombie that holds it. So the one rule is **no signal after the reaping**, and the type keeps it:
//! only [`Leader`] signals, it holds the child, nothing but [`Leader::reap`] and [`Drop`] takes the child out of it, and
//! both kill the group first. Therefore the exit is watched with `WNOWAIT` and a pidfd, never by a wait that reaps.
//!
//! One SIGKILL to the group reaches every member: the kernel signals all of them under one lock, and a `fork` that
//! races with it is begun again or finds itself killed. A process that moved to another group or session is out of
//! reach; it delays nobody, for nothing waits for pipes that it holds open.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tempfile::TempDir;
#[cfg(target_os = "linux")]
use tokio::io::{Interest, unix::AsyncFd};
use tokio::signal::unix;

use super::workspace;
use crate::{
    model::JobId,
    task::{Tasks, off_thread},
};

/// A process that is not reaped. Dropping it kills its group, reaps it, and removes its workspace.
#[derive(Debug)]
pub(super) struct Leader {
    id: Pid,
    child: Option<Child>,
    workspace: Option<TempDir>,
    tasks: Tasks,
    /// The job that it was started for, where it is for one only.
    job: Option<JobId>,
}

impl Leader {
    /// Takes charge of a child that was just spawned as the leader of its own group.
    pub(super) fn new(child: Child, workspace: Option<TempDir>, tasks: Tasks, job: Option<JobId>) -> Self {
        Self { id: Pid::from_child(&child), child: Some(child), workspace, tasks, job }
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.id.as_raw_pid().cast_unsigned()
    }

    /// Signals every process of the group.
    pub(super) fn signal_group(&self, signal: Signal) {
        // No child means that somebody else reaps ours, as the kernel does where SIGCHLD is ignored: the number may
        // have a new owner.
        if self.peek().is_ok() {
            match kill_process_group(self.id, signal) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(fault) => tracing::warn!(job = self.job.map(display), ?signal, %fault, "cannot signal the program"),
            }
        }
    }

    /// Reaps the leader, which must have exited, and kills what is left of its group.
    pub(super) fn reap(mut self) -> io::Result<ExitStatus> {
        self.signal_group(Signal::KILL);
        let mut child = self.child.take().expect("the child is taken once");
        let status = child.try_wait();
        if matches!(status, Ok(None)) {
            // Not the end that the caller saw: the drop waits for it.
            self.child = Some(child);
        }
        status?.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
    }

    fn has_exited(&self) -> bool {
        !matches!(self.peek(), Ok(None))
    }

    fn peek(&self) -> rustix::io::Result<Option<()>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::Pid(self.id), options)?.map(drop))
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.signal_group(Signal::KILL);
        }
        let (child, workspace, job) = (self.child.take(), self.workspace.take(), self.job);
        if child.is_none() && workspace.is_none() {
            return;
        }
        self.tasks.spawn(async move {
            // Killed above: the wait is short.
            if let Some(mut child) = child
                && let Ok(Err(fault)) = off_thread(move || child.wait()).await
            {
                tracing::warn!(job = job.map(display), %fault, "cannot reap the program");
            }
            if let Some(workspace) = workspace {
                workspace::remove(workspace, job).await;
            }
        });
    }
}

/// Tells of the exit of one process, without reaping it.
#[derive(Debug)]
pub(super) enum ExitWatch {
    /// A descriptor that is readable when the process has exited.
    #[cfg(target_os = "linux")]
    Descriptor(AsyncFd<OwnedFd>),
    /// Told of the exits of all children: where the kernel, or a sandbox, has no such descriptors.
    AnyChild(unix::Signal),
}

impl ExitWatch {
    /// Begins to watch `leader`.
    pub(super) fn new(leader: &Leader) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Ok(descriptor) = rustix::process::pidfd_open(leader.id, rustix::process::PidfdFlags::NONBLOCK) {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; an OwnedFd is open and the same for all its life"
            )]
            return Ok(Self::Descriptor(AsyncFd::with_interest(descriptor, Interest::READABLE)?));
        }
        Ok(Self::AnyChild(unix::signal(unix::SignalKind::child())?))
    }

    /// Returns when the leader that this was made for has exited. Cancel safe.
    pub(super) async fn wait(&mut self, leader: &Leader) {
        match self {
            // It is readable from the exit on. An error means that the runtime goes away, and this future with it.
            #[cfg(target_os = "linux")]
            Self::Descriptor(descriptor) => drop(descriptor.readable().await),
            Self::AnyChild(signals) => {
                while !leader.has_exited() {
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

    use super::*;

    fn start(tasks: &Tasks) -> (Leader, impl Sized + use<>) {
        let workspace = Some(workspace::create().expect("a directory"));
        #[expect(clippy::disallowed_types, reason = "as where programs are started")]
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read line; exit 7"]).process_group(0).stdin(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let stdin = child.stdin.take().expect("piped");
        (Leader::new(child, workspace, tasks.clone(), Some(JobId::next())), stdin)
    }

    #[tokio::test]
    async fn either_watch_sees_the_exit_and_leaves_the_reaping() {
        let tasks = Tasks::new();
        let signals = unix::signal(unix::SignalKind::child()).expect("a runtime");
        let mut any_child = Some(ExitWatch::AnyChild(signals));
        for _ in 0..2 {
            let (leader, stdin) = start(&tasks);
            let mut watch = any_child.take().unwrap_or_else(|| ExitWatch::new(&leader).expect("descriptors are left"));
            assert!(!leader.has_exited());
            let exit = async { drop(stdin) };
            tokio::join!(watch.wait(&leader), exit);
            assert_eq!(leader.peek(), Ok(Some(())), "it must be a zombie still");
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
