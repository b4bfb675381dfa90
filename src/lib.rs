//! A worker pool, for any work whose load must be limited: a bounded queue, bounded workers, deadlines that are kept,
//! one outcome for each job, and a drain that loses none.
//!
//! The program `waterwheel` serves pools over gRPC, as a file configures them. This library offers them to Rust
//! programs. A pool in a process needs no default features, but a runtime of Tokio:
//!
//! ```toml
//! waterwheel = { version = "0.1", default-features = false }
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! ```
//! use std::{error::Error, num::NonZeroUsize, time::Duration};
//! use waterwheel::{Job, Pool, handler::Kind};
//!
//! const WORKERS: NonZeroUsize = NonZeroUsize::new(4).unwrap();
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let double = Kind::from_fn("double", async |job, _cx| {
//!         let number: u64 = std::str::from_utf8(&job.payload)?.parse()?;
//!         Ok((2 * number).to_string())
//!     });
//!     let pool = Pool::builder("numbers").workers(WORKERS).queue_jobs(100).kind(double).build();
//!     let done = pool.submit(Job::new("double", "21").timeout(Duration::from_secs(1))).await?;
//!     assert_eq!(done.output.bytes, "42");
//!     let refused = pool.submit(Job::new("double", "many")).await.unwrap_err();
//!     assert_eq!(refused.to_string(), "invalid digit found in string");
//!     Ok(())
//! }
//! ```
//!
//! [`Pool::submit`] admits the job at once, but the job starts only when its future is polled. Until then, an admitted
//! job may hold a worker that does nothing. So for several jobs at once, spawn each future (`tokio::spawn`) or poll
//! them together (`join_all`): to collect them and await one after the other runs one job at a time.
//!
//! | module | role |
//! |---|---|
//! | [`model`] | plain data: job, deadline, outcome, rejection |
//! | [`handler`] | the code that runs jobs, and its view of them: closures, types with a state, programs |
//! | [`pool`] | pools: submission, streams, drain, stats |
//! | `app`, `cli` | with the feature `server`: a service of one's own over gRPC |
//! | `config`, `telemetry` | the service's configuration, from its file, environment and flags; its logs and traces |
//! | `proto`, `rpc` | the service's contract; the headers that a handler passes on to the services that it calls |
//!
//! `docs/rust.md` in the repository has more, and `docs/architecture.md` the path of a job.

#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "server"), expect(dead_code, reason = "without `server`, some of the library is unused"))]

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
pub mod monitor;
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
