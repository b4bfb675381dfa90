//! The rule that file names describe a role.

use crate::{report::Violation, tree::Tree};

const VAGUE: [&str; 12] =
    ["util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff", "types", "manager", "base", "lib2"];
const CODE: [&str; 8] = ["rs", "py", "js", "mjs", "ts", "go", "java", "sh"];

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_role_are_found() {
        for path in ["src/pool/mod.rs", "src/utils.rs", "src/pool/common/a.rs", "tests/clients/go/helpers.go"] {
            assert_eq!(violations(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
    }

    #[test]
    fn names_with_a_role_pass() {
        assert!(violations(&Tree::of(&[("src/pool/queue.rs", ""), ("src/model.rs", "")])).is_empty());
    }
}
