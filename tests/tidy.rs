//! The habits of the house as a test. Each rule reports every violation at once, with its place and what to do, and has
//! a unit test on a small violating sample, so that it is known to be able to fail.
//!
//! The layers and the exceptions to them are the two tables below; a new top-level module is one more line there.

#![forbid(unsafe_code)]

#[path = "tidy/attributes.rs"]
mod attributes;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/layering.rs"]
mod layering;
#[path = "tidy/lockfile.rs"]
mod lockfile;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/report.rs"]
mod report;
#[path = "tidy/size.rs"]
mod size;
#[path = "tidy/sleeps.rs"]
mod sleeps;
#[path = "tidy/tree.rs"]
mod tree;
#[path = "tidy/type_names.rs"]
mod type_names;
#[path = "tidy/words.rs"]
mod words;

use layering::{Exception, Imports, Layer};
use report::assert_none;
use tree::{Tree, repository};

/// What each top-level module of `src/` may import. `wire` also allows tonic, prost, hyper, http and the generated
/// `proto`.
const LAYERS: &[Layer] = &[
    Layer { name: "model", imports: Imports::Only(&[]), wire: false },
    Layer { name: "phase", imports: Imports::Only(&[]), wire: false },
    Layer { name: "proto", imports: Imports::Only(&["model"]), wire: true },
    Layer { name: "task", imports: Imports::Only(&[]), wire: false },
    Layer { name: "file", imports: Imports::Only(&[]), wire: false },
    Layer { name: "memory", imports: Imports::Only(&[]), wire: false },
    Layer { name: "throttle", imports: Imports::Only(&[]), wire: false },
    Layer { name: "incidents", imports: Imports::Only(&[]), wire: false },
    Layer { name: "reload", imports: Imports::Only(&["task", "file"]), wire: false },
    Layer { name: "auth", imports: Imports::Only(&["model", "reload", "file", "throttle"]), wire: false },
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
    // A line of log names the job that its handler works for.
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
        imports: Imports::Only(&["memory", "model", "phase", "task", "reload", "file", "throttle"]),
        wire: true,
    },
    Layer {
        name: "ops",
        imports: Imports::Only(&["model", "pool", "detached", "phase", "task", "rpc", "net"]),
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
    // It exists in tests and under a fuzzer only.
    Layer { name: "fuzzing", imports: Imports::Only(&["auth", "config", "net", "rpc", "handler"]), wire: false },
    Layer { name: "app", imports: Imports::All, wire: true },
    Layer { name: "cli", imports: Imports::All, wire: true },
];

/// Imports that go against the table, each with its reason. One that is not needed is a violation too.
const EXCEPTIONS: &[Exception] = &[];

fn check(rule: impl Fn(&Tree) -> Vec<report::Violation>) {
    assert_none(&rule(&repository()));
}

#[test]
fn layers_import_only_what_is_below_them() {
    check(|tree| layering::violations(tree, LAYERS, EXCEPTIONS));
}

#[test]
fn files_and_functions_fit_their_limits() {
    check(size::violations);
}

#[test]
fn file_names_say_a_role() {
    check(names::violations);
}

#[test]
fn a_name_is_one_type_of_its_module() {
    check(type_names::violations);
}

#[test]
fn named_paths_exist() {
    check(paths::violations);
}

#[test]
fn text_speaks_of_the_present() {
    check(words::violations);
}

#[test]
fn attributes_hide_nothing() {
    check(attributes::violations);
}

#[test]
fn tests_do_not_sleep_to_wait() {
    check(sleeps::violations);
}

#[test]
fn dependencies_are_past_their_known_faults() {
    check(lockfile::violations);
}
