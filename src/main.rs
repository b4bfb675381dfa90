//! The `waterwheel` program: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// A short call allocates much for what it does; this allocator takes some CPU off each.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    waterwheel::cli::main()
}
