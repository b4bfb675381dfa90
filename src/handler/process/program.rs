//! What an operator sets for a program that stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::Duration,
};

use bytes::Bytes;

use crate::handler::{
    ExecCommand, InvalidExecCommand,
    child::{Program, for_program},
};

/// A program that an operator keeps running for jobs. It speaks the protocol of `docs/workers.md`.
///
/// It starts without a shell, as the leader of a process group of its own. Its standard input is `/dev/null`, what it
/// writes to standard output and standard error goes to the log, and messages come on descriptor 3 and leave on 4. It
/// inherits no other descriptor. It sees the variable `PATH=/usr/local/bin:/usr/bin:/bin`, then those of
/// [`env`](Self::env), and no other one.
///
/// `Debug` shows the names of the variables, and not what they are set to.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// Name, in logs and figures.
    pub name: String,
    /// Absolute path of the program.
    pub path: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Where it runs. Default `/`.
    pub directory: Option<PathBuf>,
    /// Variables that it sees besides the fixed ones.
    pub env: BTreeMap<String, String>,
    /// Kinds whose jobs it is to run: one that says otherwise when it is ready is not used.
    pub kinds: BTreeSet<String>,
    /// Jobs that one process runs at once. Default 1.
    pub jobs_per_process: usize,
    /// Time from its start until it says that it is ready. Default 10 s.
    pub start_timeout: Duration,
    /// When a process is replaced by a fresh one. Default never.
    pub recycle: Recycle,
    /// Most bytes of its output that a failure quotes. Default 2 KiB, at most 3 KiB.
    pub stderr_tail: usize,
    /// Time between asking a job to stop and killing its process. A process that is to leave has as much. Default 1 s.
    pub cancel_grace: Duration,
}

/// Bounds on the life of a process. It finishes what it runs before it is replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Recycle {
    /// Most jobs.
    pub jobs: Option<u64>,
    /// Most time since its start.
    pub age: Option<Duration>,
    /// Most resident memory of the process itself, in bytes. It is read after each job.
    pub memory: Option<u64>,
}

impl WorkerProgram {
    /// `path` with `args` as a program for `kinds`, and defaults for the rest.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        path: impl Into<PathBuf>,
        args: impl IntoIterator<Item = String>,
        kinds: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            args: args.into_iter().collect(),
            directory: None,
            env: BTreeMap::new(),
            kinds: kinds.into_iter().collect(),
            jobs_per_process: 1,
            start_timeout: Duration::from_secs(10),
            recycle: Recycle::default(),
            stderr_tail: 2 << 10,
            cancel_grace: Duration::from_secs(1),
        }
    }

    /// Everything that is wrong with the command; empty for a sound one.
    #[must_use]
    pub fn faults(&self) -> Vec<InvalidExecCommand> {
        let (env, stderr_tail) = (self.env.clone(), self.stderr_tail);
        ExecCommand { env, stderr_tail, ..ExecCommand::new(&self.path, self.args.clone()) }.faults()
    }

    /// What is started.
    pub(super) fn command(&self) -> Program {
        Program {
            path: self.path.clone(),
            args: self.args.clone(),
            variables: for_program(&self.env),
            directory: self.directory.clone(),
            workspace: false,
            input: Bytes::new(),
            messages: true,
        }
    }

    /// The last part of the grace: the process group was sent SIGTERM, and is killed at its end.
    pub(super) fn terminate_grace(&self) -> Duration {
        (self.cancel_grace / 4).min(Duration::from_millis(500))
    }

    /// The first part of the grace, in which a worker may follow by itself.
    pub(super) fn ask_grace(&self) -> Duration {
        self.cancel_grace - self.terminate_grace()
    }
}

impl fmt::Debug for WorkerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerProgram")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("args", &self.args)
            .field("directory", &self.directory)
            .field("env", &self.env.keys())
            .field("kinds", &self.kinds)
            .field("jobs_per_process", &self.jobs_per_process)
            .field("start_timeout", &self.start_timeout)
            .field("recycle", &self.recycle)
            .field("stderr_tail", &self.stderr_tail)
            .field("cancel_grace", &self.cancel_grace)
            .finish()
    }
}
