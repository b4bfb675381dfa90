//! gRPC: turns calls into jobs, and outcomes into answers. Each RPC, or a few similar ones, has a file. A new RPC needs
//! a method in the file of its service (`*_service.rs`), and a row in `src/auth/rule.rs`. One whose callers stream also
//! needs a case in `edge.rs`.
//!
//! [`Edge`] handles a call before its service does: it records the arrival, chooses the request id, and routes the
//! call. [`context`] converts metadata, [`convert`] converts messages, and [`status`] converts errors.

mod access_control;
mod admin_service;
mod calls;
mod context;
mod convert;
mod edge;
mod external_scaler;
#[cfg(any(test, fuzzing))]
#[path = "rpc/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod health;
mod job_service;
mod load;
mod message_stream;
pub mod openapi;
pub mod propagate;
mod recent;
mod reflection;
mod routes;
mod service_state;
mod stats;
mod status;
mod status_message;
mod submit_many;
pub mod timeout;
pub mod trace;
mod upload;
mod watches;
mod worker_pool_service;
pub(crate) mod worker_service;

pub use access_control::AccessControl;
pub use admin_service::{Admin, DrainControl, DrainProgress, DryRun, ReloadFault, SettingChange};
pub use calls::{CallDurations, Calls};
pub use context::Arrival;
pub use convert::detached_job;
pub use edge::{Browsers, Edge, Front, Hosts, Work};
pub use health::Health;
pub use load::Load;
pub use routes::{Pages, ops_services, public_services};
pub use service_state::{CallerServices, ServiceState};
pub use timeout::stream_limit;
pub use watches::Watches;
