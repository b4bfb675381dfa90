//! The rule that paths in documents and comments exist.

use crate::tree::{File, Tree, Violation};

const ROOTS: [&str; 9] = ["src/", "tests/", "proto/", "deploy/", "benches/", "docs/", "examples/", ".ci/", ".github/"];

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in &tree.files {
        for (number, line) in file.text.lines().enumerate() {
            let Some(prose) = prose(file, line) else { continue };
            let links = if file.extension() == "md" { dead_links(tree, file, prose) } else { Vec::new() };
            for name in dead_paths(tree, prose).into_iter().chain(links) {
                found.push(Violation {
                    path: file.path.clone(),
                    line: number + 1,
                    rule: "paths",
                    found: format!("`{name}` does not exist"),
                    help: "correct the path, or remove it",
                });
            }
        }
    }
    found
}

/// The prose of a line: all of it in a document, and the comment in code.
fn prose<'a>(file: &File, line: &'a str) -> Option<&'a str> {
    let marker = match file.extension() {
        "md" => return Some(line),
        "rs" | "proto" | "go" | "java" | "js" | "mjs" | "ts" => "//",
        "py" | "sh" | "toml" | "yaml" | "yml" | "" => "#",
        _ => return None,
    };
    line.trim_start().strip_prefix(marker)
}

fn dead_paths(tree: &Tree, prose: &str) -> Vec<String> {
    let words = prose.split(|c: char| !(c.is_ascii_alphanumeric() || "./_-*<>{},$".contains(c)));
    words.filter_map(|word| named(word).filter(|name| !tree.has(name)).map(str::to_owned)).collect()
}

/// The path in `word`, if it is one of the repository. A pattern stands for its directory.
fn named(word: &str) -> Option<&str> {
    let word = word.trim_end_matches(['.', ',', '>', '}', '/']);
    let upper = |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    if word.strip_suffix(".md").is_some_and(|name| !name.is_empty() && upper(name)) {
        return Some(word);
    }
    if !ROOTS.iter().any(|root| word.starts_with(root)) {
        return None;
    }
    let fixed = word.find(['*', '<', '{', '$']).map_or(word, |pattern| &word[..pattern]);
    if fixed.len() == word.len() { Some(word) } else { fixed.rsplit_once('/').map(|(directory, _)| directory) }
}

/// Links to files that do not exist. They are relative to the document.
fn dead_links(tree: &Tree, file: &File, prose: &str) -> Vec<String> {
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets
        .filter(|target| !target.is_empty() && !target.contains(':') && !target.starts_with('/'))
        .map(|target| join(directory, target))
        .filter(|target| !target.is_empty() && !tree.has(target))
        .collect()
}

fn join(directory: &str, target: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[("src/pool/queue.rs", ""), ("proto/a/b.proto", ""), ("README.md", ""), (path, text)]);
        violations(&tree).into_iter().map(|one| format!("{}: {}", one.line, one.found)).collect()
    }

    #[test]
    fn a_path_to_nothing_is_found() {
        let gone = ["2: `src/pool/gone.rs` does not exist"];
        assert_eq!(found("docs/a.md", "\nSee `src/pool/gone.rs`."), gone);
        assert_eq!(found("src/a.rs", "\n//! See src/pool/gone.rs, and\n"), gone);
        assert_eq!(found("src/a.rs", "//! `proto/c/*.proto`\n"), ["1: `proto/c` does not exist"]);
        assert_eq!(found("a.sh", "# as DESIGN.md says"), ["1: `DESIGN.md` does not exist"]);
        assert_eq!(found("docs/a.md", "[a](../src/b.rs#c)"), ["1: `src/b.rs` does not exist"]);
    }

    #[test]
    fn existing_paths_and_paths_outside_of_the_repository_pass() {
        let text = "`src/pool/queue.rs` `src/pool/` `src/` `proto/a/*.proto` README.md https://a.b/src/c.rs\n\
                    `tower/src/buffer/` [a](../README.md#b) [c](#d) [e](https://f/g) `proto/<package>/`";
        assert_eq!(found("docs/a.md", text), [""; 0]);
        assert_eq!(found("src/a.rs", "const A: &str = \"src/gone.rs\";"), [""; 0]);
    }
}
