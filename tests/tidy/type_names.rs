//! One type for one name: within a top-level module of `src`, no two types are called the same.

use std::collections::BTreeMap;

use syn::Item;

use crate::{report::Violation, tree::Tree};

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut first: BTreeMap<(String, String), &str> = BTreeMap::new();
    let mut found = Vec::new();
    for file in tree.rust().filter(|file| file.path.starts_with("src/") && !is_test(&file.path)) {
        let module = file.path["src/".len()..].split('/').next().unwrap_or_default().trim_end_matches(".rs");
        for name in file.parse().items.iter().filter_map(name) {
            let text = name.to_string();
            let other = first.entry((module.to_owned(), text.clone())).or_insert(&file.path);
            if *other != file.path {
                found.push(Violation {
                    path: file.path.clone(),
                    line: name.span().start().line,
                    rule: "type names",
                    found: format!("`{text}` stands in {other} too"),
                    help: "say in its name what it is, so that one name is one thing",
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
    fn a_name_that_stands_twice_in_a_module_is_found() {
        let tree = Tree::of(&[
            ("src/pool/a.rs", "struct Seen;"),
            ("src/pool/a/b.rs", "pub(crate) enum Seen {}"),
            ("src/pool/a/tests.rs", "struct Seen;"),
            ("src/rpc.rs", "struct Seen; mod inner { struct Seen; }"),
        ]);
        let found = violations(&tree);
        assert_eq!(found.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), ["src/pool/a/b.rs"]);
    }
}
