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
mod config;
mod connections;
mod deadlines;
mod detached;
mod drain;
mod explain;
mod factories;
mod full_pool;
mod handlers;
mod health;
mod help_examples;
mod incidents;
mod jobs;
mod library_drain;
mod limits;
mod listeners;
mod operate;
mod ops_pages;
mod ordering;
mod overload;
mod panics;
mod pool_workers;
mod process;
mod programs;
mod protocol;
mod proxies;
mod quotas;
mod readme;
mod reentry;
mod reflection;
mod refusal;
mod reload;
mod remote;
mod secrets;
mod service;
mod service_manager;
mod stats;
mod stats_rpc;
mod status_table;
mod stream_rpc;
mod streaming;
mod submit_many;
mod support;
mod tls;
mod tracing;
mod unwritable_output;
mod uploads;
mod wire;

mod workers;
