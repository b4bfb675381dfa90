//! What runs jobs: the traits that handlers implement, what they see of their job, and the kinds that are built in.
//!
//! A kind is one [`Kind`]: a name, options, and a factory that makes one handler for each worker. The worker keeps it
//! from job to job and makes a new one after a panic or a forced stop.
//!
//! A way of running jobs beside `builtin`, `exec`, `program` and `remote` is a file here, a variant of `Handler` in
//! `src/config/model.rs`, its keys in `src/config/keys.rs`, and a line of `make` in `src/app/assemble.rs`.

mod builtin;
mod cancel;
mod child;
mod context;
mod exec;
mod kind;
mod output;
pub(crate) mod process;
pub(crate) mod remote;
mod trace;
pub(crate) mod unwind;

pub use builtin::Builtin;
pub use cancel::{CancelToken, StopReason};
pub use context::{Context, ContextParts, RunStart, Runner, Site};
pub use exec::{ExecCommand, InvalidExecCommand};
pub use kind::{AsyncInstance, AsyncRun, BlockingHandler, BlockingInstance, Handler, Instance, Kind, KindOptions};
pub use output::{Event, OutputClosed, OutputSink};
pub use process::{ProcessState, ProcessStats, Processes, ProgramStats, Recycle, WorkerProgram};
pub use remote::{AttachedWorkerStats, NewWorker, RemoteWorkers};
