//! gRPC: turns calls into jobs and outcomes into answers. Each RPC has a file.
//!
//! [`Edge`] handles a call before its service: it records the arrival, chooses the request id, and routes the call.
//! [`context`] converts metadata, [`convert`] messages, and [`status`] errors.

mod admin;
mod answer_body;
mod attach;
mod browsers;
mod calls;
mod catalog;
mod context;
mod convert;
mod cut;
mod edge;
mod framing;
#[cfg(any(test, fuzzing))]
#[path = "rpc/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod grpc_only;
mod guard;
mod health;
mod hosts;
mod jobs;
mod load;
mod message_stream;
mod orca;
pub mod propagate;
mod reflection;
mod services;
mod single_message;
mod stats;
mod status;
mod status_message;
mod stream;
mod submit;
mod submit_many;
pub mod timeout;
pub mod trace;
mod upload;
mod watches;
pub(crate) mod worker_messages;
mod worker_pool;

pub use admin::{Admin, DrainControl, DrainProgress, ReloadFault, SettingChange};
pub use browsers::Browsers;
pub use calls::{CallDurations, Calls};
pub use context::Arrival;
pub use edge::{Edge, Front};
pub use guard::Guard;
pub use health::Health;
pub use hosts::Hosts;
pub use jobs::detached_job;
pub use load::Load;
pub use orca::Orca;
pub use services::{Limits, Pages, PublicServices, ops_services, public_services};
pub use timeout::stream_limit;
pub use watches::Watches;
pub use worker_pool::{Parts, WorkerPool};
