//! A gRPC worker pool, for any work whose load must be limited.
//!
//! The program `waterwheel` serves pools that a file configures. This library offers the same parts to Rust programs: a
//! [`Pool`] needs neither gRPC nor a file.
//!
//! ```
//! use waterwheel::{Job, Output, Pool, handler::{BlockingHandler, Context, Kind}, model::HandlerError};
//!
//! /// Counts the words that its worker has seen.
//! #[derive(Default)]
//! struct Words(usize);
//!
//! impl BlockingHandler for Words {
//!     fn handle(&mut self, job: Box<Job>, _cx: Context) -> Result<Output, HandlerError> {
//!         let text = std::str::from_utf8(&job.payload).map_err(|_| HandlerError::invalid("send UTF-8"))?;
//!         self.0 += text.split_whitespace().count();
//!         Ok(Output::new(self.0.to_string()))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::builder("text").kind(Kind::blocking("words", Words::default)).build();
//! let counted = pool.submit(Job::new("words", "one two three")).await?;
//! assert_eq!(counted.output.bytes, "3");
//!
//! pool.drain();
//! assert!(pool.submit(Job::new("words", "four")).await.is_err());
//! pool.wait().await;
//! assert!(pool.is_drained());
//! # Ok(())
//! # }
//! ```
//!
//! # The path of a job
//!
//! ```text
//! wire in ─▶ net ─▶ rpc ─▶ admission ─▶ queue ─▶ worker ─▶ attempt ─▶ outcome ─▶ rpc ─▶ wire out
//! ```
//!
//! | module | role |
//! |---|---|
//! | [`model`] | plain data: job, deadline, outcome, rejection |
//! | [`handler`] | the code that runs jobs, and its view of them |
//! | `scheduler` | the state machine of a pool: admission, queue, limits, workers |
//! | [`pool`] | tasks and threads around it: submission, attempts, drain, stats |
//! | [`store`], [`detached`] | jobs that outlive their calls: their store, and their runs |
//! | [`rpc`] | from calls to jobs and back |
//! | [`net`] | listener and connections |
//! | [`ops`] | pages for operators: probes, metrics, running jobs |
//! | [`phase`], [`task`] | the phase of a process; the only module that spawns |
//! | [`telemetry`], [`config`] | logs and traces; the file, the environment and the flags |
//! | [`app`], [`cli`] | the composition root; the command line |

#![forbid(unsafe_code)]

pub mod app;
pub mod auth;
pub mod cli;
pub mod config;
pub mod detached;
pub mod file;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod handler;
mod incidents;
pub mod memory;
pub mod model;
pub mod net;
pub mod ops;
pub mod phase;
pub mod pool;
pub mod proto;
pub mod reload;
pub mod rpc;
mod scheduler;
mod sim;
pub mod store;
pub mod task;
pub mod telemetry;

pub use model::{Completed, Criticality, Job, JobError, Output, Rejection, WhenFull};
pub use pool::{Pool, Pools};

/// Runs the example of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
pub struct Readme;
