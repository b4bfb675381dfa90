//! Attributes that hide warnings or tests, and the attribute that every crate root must have.

use proc_macro2::TokenStream;
use syn::{Attribute, Meta, visit::Visit};

use crate::{
    report::Violation,
    tree::{File, Tree},
};

const HIDDEN: [&str; 5] = ["dead_code", "unused", "unused_imports", "unused_variables", "unused_must_use"];

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let parsed = file.parse();
        let mut attributes = Attributes { file, found: Vec::new() };
        attributes.visit_file(&parsed);
        found.append(&mut attributes.found);
        if is_crate_root(&file.path) && !forbids_unsafe(&parsed.attrs) {
            found.push(Violation {
                path: file.path.clone(),
                line: 1,
                rule: "attributes",
                found: "a crate root without `#![forbid(unsafe_code)]`".to_owned(),
                help: "write it below the documentation of the crate",
            });
        }
    }
    found
}

/// Whether the file is `src/lib.rs`, `src/main.rs`, or the root of a test or a benchmark.
fn is_crate_root(path: &str) -> bool {
    let direct = |root: &str| path.strip_prefix(root).is_some_and(|name| !name.contains('/'));
    let main = path.strip_prefix("tests/").or(path.strip_prefix("benches/"));
    let main = main.and_then(|path| path.strip_suffix("/main.rs")).is_some_and(|name| !name.contains('/'));
    path == "src/lib.rs" || path == "src/main.rs" || direct("tests/") || direct("benches/") || main
}

fn forbids_unsafe(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        matches!(&attribute.meta, Meta::List(list)
            if list.path.is_ident("forbid") && words(list.tokens.clone()).any(|word| word == "unsafe_code"))
    })
}

fn words(tokens: TokenStream) -> impl Iterator<Item = String> {
    tokens.into_iter().flat_map(|token| match token {
        proc_macro2::TokenTree::Group(group) => words(group.stream()).collect(),
        token => vec![token.to_string()],
    })
}

struct Attributes<'a> {
    file: &'a File,
    found: Vec<Violation>,
}

impl<'ast> Visit<'ast> for Attributes<'_> {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Some((found, help)) = fault(&attribute.meta) {
            self.found.push(Violation {
                path: self.file.path.clone(),
                line: attribute.pound_token.spans[0].start().line,
                rule: "attributes",
                found,
                help,
            });
        }
    }
}

fn fault(meta: &Meta) -> Option<(String, &'static str)> {
    match meta {
        Meta::Path(path) if path.is_ident("ignore") => {
            Some(("a test that is ignored without a reason".to_owned(), "make it pass, or write `#[ignore = \"why\"]`"))
        }
        Meta::List(list) if ["allow", "expect", "cfg_attr"].iter().any(|name| list.path.is_ident(name)) => {
            let hidden = words(list.tokens.clone()).find(|word| HIDDEN.contains(&word.as_str()))?;
            Some((format!("`{hidden}` is silenced"), "delete the unused code"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        violations(&Tree::of(&[(path, text)])).into_iter().map(|one| format!("{}: {}", one.line, one.found)).collect()
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        let text = "#[test]\n#[ignore]\nfn a() {}";
        assert_eq!(found("src/a.rs", text), ["2: a test that is ignored without a reason"]);
        assert_eq!(found("src/a.rs", "#[test]\n#[ignore = \"needs a GPU\"]\nfn a() {}"), [""; 0]);
    }

    #[test]
    fn dead_code_is_not_silenced() {
        for text in [
            "#[allow(dead_code)] fn a() {}",
            "#![expect(unused, reason = \"x\")]",
            "#[cfg_attr(test, allow(clippy::a, dead_code))] fn a() {}",
            "impl A { #[allow(dead_code)] fn a() {} }",
        ] {
            assert_eq!(found("src/a.rs", text).len(), 1, "{text}");
        }
        assert_eq!(found("src/a.rs", "#[allow(clippy::a, reason = \"b\")] fn a() {}"), [""; 0]);
    }

    #[test]
    fn a_crate_root_forbids_unsafe() {
        for path in ["src/lib.rs", "src/main.rs", "tests/a.rs", "tests/it/main.rs", "benches/a.rs"] {
            assert_eq!(found(path, "//! A.\n").len(), 1, "{path}");
            assert_eq!(found(path, "//! A.\n#![forbid(unsafe_code)]\n"), [""; 0], "{path}");
        }
        assert_eq!(found("tests/it/a.rs", "//! A.\n"), [""; 0]);
    }
}
