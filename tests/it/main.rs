//! The promises of the service, one file each.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test's tasks end with its runtime, and a failed step is the failure of the test"
)]

mod accounting;
mod attack;
mod auth;
mod cancel;
mod cancel_rpc;
mod command_line;
mod connections;
mod deadlines;
mod detached;
mod drain;
mod handlers;
mod health;
mod help_examples;
mod incident;
mod jobs;
mod json;
mod library_drain;
mod limits;
mod listeners;
mod logs;
mod malformed;
mod operate;
mod ops_pages;
mod otlp_metrics;
mod page_for_people;
mod panics;
mod pool_workers;
mod process;
mod programs;
mod promises;
mod protocol;
mod queue;
mod readme;
mod refusal;
mod reload;
mod remote;
mod reservation;
mod running_jobs;
mod server_output;
mod service;
mod service_manager;
mod stats;
mod status_table;
mod stream_rpc;
mod streaming;
mod submit_many;
mod support;
mod tls;
mod tools;
mod tracing;
mod wire;
