//! The hand-written files of the repository, and violations of rules in them.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

/// Directories of generated files and of copies from elsewhere, to which the rules do not apply.
const SKIPPED: [&str; 8] = ["target", ".git", "node_modules", ".venv", "gen", "__pycache__", "obj", "vendored"];
const TEXT: [&str; 18] = [
    "rs", "md", "toml", "proto", "py", "js", "mjs", "ts", "go", "java", "sh", "yaml", "yml", "json", "html", "css",
    "service", "lock",
];
/// Names of text files without an extension.
const NAMES: [&str; 5] = ["run", "justfile", "Dockerfile", "Containerfile", "Makefile"];

/// One file.
#[derive(Debug, Clone)]
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

impl File {
    pub(crate) fn extension(&self) -> &str {
        Path::new(&self.path).extension().and_then(|extension| extension.to_str()).unwrap_or_default()
    }

    /// # Panics
    /// If the file is not Rust.
    pub(crate) fn parse(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }
}

/// All files, and their directories.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
    entries: BTreeSet<String>,
}

impl Tree {
    /// Whether a file or directory is at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.entries.contains(path)
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.extension() == "rs")
    }

    /// A tree for the test of a rule.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            let parents = path.match_indices('/').map(|(end, _)| path[..end].to_owned());
            tree.entries.extend(parents);
            tree.entries.insert((*path).to_owned());
            tree.files.push(File { path: (*path).to_owned(), text: (*text).to_owned() });
        }
        tree
    }
}

/// Reads the repository.
///
/// # Panics
/// If a file cannot be read.
pub(crate) fn repository() -> Tree {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut tree = Tree::default();
    let mut open = vec![root.clone()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of the repository is readable") {
            let path = entry.expect("an entry of the repository is readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("names are UTF-8").to_owned();
            if SKIPPED.contains(&name.as_str()) || path.is_symlink() {
                continue;
            }
            tree.entries.insert(relative(&root, &path));
            if path.is_dir() {
                open.push(path);
            } else if is_text(&path, &name) {
                let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                tree.files.push(File { path: relative(&root, &path), text });
            }
        }
    }
    tree
}

fn is_text(path: &Path, name: &str) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.map_or(NAMES.contains(&name), |extension| TEXT.contains(&extension)) && name != "package-lock.json"
}

fn relative(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).expect("the walk stays below the root");
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    /// Path from the root of the repository.
    pub(crate) path: String,
    /// Line number, from 1.
    pub(crate) line: usize,
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// Description of the violation.
    pub(crate) found: String,
    /// The remedy.
    pub(crate) help: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, found, help } = self;
        write!(f, "{path}:{line}: [{rule}] {found}\n    help: {help}")
    }
}

/// Panics with all violations, in order of their places.
///
/// # Panics
/// If there is a violation.
pub(crate) fn assert_none(violations: &[Violation]) {
    let mut sorted: Vec<_> = violations.iter().collect();
    sorted.sort();
    let list: Vec<_> = sorted.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} violation(s)\n{}\n", list.len(), list.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_sources_and_skips_generated_files() {
        let tree = repository();
        for path in ["src", "src/lib.rs", "tests/tidy/main.rs", "build.rs", ".ci/run"] {
            assert!(tree.has(path), "{path}");
        }
        assert!(tree.rust().any(|file| file.path == "tests/tidy/tree.rs"));
        assert!(tree.files.iter().any(|file| file.path == ".ci/run"));
        assert!(!tree.files.iter().any(|file| file.path.starts_with("target/")));
    }

    #[test]
    #[should_panic(expected = "src/a.rs:7: [size] too long\n    help: split it")]
    fn a_violation_fails_with_place_rule_and_help() {
        assert_none(&[Violation {
            path: "src/a.rs".into(),
            line: 7,
            rule: "size",
            found: "too long".into(),
            help: "split it",
        }]);
    }
}
