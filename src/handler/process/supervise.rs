//! Keeps one process running: starts it, watches it, stops it step by step, and restarts it with a back-off.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::sleep};
use tracing::{info, warn};

use super::{
    process_set::Supervisor,
    session::{Cause, Session, SessionEnd},
};
use crate::{
    handler::{
        back_off,
        child::{Child, Process, end, quoting},
        protocol::ToWorker,
    },
    model::ProgramEnd,
    task::Tasks,
};

/// Time that a process has to exit after it has closed one of its message pipes.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Unplanned end of a process.
struct Failure {
    summary: String,
    /// Whether the process had started well. Its jobs are then the cause of its end, and not the program.
    has_started: bool,
}

/// Keeps one process of the set running: starts a new one after each exit, until there are more processes than wanted,
/// or all are killed.
pub(super) async fn supervise(supervisor: Supervisor, tasks: Tasks) {
    keep(&supervisor, &tasks).await;
    let set = Arc::clone(&supervisor.set);
    drop(supervisor);
    // Only one process is replaced at a time, so the next old one may have waited for the end of this one.
    set.renew();
}

/// Runs one process after the other. After failures in succession, each restart waits longer.
async fn keep(supervisor: &Supervisor, tasks: &Tasks) {
    let mut failures: u32 = 0;
    loop {
        let wait = match live(supervisor, tasks).await {
            // It left as asked, or was killed because it did not leave: neither is a failure of the program.
            Ok(()) => {
                failures = 0;
                Duration::ZERO
            }
            Err(Failure { summary, has_started }) => {
                failures = if has_started { 0 } else { failures + 1 };
                // After the first failure, the restart is immediate.
                let wait = failures.checked_sub(2).map_or(Duration::ZERO, back_off);
                supervisor.failed(&summary, has_started, wait);
                let restart_ms = wait.as_millis();
                let program = &supervisor.set.name;
                warn!(%program, restart_ms, failures, cause = summary, "a process of a program failed");
                wait
            }
        };
        // Between two processes there is no session. A sequence whose starts fail must end as well.
        let becomes_surplus = async {
            while !supervisor.is_surplus(None) {
                supervisor.wake.notified().await;
            }
        };
        tokio::select! {
            biased;
            () = supervisor.set.kill.cancelled() => return,
            () = becomes_surplus => return,
            () = sleep(wait) => {}
        }
    }
}

/// One life of a process: starts it and runs its jobs, until it is dead and all its output is read.
async fn live(supervisor: &Supervisor, tasks: &Tasks) -> Result<(), Failure> {
    supervisor.starts();
    let program = &supervisor.set.program;
    let started = program.command().start(tasks, None).await;
    let child = started.map_err(|error| Failure { summary: error.to_string(), has_started: false })?;
    let Child { mut process, input: _, stdout, stderr, messages } = child;
    let pid = process.pid();
    info!(program = %supervisor.set.name, pid, "a process of a program starts");
    let (session, causes) = Session::new(&supervisor.set, pid, messages.expect("a worker program has message pipes"));
    // The process is watched while it starts, runs jobs and writes output. When it has exited, `ended` ends the rest.
    let watch = async {
        let cause = session.watch(supervisor, &mut process, causes).await;
        session.ended.cancel();
        cause
    };
    let write_rest = async {
        if let Some(Err(_)) = session.ended.run_until_cancelled(session.writer.write_rest()).await {
            session.tell(Cause::Closed);
        }
    };
    let (cause, (), (), (), ()) = tokio::join!(
        watch,
        session.begin(supervisor),
        write_rest,
        session.log(supervisor, "stdout", stdout),
        session.log(supervisor, "stderr", stderr),
    );
    session.conclude(supervisor, process, cause)
}

