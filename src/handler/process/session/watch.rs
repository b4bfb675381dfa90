//! Watches a process, and stops it step by step.

use std::time::Duration;

use bytes::Bytes;
use tokio::{sync::mpsc, time::sleep};

use super::{Cause, Session};
use crate::handler::{
    child::Process,
    process::{
        place::millis,
        processes::KeptSlot,
        protocol::{Leave, ToWorker},
    },
};

/// Time that a process has to exit once it has closed a pipe of its messages.
const CLOSED: Duration = Duration::from_secs(1);

impl Session {
    /// Returns when the process is dead, with why.
    pub(super) async fn watch(
        &self,
        slot: &KeptSlot,
        process: &mut Process,
        mut causes: mpsc::Receiver<Cause>,
    ) -> Cause {
        let program = &slot.set.program;
        let age = program.recycle.age.unwrap_or(Duration::MAX);
        let mut has_asked = false;
        loop {
            let is_old = self.born.elapsed() >= age;
            tokio::select! {
                biased;
                () = process.exited() => return Cause::Exited,
                Some(cause) = causes.recv() => {
                    let has_closed = matches!(cause, Cause::Closed);
                    let exits = has_closed && self.exits_within(slot, process, CLOSED).await;
                    process.kill().await;
                    return if exits { Cause::Exited } else { cause };
                }
                () = slot.set.kill.cancelled() => {
                    process.kill().await;
                    return Cause::Forced;
                }
                () = self.terminate.cancelled(), if !has_asked => {
                    has_asked = true;
                    process.ask();
                }
                () = sleep(age.saturating_sub(self.born.elapsed())), if !is_old && !self.is_closed() => {}
                () = slot.wake.notified() => {}
            }
            if self.born.elapsed() >= age {
                self.close();
            }
            // What breaks the protocol also closes it.
            let is_due = self.is_closed() && self.taken() == 0 && causes.is_empty();
            if is_due || slot.is_surplus(Some(self)) {
                self.leave(slot, process).await;
                return Cause::Left;
            }
        }
    }

    /// Asks the process to leave, by a message and by the end of its input, and makes it.
    async fn leave(&self, slot: &KeptSlot, process: &mut Process) {
        let program = &slot.set.program;
        let leave = Leave { grace_ms: millis(program.ask_grace()) };
        self.send(ToWorker::Leave(leave), Bytes::new());
        self.writer.close();
        if !self.exits_within(slot, process, program.ask_grace()).await {
            process.ask();
            self.exits_within(slot, process, program.terminate_grace()).await;
        }
        process.kill().await;
    }

    async fn exits_within(&self, slot: &KeptSlot, process: &mut Process, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = process.exited() => true,
            () = slot.set.kill.cancelled() => false,
            () = sleep(time) => false,
        }
    }
}
