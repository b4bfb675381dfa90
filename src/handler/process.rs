//! Workers in any language: a program that stays, and runs one job after the other.
//!
//! [`WorkerProgram`] says what runs. The handlers of all its kinds in one pool share its [`Processes`], each with a place for
//! one job or more. A process belongs to one task (`keeper`), which starts it, and again after its end; one life of it is a
//! [`session`]. They speak the [`protocol`]. A handler takes a [`place`]. It writes its job to the pipe of the process, and
//! reads the answer from the other one, both on its own thread: no message crosses threads.

use std::sync::Arc;

use super::{Context, Handler, Kind};
use crate::model::{HandlerError, Job, Output};

#[cfg(any(test, fuzzing))]
#[path = "process/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod keeper;
mod place;
mod processes;
mod program;
pub(crate) mod protocol;
mod reading;
mod session;
mod writing;

pub use processes::{ProcessState, ProcessStats, Processes, ProgramStats};
pub use program::{Recycle, WorkerProgram};

/// Hands each job to a process that has a place for it.
struct WorkerHandler {
    processes: Arc<Processes>,
}

impl Handler for WorkerHandler {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        loop {
            let mut place = self.processes.place(&cx).await?;
            // A process that has just ended takes none.
            if place.begin(&job, &cx).is_some() {
                drop(job);
                return place.follow(&cx).await;
            }
        }
    }
}

impl Processes {
    /// A kind called `name` whose jobs these processes run.
    #[must_use]
    pub fn kind(self: &Arc<Self>, name: &str) -> Kind {
        let processes = Arc::clone(self);
        Kind::new(name, move || WorkerHandler { processes: Arc::clone(&processes) }).run_by(Arc::clone(self))
    }
}
