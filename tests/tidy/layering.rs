//! The rule for imports between the layers. It collects the paths in a Rust file: in `use`, in code, and in the
//! arguments of macros and attributes.

use proc_macro2::{TokenStream, TokenTree};
use syn::{UseTree, visit::Visit};

use crate::tree::{File, Tree, Violation};

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

/// One path in the source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    /// Segments from left to right; a glob is `*`.
    pub(crate) segments: Vec<String>,
    /// The enclosing inline modules, outermost first.
    pub(crate) within: Vec<String>,
}

/// All paths of `file` with at least two segments, and all of its `use` declarations.
pub(crate) fn imports(file: &syn::File) -> Vec<Import> {
    let mut collector = Collector::default();
    collector.visit_file(file);
    collector.found
}

#[derive(Default)]
struct Collector {
    found: Vec<Import>,
    within: Vec<String>,
}

impl Collector {
    fn push(&mut self, line: usize, segments: Vec<String>) {
        self.found.push(Import { line, segments, within: self.within.clone() });
    }

    fn flatten(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.flatten(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.flatten(tree, prefix)),
            UseTree::Name(leaf) => self.leaf(leaf.ident.span(), leaf.ident.to_string(), prefix),
            UseTree::Rename(leaf) => self.leaf(leaf.ident.span(), leaf.ident.to_string(), prefix),
            UseTree::Glob(leaf) => self.leaf(leaf.star_token.spans[0], "*".to_owned(), prefix),
        }
    }

    fn leaf(&mut self, span: proc_macro2::Span, name: String, prefix: &[String]) {
        let mut segments = prefix.to_vec();
        segments.push(name);
        self.push(span.start().line, segments);
    }

    /// The parser does not parse the arguments of macros, so their paths are read from the tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.finish(line, &mut path);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.finish(line, &mut path);
                    colons = 0;
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.finish(line, &mut path);
                    colons = 0;
                }
            }
        }
        self.finish(line, &mut path);
    }

    fn finish(&mut self, line: usize, path: &mut Vec<String>) {
        let segments = std::mem::take(path);
        if segments.len() > 1 {
            self.push(line, segments);
        }
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.within.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.flatten(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let Some(first) = path.segments.first()
            && segments.len() > 1
        {
            self.push(first.ident.span().start().line, segments);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.visit_path(&list.path);
        self.tokens(list.tokens.clone());
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

    fn paths(text: &str) -> Vec<String> {
        let file = syn::parse_file(text).unwrap();
        imports(&file).iter().map(|import| format!("{}:{}", import.line, import.segments.join("::"))).collect()
    }

    #[test]
    fn uses_are_flattened() {
        let found = paths("use crate::{a::B, c::{self, D as E},\n f::*};\nuse tonic;");
        assert_eq!(found, ["1:crate::a::B", "1:crate::c::self", "1:crate::c::D", "2:crate::f::*", "3:tonic"]);
    }

    #[test]
    fn paths_in_code_types_macros_and_attributes_are_found() {
        let text = "#[derive(prost::Message)]\nstruct A(Vec<http::Uri>);\nfn b() {\n crate::c::d();\n \
                    assert!(x, \"{}\", [hyper::e(1)]); let f = 1;\n}";
        let found = paths(text);
        assert_eq!(found, ["1:prost::Message", "2:http::Uri", "4:crate::c::d", "5:hyper::e"]);
    }

    #[test]
    fn inline_modules_are_kept() {
        let file = syn::parse_file("mod a { mod b { use super::c; } }").unwrap();
        assert_eq!(imports(&file)[0].within, ["a", "b"]);
    }
}
