//! gRPC: from calls to jobs and back, one file for each RPC.
//!
//! [`Edge`] stands in front of all services: it fixes the instant of arrival, names the request, and hands the call
//! to its service. [`context`] turns metadata into the model, [`convert`] messages, [`status`] errors.

mod admin;
mod browsers;
mod calls;
mod catalog;
mod context;
mod convert;
mod edge;
mod form;
mod framing;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod guard;
mod health;
mod hosts;
mod load;
mod message;
mod messages;
mod orca;
pub mod propagate;
mod reflection;
mod services;
mod single;
mod stats;
mod status;
mod stream;
mod stream_limit;
mod submit;
mod submit_many;
mod telling;
pub mod timeout;
pub mod trace;
mod upload;
mod watches;
mod worker_pool;

pub use admin::{Admin, DrainControl, DrainProgress, ReloadFault, SettingChange};
pub use browsers::Browsers;
pub use calls::{CallDurations, Calls};
pub use context::Arrival;
pub use edge::{Edge, Front};
pub use guard::Guard;
pub use health::Health;
pub use hosts::Hosts;
pub use load::Load;
pub use orca::Orca;
pub use services::{Limits, Pages, PublicServices, ops_services, public_services};
pub use stream_limit::stream_limit;
pub use watches::Watches;
pub use worker_pool::{Parts, WorkerPool};
