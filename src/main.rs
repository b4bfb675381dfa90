//! The `waterwheel` program. The command line is in `src/cli.rs`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Short calls mostly allocate memory, and this allocator uses less CPU time.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    waterwheel::cli::main()
}
