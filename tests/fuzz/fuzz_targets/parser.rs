//! Fuzzes the parser that the variable `FUZZ_TARGET` names.

#![no_main]

use std::sync::LazyLock;

use waterwheel::fuzzing::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET is the name of a parser");
    TARGETS.iter().find(|target| target.0 == name).expect("FUZZ_TARGET is the name of a parser").1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
