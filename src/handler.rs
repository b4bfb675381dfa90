//! The handler traits, what a handler sees of its job, and the built-in kinds.
//!
//! A [`Kind`] is a name, options, and a factory that makes one handler for each worker. The worker reuses its handler,
//! and makes a new one after a panic or a forced stop.
//!
//! Besides `builtin`, `exec`, `program` and `remote`, another way of running jobs needs a file here, a variant of
//! `Handler` in `src/config/model.rs`, keys in `src/config/keys_and_defaults.rs`, a variant in `src/config/handler.rs`, and a line
//! of `make` in `src/app/assemble.rs`.

mod builtin;
mod child;
mod commands;
mod context;
mod exec;
mod output;
mod process;
pub(crate) mod protocol;
pub(crate) mod remote;
mod run;
#[cfg(test)]
mod tests;
mod trace;
mod traits;
mod worker_job;

pub use builtin::Builtin;
pub use commands::{ExecCommand, InvalidExecCommand, Recycle, WorkerProgram};
pub use context::{Context, ContextParts, Site};
pub use output::{Event, OutputSink};
pub use process::{ProcessState, ProcessStats, Processes, ProgramStats};
pub use remote::{AttachedWorkerStats, NewWorker, RemoteWorkers};
pub use run::{RunStart, Runner, StopReason};
pub use traits::{AsyncInstance, AsyncRun, BlockingHandler, Handler, Instance, Kind, KindOptions};
pub(crate) use traits::{Contained, contain, panic_message};
