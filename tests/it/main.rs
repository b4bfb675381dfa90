//! The promises of the service, one file each.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test's tasks end with its runtime, and a failed step is the failure of the test"
)]

mod command_line;
mod config;
mod help_examples;
mod process;
mod refusal;
mod service;
mod status_table;
