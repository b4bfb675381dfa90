//! stub
#![forbid(unsafe_code)]

pub mod app;
pub mod cli;
pub mod config;
pub mod handler;
pub mod model;
pub mod net;
pub mod phase;
pub mod pool;
pub mod rpc;
pub mod task;
pub mod telemetry;

/// The contract in `proto/waterwheel/v1`, as generated.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
pub mod proto {
    tonic::include_proto!("waterwheel.v1");

    /// The encoded descriptors, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/waterwheel.v1.bin"));
}

pub use model::{Completed, Criticality, Job, JobError, Output, Rejection, WhenFull};
pub use pool::{Pool, Pools};