impl Session {
    /// Waits until the process has exited, and ends it if it must go. Returns the cause of its end.
    async fn watch(&self, supervisor: &Supervisor, process: &mut Process, mut causes: mpsc::Receiver<Cause>) -> Cause {
        let mut has_asked = false;
        loop {
            // Once the process is due by its age, it waits for its successor: no timer is needed.
            let left = self.age_left().filter(|left| !left.is_zero());
            tokio::select! {
                biased;
                Some(cause) = causes.recv() => {
                    // A process that exits also closes its pipes. If it exits soon, that is the cause.
                    let has_closed = matches!(cause, Cause::Closed);
                    let exits = has_closed && self.exits_within(supervisor, process, EXIT_TIMEOUT).await;
                    process.kill().await;
                    return if exits { Cause::Exited } else { cause };
                }
                () = process.exited() => return Cause::Exited,
                () = supervisor.set.kill.cancelled() => {
                    process.kill().await;
                    return Cause::Forced;
                }
                () = self.must_exit.cancelled(), if !has_asked => {
                    has_asked = true;
                    process.ask();
                }
                () = sleep(left.unwrap_or_default()), if left.is_some() => {}
                () = supervisor.wake.notified() => {}
            }
            if self.is_due() {
                supervisor.set.renew();
            }
            // The session is closed and has no job left. If a fault has closed it, the next turn receives the cause.
            let is_idle = self.is_closed() && self.taken() == 0 && causes.is_empty();
            if is_idle || supervisor.is_surplus(Some(self)) {
                self.leave(supervisor, process).await;
                return Cause::Left;
            }
        }
    }

    /// Asks the process to leave, by a message and by closing its input, and kills it if it does not.
    async fn leave(&self, supervisor: &Supervisor, process: &mut Process) {
        let program = &supervisor.set.program;
        self.send(ToWorker::leave(program.ask_grace()), Bytes::new());
        self.writer.close();
        if !self.exits_within(supervisor, process, program.ask_grace()).await {
            process.ask();
            self.exits_within(supervisor, process, program.terminate_grace()).await;
        }
        process.kill().await;
    }

    /// Whether the process exits within `time`. False at once if all processes are killed.
    async fn exits_within(&self, supervisor: &Supervisor, process: &mut Process, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = process.exited() => true,
            () = supervisor.set.kill.cancelled() => false,
            () = sleep(time) => false,
        }
    }

    /// Records how the process ended, which ends its remaining jobs. An end that was not asked for is a failure.
    fn conclude(&self, supervisor: &Supervisor, process: Process, cause: Cause) -> Result<(), Failure> {
        let program = &supervisor.set.program;
        self.close();
        let status = process.reap();
        let tail = self.tail.lock();
        let exit = status.map_or_else(
            |fault| ProgramEnd { summary: format!("its exit status is lost: {fault}"), ..ProgramEnd::default() },
            |status| end(Path::new(&program.name), status, &tail),
        );
        let name = &program.name;
        let summary = match &cause {
            Cause::Exited | Cause::Left => exit.summary.clone(),
            Cause::Closed => format!("{name} closed descriptor 3 or 4, and was ended"),
            Cause::Fault(fault) => format!("{name} broke the protocol, and was ended: {fault}"),
            Cause::Unfit(why) => format!("{name} {why}"),
            Cause::NotReady => {
                let limit = program.start_timeout.as_millis();
                format!("{name} did not say that it is ready within {limit} ms, and was ended")
            }
            Cause::Forced => format!("{name} was ended because one of its jobs did not stop"),
        };
        let summary = self.blocked().map_or_else(|| summary.clone(), |blocked| format!("{summary}: {blocked}"));
        // The culprit is one of the running jobs. After `Forced` it is a job that was removed before.
        let culprits = usize::from(!matches!(cause, Cause::Forced));
        let was_shared = self.running() > culprits;
        let _ = self.end.set(SessionEnd { program: ProgramEnd { summary: summary.clone(), ..exit }, was_shared });
        match cause {
            Cause::Left => {
                info!(program = name, pid = self.pid, jobs = self.answered(), "a process of a program left");
                Ok(())
            }
            _ => {
                let summary = quoting(summary, &tail, program.stderr_tail);
                Err(Failure { summary, has_started: self.has_started() })
            }
        }
    }
}
