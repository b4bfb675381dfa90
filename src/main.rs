//! The `waterwheel` program: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    waterwheel::cli::main()
}
