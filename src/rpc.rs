//! gRPC: turns calls into jobs, and outcomes into answers. Each RPC, or a few similar ones, has a file. A new RPC needs
//! a method of its service in `worker_pool.rs`, `admin.rs` or `jobs.rs`, and a row in `src/auth/rule.rs`.
//!
//! [`Edge`] handles a call before its service does: it records the arrival, chooses the request id, and routes the
//! call. [`context`] converts metadata, [`convert`] converts messages, and [`status`] converts errors.

mod admin;
pub(crate) mod attach;
mod calls;
mod context;
mod convert;
mod edge;
mod framing;
#[cfg(any(test, fuzzing))]
#[path = "rpc/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod guard;
mod health;
mod jobs;
mod load;
mod message_stream;
pub mod propagate;
mod reflection;
mod services;
mod stats;
mod status;
mod status_message;
mod submit;
mod submit_many;
pub mod timeout;
pub mod trace;
mod upload;
mod watches;
mod worker_pool;

pub use admin::{Admin, DrainControl, DrainProgress, ReloadFault, SettingChange};
pub use calls::{CallDurations, Calls};
pub use context::Arrival;
pub use edge::{Browsers, Edge, Front, Hosts};
pub use guard::Guard;
pub use health::Health;
pub use jobs::detached_job;
pub use load::{Load, Orca};
pub use services::{Pages, PublicServices, ops_services, public_services};
pub use timeout::stream_limit;
pub use watches::Watches;
pub use worker_pool::{Parts, WorkerPool};
