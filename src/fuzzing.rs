//! Fuzz targets for every parser of external bytes, with checks of the results.
//!
//! They exist only in tests and fuzzers, and may use private items. `tests/fuzz/run.sh` searches for failing inputs.
//! `tests/fuzz/corpus.txt` has useful inputs, which the test below replays.

use crate::auth::fuzzing::{authorization, jwks, jwt};
use crate::config::fuzzing::{config, overlay, quantity};
use crate::handler::protocol::tests::worker;
use crate::net::fuzzing::proxy;
use crate::rpc::fuzzing::{grpc_timeout, job, json, metadata, request_id, trace};

/// A function that a fuzzer calls.
pub type Target = fn(&[u8]);

/// All targets, by their name in the corpus.
pub const TARGETS: [(&str, Target); 14] = [
    ("authorization", authorization),
    ("config", config),
    ("grpc_timeout", grpc_timeout),
    ("job", job),
    ("json", json),
    ("jwks", jwks),
    ("jwt", jwt),
    ("metadata", metadata),
    ("overlay", overlay),
    ("proxy", proxy),
    ("quantity", quantity),
    ("request_id", request_id),
    ("trace", trace),
    ("worker", worker),
];

/// The corpus of a target: lines of the target, a name and hexadecimal digits.
#[cfg(test)]
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let byte = |at: &[u8]| u8::from_str_radix(str::from_utf8(at).expect("ASCII"), 16).expect("two digits");
    let input = |line: &str| {
        let (name, digits) = line.split_once(' ').unwrap_or((line, ""));
        (name.to_owned(), digits.as_bytes().chunks(2).map(byte).collect())
    };
    let lines = include_str!("../tests/fuzz/corpus.txt").lines();
    lines.filter_map(|line| line.strip_prefix(target)?.strip_prefix(' ')).map(input).collect()
}

#[test]
fn inputs_that_were_kept_pass() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(inputs.len() > 3, "{name} has {} inputs", inputs.len());
        for (input, bytes) in inputs {
            // A panic is preceded by the name of the input, which the test runner shows then.
            println!("{name}/{input}");
            target(&bytes);
        }
    }
}
