//! gRPC: from calls to jobs and back, one file for each RPC.
//!
//! [`Edge`] stands in front of all services: it fixes the instant of arrival, names the request, and hands the call
//! to its service. [`context`] turns metadata into the model, [`convert`] messages, [`status`] errors.

mod admin;
mod context;
mod convert;
mod edge;
mod framing;
mod guard;
mod health;
mod message;
pub mod propagate;
mod services;
mod stats;
mod status;
mod stream;
mod stream_limit;
mod submit;
mod submit_many;
pub mod timeout;
pub mod trace;
mod upload;
mod worker_pool;

pub use admin::{Admin, DrainControl, DrainProgress};
pub use context::Arrival;
pub use edge::Edge;
pub use guard::Guard;
pub use health::Health;
pub use services::{Limits, ops_services, public_services};
pub use stream_limit::stream_limit;
pub use upload::UploadLimits;
pub use worker_pool::WorkerPool;
