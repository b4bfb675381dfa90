//! The rules that file names describe a role, and that names of types and of files are unique within a top-level module
//! of `src`.

use std::collections::BTreeMap;

use syn::Item;

use crate::tree::{Tree, Violation};

const VAGUE: [&str; 12] =
    ["util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff", "types", "manager", "base", "lib2"];
const CODE: [&str; 8] = ["rs", "py", "js", "mjs", "ts", "go", "java", "sh"];

pub(crate) fn vague(tree: &Tree) -> Vec<Violation> {
    let code = tree.files.iter().filter(|file| CODE.contains(&file.extension()));
    code.filter_map(|file| {
        let (found, help) = fault(&file.path)?;
        Some(Violation { path: file.path.clone(), line: 1, rule: "names", found, help })
    })
    .collect()
}

fn fault(path: &str) -> Option<(String, &'static str)> {
    if path.ends_with("/mod.rs") {
        return Some(("a `mod.rs`: many files with the same name".to_owned(), "name it `foo.rs`, beside `foo/`"));
    }
    let stem = path.rsplit_once('.').map_or(path, |(stem, _)| stem);
    let vague = stem.split('/').find(|part| VAGUE.contains(&part.to_ascii_lowercase().as_str()))?;
    Some((
        format!("`{vague}` does not describe the content"),
        "name its role, or move its parts to the modules that use them",
    ))
}

pub(crate) fn repeated(tree: &Tree) -> Vec<Violation> {
    let mut first: BTreeMap<(String, String), &str> = BTreeMap::new();
    let mut found = Vec::new();
    for file in tree.rust().filter(|file| file.path.starts_with("src/") && !is_test(&file.path)) {
        let module = file.path["src/".len()..].split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let file_name = file.path.rsplit('/').next().map(|name| (name.to_owned(), 1));
        let items = file.parse();
        let types = items.items.iter().filter_map(name).map(|name| (name.to_string(), name.span().start().line));
        for (text, line) in file_name.into_iter().chain(types) {
            let other = first.entry((module.to_owned(), text.clone())).or_insert(&file.path);
            if *other != file.path {
                found.push(Violation {
                    path: file.path.clone(),
                    line,
                    rule: "repeated names",
                    found: format!("`{text}` is also in {other}"),
                    help: "give each type and each file a name of its own",
                });
            }
        }
    }
    found
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

fn name(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Struct(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_role_are_found() {
        for path in ["src/pool/mod.rs", "src/utils.rs", "src/pool/common/a.rs", "tests/clients/go/helpers.go"] {
            assert_eq!(vague(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
    }

    #[test]
    fn names_with_a_role_pass() {
        assert!(vague(&Tree::of(&[("src/pool/queue.rs", ""), ("src/model.rs", "")])).is_empty());
    }

    #[test]
    fn a_name_that_repeats_within_a_module_is_found() {
        let tree = Tree::of(&[
            ("src/pool/a.rs", "struct Seen;"),
            ("src/pool/a/b.rs", "pub(crate) enum Seen {}"),
            ("src/pool/a/tests.rs", "struct Seen;"),
            ("src/pool/a/a.rs", ""),
            ("src/rpc.rs", "struct Seen; mod inner { struct Seen; }"),
        ]);
        let found = repeated(&tree);
        assert_eq!(found.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), ["src/pool/a/b.rs", "src/pool/a/a.rs"]);
    }
}
