//! A worker pool, for any work whose load must be limited: a bounded queue, bounded workers, deadlines that are kept,
//! one outcome for each job, and a drain that loses none.
//!
//! The program `waterwheel` serves pools over gRPC, as a file configures them. This library offers them to Rust
//! programs. A pool in a process needs no default features:
//! `waterwheel = { version = "0.1", default-features = false }`.
//!
//! ```
//! use std::{error::Error, time::Duration};
//! use waterwheel::{Job, Pool, handler::Kind};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let double = Kind::from_fn("double", async |job, _cx| {
//!         let number: u64 = std::str::from_utf8(&job.payload)?.parse()?;
//!         Ok((2 * number).to_string())
//!     });
//!     let pool = Pool::builder("numbers").queue_jobs(100).kind(double).build();
//!     let done = pool.submit(Job::new("double", "21").timeout(Duration::from_secs(1))).await?;
//!     assert_eq!(done.output.bytes, "42");
//!     let refused = pool.submit(Job::new("double", "many")).await.unwrap_err();
//!     assert_eq!(refused.to_string(), "invalid digit found in string");
//!     Ok(())
//! }
//! ```
//!
//! | module | role |
//! |---|---|
//! | [`model`] | plain data: job, deadline, outcome, rejection |
//! | [`handler`] | the code that runs jobs, and its view of them: closures, types with a state, programs |
//! | [`pool`] | pools: submission, streams, drain, stats |
//! | `app`, `cli` | with the feature `server`: a service of one's own over gRPC |
//! | `config`, `telemetry` | its file, environment and flags; its logs and traces |
//! | `proto`, `rpc` | its contract; what handlers pass on to the services that they call |
//!
//! `docs/rust.md` in the repository has more, and `docs/architecture.md` the path of a job.

#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "server"), expect(dead_code, reason = "the service uses the rest"))]

#[cfg(feature = "server")]
pub mod app;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod auth;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod detached;
#[cfg(feature = "server")]
mod file;
#[cfg(all(feature = "server", any(test, fuzzing)))]
#[doc(hidden)]
pub mod fuzzing;
pub mod handler;
mod incidents;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod memory;
pub mod model;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod net;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod ops;
#[doc(hidden)]
pub mod phase;
pub mod pool;
#[cfg(feature = "server")]
pub mod proto;
#[cfg(feature = "server")]
mod reload;
#[cfg(feature = "server")]
pub mod rpc;
mod scheduler;
#[cfg(feature = "server")]
mod sim;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod task;
#[cfg(feature = "server")]
pub mod telemetry;

pub use model::{Completed, Criticality, Job, JobError, Output, Rejection, WhenFull};
pub use pool::{Pool, Pools};

/// Runs the example of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
pub struct Readme;
