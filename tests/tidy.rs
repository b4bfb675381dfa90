//! The conventions of this repository as tests. Each rule reports all violations, with their places and the remedy.
//! Each has a unit test with a small violating sample, which shows that the rule can fail.
//!
//! The table below defines the layers. A new top-level module needs a line there.

#![forbid(unsafe_code)]

#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/layering.rs"]
mod layering;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/repeated_names.rs"]
mod repeated_names;
#[path = "tidy/report.rs"]
mod report;
#[path = "tidy/size.rs"]
mod size;
#[path = "tidy/sleeps.rs"]
mod sleeps;
#[path = "tidy/tree.rs"]
mod tree;
#[path = "tidy/words.rs"]
mod words;

use layering::{Imports, Layer};
use report::assert_none;
use tree::{Tree, repository};

/// The modules that each top-level module of `src/` may import. `wire` also allows tonic, prost, hyper, http and the
/// generated `proto`.
const LAYERS: &[Layer] = &[
    Layer { name: "model", imports: Imports::Only(&[]), wire: false },
    Layer { name: "phase", imports: Imports::Only(&[]), wire: false },
    Layer { name: "proto", imports: Imports::Only(&["model"]), wire: true },
    Layer { name: "task", imports: Imports::Only(&[]), wire: false },
    Layer { name: "file", imports: Imports::Only(&[]), wire: false },
    Layer { name: "memory", imports: Imports::Only(&[]), wire: false },
    Layer { name: "incidents", imports: Imports::Only(&[]), wire: false },
    Layer { name: "reload", imports: Imports::Only(&["task", "file"]), wire: false },
    Layer { name: "auth", imports: Imports::Only(&["model", "reload", "file", "incidents"]), wire: false },
    Layer { name: "handler", imports: Imports::Only(&["model", "task"]), wire: false },
    Layer { name: "scheduler", imports: Imports::Only(&["model"]), wire: false },
    Layer {
        name: "pool",
        imports: Imports::Only(&["model", "scheduler", "handler", "phase", "task", "incidents"]),
        wire: false,
    },
    // Detached jobs outlive their calls and their process.
    Layer { name: "store", imports: Imports::Only(&["file", "model", "task"]), wire: false },
    Layer { name: "detached", imports: Imports::Only(&["model", "pool", "store", "task"]), wire: false },
    Layer { name: "sim", imports: Imports::Only(&["model", "scheduler", "file"]), wire: false },
    // Log lines of handlers name their job.
    Layer { name: "telemetry", imports: Imports::Only(&["model", "handler", "phase", "task"]), wire: false },
    Layer {
        name: "rpc",
        imports: Imports::Only(&[
            "memory",
            "model",
            "handler",
            "pool",
            "store",
            "detached",
            "phase",
            "task",
            "auth",
            "incidents",
        ]),
        wire: true,
    },
    Layer {
        name: "net",
        imports: Imports::Only(&["memory", "model", "phase", "task", "reload", "file", "incidents"]),
        wire: true,
    },
    Layer {
        name: "ops",
        imports: Imports::Only(&["memory", "model", "pool", "detached", "phase", "task", "rpc", "net"]),
        wire: true,
    },
    // Its options are the components' own config types.
    Layer {
        name: "config",
        imports: Imports::Only(&[
            "model",
            "phase",
            "handler",
            "pool",
            "detached",
            "telemetry",
            "auth",
            "memory",
            "rpc",
            "net",
            "ops",
            "store",
        ]),
        wire: false,
    },
    // Only for tests and fuzzers.
    Layer { name: "fuzzing", imports: Imports::Only(&["auth", "config", "net", "rpc", "handler"]), wire: false },
    Layer { name: "app", imports: Imports::All, wire: true },
    Layer { name: "cli", imports: Imports::All, wire: true },
];

fn check(rule: impl Fn(&Tree) -> Vec<report::Violation>) {
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
    check(names::violations);
}

#[test]
fn repeated_names_are_unique_within_their_module() {
    check(repeated_names::violations);
}

#[test]
fn named_paths_exist() {
    check(paths::violations);
}

#[test]
fn text_does_not_mention_its_history() {
    check(words::violations);
}

#[test]
fn tests_do_not_sleep_to_wait() {
    check(sleeps::violations);
}
