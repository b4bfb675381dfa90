//! The `waterwheel` program. The command line is in `src/cli.rs`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Short calls allocate much for their work, and this allocator costs less CPU.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    waterwheel::cli::main()
}
