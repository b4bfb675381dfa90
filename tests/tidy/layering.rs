//! The rule for imports between the layers.

use crate::{
    imports::{Import, imports},
    report::Violation,
    tree::{File, Tree},
};

/// Crates that belong to the wire.
const WIRE: [&str; 14] = [
    "tonic",
    "tonic_prost",
    "tonic_reflection",
    "tonic_types",
    "prost",
    "prost_reflect",
    "prost_types",
    "hyper",
    "hyper_util",
    "h2",
    "http",
    "http_body",
    "http_body_util",
    "axum",
];
/// The generated module, which is part of the wire.
const GENERATED: &str = "proto";
/// Name of the crate in its binary.
const CRATE: &str = "waterwheel";

/// A top-level module.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) name: &'static str,
    /// The layers that it may import, or `all`.
    pub(crate) imports: &'static str,
    /// Whether it may name tonic, prost, hyper, http and `proto`.
    pub(crate) wire: bool,
}

pub(crate) fn violations(tree: &Tree, layers: &[Layer]) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let Some(module) = module_of(&file.path) else { continue };
        let Some(layer) = layers.iter().find(|layer| layer.name == module[0]) else {
            found.push(unknown_layer(file, &module[0]));
            continue;
        };
        let faults =
            imports(&file.parse()).into_iter().filter_map(|import| fault(file, &import, &module, layer, layers));
        found.extend(faults);
    }
    found
}

/// The module path of a file of `src/`. `None` for the crate roots, which may import everything.
fn module_of(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    (path != "lib" && path != "main" && !path.starts_with("bin/")).then(|| path.split('/').map(str::to_owned).collect())
}

fn fault(file: &File, import: &Import, module: &[String], layer: &Layer, layers: &[Layer]) -> Option<Violation> {
    let from = layer.name;
    let violation = |found: String, help| {
        Some(Violation { path: file.path.clone(), line: import.line, rule: "layering", found, help })
    };
    let Some(name) = own(import, module) else {
        let name = &import.segments[0];
        return if layer.wire || !WIRE.contains(&name.as_str()) {
            None
        } else {
            violation(
                format!("`{from}` names `{name}`, which belongs to the wire"),
                "move it to rpc, net, ops, cli or app and pass plain data of `model`",
            )
        };
    };
    let is_allowed = name == from || layer.imports == "all" || layer.imports.split(' ').any(|other| other == name);
    if name == GENERATED && layer.wire {
        None
    } else if name == GENERATED {
        violation(
            format!("`{from}` names the generated `{name}`, which belongs to the wire"),
            "convert in rpc and pass plain data of `model`",
        )
    } else if !layers.iter().any(|layer| layer.name == name) {
        violation(
            format!("`{from}` imports `{name}` from the root of the crate, which hides its layer"),
            "import it from the module that defines it; a new top-level module gets a line in LAYERS",
        )
    } else if is_allowed {
        None
    } else {
        violation(
            format!("`{from}` imports `{name}`, which is not below it"),
            "pass what it needs as a value, or move the shared type down; the table is LAYERS in tests/tidy/main.rs",
        )
    }
}

/// The top-level module of a path in this crate. `None` for a path in another crate, or a local name.
fn own(import: &Import, module: &[String]) -> Option<String> {
    let mut segments = import.segments.iter().map(String::as_str).peekable();
    let mut at: Vec<&str> = module.iter().chain(&import.within).map(String::as_str).collect();
    match segments.peek().copied()? {
        "crate" | CRATE => at.clear(),
        "self" => {}
        "super" => {
            while segments.next_if(|segment| *segment == "super").is_some() {
                at.pop();
            }
            return Some(at.first().copied().or(segments.next())?.to_owned());
        }
        _ => return None,
    }
    segments.next();
    Some(at.first().copied().or(segments.next())?.to_owned())
}

fn unknown_layer(file: &File, name: &str) -> Violation {
    Violation {
        path: file.path.clone(),
        line: 1,
        rule: "layering",
        found: format!("`{name}` is not in the table of layers"),
        help: "add a line to LAYERS of tests/tidy/main.rs with the modules that it may import",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &[Layer] = &[
        Layer { name: "model", imports: "", wire: false },
        Layer { name: "pool", imports: "model", wire: false },
        Layer { name: "rpc", imports: "model pool", wire: true },
        Layer { name: "app", imports: "all", wire: true },
    ];

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[(path, text)]);
        violations(&tree, LAYERS).into_iter().map(|one| format!("{}: {}", one.line, one.found)).collect()
    }

    #[test]
    fn an_import_of_a_higher_layer_is_found_in_any_form() {
        for text in [
            "use crate::pool::Pool;",
            "use crate::{model::x, pool};",
            "fn a() { crate::pool::b() }",
            "use super::super::pool::Pool;",
            "fn a() { assert!(crate::pool::B) }",
            "mod tests { use super::super::super::pool::Pool; }",
            "use super::super::{pool};",
        ] {
            let found = found("src/model/job.rs", text);
            assert_eq!(found, ["1: `model` imports `pool`, which is not below it"], "{text}");
        }
    }

    #[test]
    fn an_import_of_the_wire_is_found_in_layers_below_it() {
        let wire = |name: &str| [format!("1: `pool` names `{name}`, which belongs to the wire")];
        assert_eq!(found("src/pool.rs", "use tonic::Status;"), wire("tonic"));
        assert_eq!(found("src/pool/queue.rs", "fn a(_: &http::Uri) {}"), wire("http"));
        assert_eq!(found("src/pool.rs", "#[derive(prost::Message)] struct A;"), wire("prost"));
        assert_eq!(found("src/pool.rs", "use crate::proto::Job;").len(), 1);
    }

    #[test]
    fn imports_of_lower_layers_and_local_names_pass() {
        let text = "use crate::model::Job; use super::queue; fn a(http: u8) -> u8 { self::b::c(); http }";
        assert_eq!(found("src/pool/queue.rs", text), [""; 0]);
        assert_eq!(found("src/rpc.rs", "use crate::{proto::Job, pool::Pool}; use tonic::Status;"), [""; 0]);
        assert_eq!(found("src/app.rs", "use crate::{rpc, pool, model}; use hyper::body;"), [""; 0]);
        assert_eq!(found("src/main.rs", "use waterwheel::anything;"), [""; 0]);
    }

    #[test]
    fn imports_from_the_crate_root_are_found() {
        assert_eq!(found("src/pool.rs", "use crate::Job;").len(), 1);
        assert_eq!(found("src/pool.rs", "use crate::*;").len(), 1);
    }

    #[test]
    fn a_module_without_a_layer_is_found() {
        assert_eq!(found("src/extra/a.rs", ""), ["1: `extra` is not in the table of layers"]);
    }
}
