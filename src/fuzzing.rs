//! Every parser of outside bytes as a function of bytes, with what must hold of its result.
//!
//! It exists in tests and under a fuzzer only, where it may see what is private. `tests/fuzz/run.sh` looks for inputs
//! that break a function; what is worth keeping of them is in `tests/fuzz/corpus`, which the test below replays.

pub use crate::auth::fuzzing::{authorization, jwks, jwt};
pub use crate::config::fuzzing::{config, overlay, quantity};
pub use crate::net::fuzzing::proxy;
pub use crate::rpc::fuzzing::{grpc_timeout, job, metadata, request_id, trace};

/// A function that a fuzzer calls.
#[cfg(test)]
type Target = fn(&[u8]);

/// All of them, by the name of the directory that holds their inputs.
#[cfg(test)]
const TARGETS: [(&str, Target); 12] = [
    ("authorization", authorization),
    ("config", config),
    ("grpc_timeout", grpc_timeout),
    ("job", job),
    ("jwks", jwks),
    ("jwt", jwt),
    ("metadata", metadata),
    ("overlay", overlay),
    ("proxy", proxy),
    ("quantity", quantity),
    ("request_id", request_id),
    ("trace", trace),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::TARGETS;

    #[test]
    fn inputs_that_were_kept_pass() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
        for (name, target) in TARGETS {
            let program = tests.join("fuzz_targets").join(name).with_extension("rs");
            assert!(program.is_file(), "no fuzzer calls {name}");
            let inputs = std::fs::read_dir(tests.join("corpus").join(name)).expect(name);
            let inputs: Vec<_> = inputs.map(|entry| entry.unwrap().path()).collect();
            assert!(inputs.len() > 3, "{name} has {} inputs", inputs.len());
            for input in inputs {
                // A panic is preceded by the name of the input, which the test runner shows then.
                println!("{}", input.display());
                target(&std::fs::read(&input).unwrap());
            }
        }
        let programs = std::fs::read_dir(tests.join("fuzz_targets")).unwrap().count();
        assert_eq!(programs, TARGETS.len(), "a fuzzer is missing here");
    }
}
