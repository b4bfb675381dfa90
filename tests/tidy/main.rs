//! The conventions of this repository as tests. Each rule reports all violations, with their places and the remedy.
//! Each has a unit test with a small violating sample, which shows that the rule can fail.
//!
//! The table below defines the layers. A new top-level module needs a line there.

#![forbid(unsafe_code)]

mod commands;
mod layering;
mod names;
mod paths;
mod size;
mod sleeps;
mod tree;
mod words;

use layering::Layer;
use tree::{Tree, Violation, assert_none, repository};

/// The modules that each top-level module of `src/` may import. `wire` also allows tonic, prost, hyper, http and the
/// generated `proto`.
const LAYERS: &[Layer] = &[
    Layer { name: "model", imports: "", wire: false },
    Layer { name: "phase", imports: "", wire: false },
    Layer { name: "proto", imports: "model", wire: true },
    Layer { name: "task", imports: "", wire: false },
    Layer { name: "file", imports: "", wire: false },
    Layer { name: "memory", imports: "", wire: false },
    Layer { name: "incidents", imports: "", wire: false },
    Layer { name: "reload", imports: "task file", wire: false },
    Layer { name: "auth", imports: "model reload file incidents", wire: false },
    Layer { name: "handler", imports: "model task", wire: false },
    Layer { name: "scheduler", imports: "model", wire: false },
    Layer { name: "pool", imports: "model scheduler handler phase task incidents", wire: false },
    // Detached jobs outlive their calls and their process.
    Layer { name: "store", imports: "file model task", wire: false },
    Layer { name: "detached", imports: "model handler pool store task", wire: false },
    Layer { name: "monitor", imports: "model handler pool store detached", wire: false },
    Layer { name: "sim", imports: "model scheduler", wire: false },
    // Log lines of handlers name their job.
    Layer { name: "telemetry", imports: "model handler phase task file incidents", wire: false },
    Layer {
        name: "rpc",
        imports: "memory model handler pool store detached monitor phase task auth incidents",
        wire: true,
    },
    Layer { name: "net", imports: "memory model phase task reload file incidents", wire: true },
    Layer {
        name: "ops",
        imports: "memory model pool detached monitor phase task incidents telemetry rpc net",
        wire: true,
    },
    // Its options are the components' own config types.
    Layer {
        name: "config",
        imports: "model phase handler pool detached telemetry auth memory rpc net ops store",
        wire: false,
    },
    // Only for tests and fuzzers.
    Layer { name: "fuzzing", imports: "auth config net rpc handler", wire: false },
    Layer { name: "app", imports: "all", wire: true },
    Layer { name: "cli", imports: "all", wire: true },
];

fn check(rule: impl Fn(&Tree) -> Vec<Violation>) {
    assert_none(&rule(&repository()));
}

#[test]
fn layers_import_only_lower_layers() {
    check(|tree| layering::violations(tree, LAYERS));
}

#[test]
fn files_and_functions_fit_their_limits() {
    check(size::violations);
}

#[test]
fn file_names_describe_a_role() {
    check(names::vague);
}

#[test]
fn repeated_names_are_unique_within_their_module() {
    check(names::repeated);
}

#[test]
fn named_paths_exist() {
    check(paths::violations);
}

#[test]
fn named_commands_exist() {
    check(commands::violations);
}

#[test]
fn text_does_not_mention_its_history() {
    check(words::violations);
}

#[test]
fn tests_do_not_sleep_to_wait() {
    check(sleeps::violations);
}
