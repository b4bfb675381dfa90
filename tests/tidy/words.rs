//! Words about the development of the code instead of the code, and attributes that hide unused code. The rule skips
//! this file, because it lists them.

use crate::tree::{Tree, Violation};

const OWN: &str = "tests/tidy/words.rs";
const MARKERS: [&str; 4] = ["TODO", "FIXME", "XXX", "HACK"];
const PHRASES: [&str; 8] = [
    "as requested",
    "as discussed",
    "this session",
    "previous session",
    "this pull request",
    "in this commit",
    "used to be",
    "as an ai",
];
/// Attributes that hide code which nothing uses. A build without a feature may have such code.
const SILENCED: [&str; 4] = ["allow(dead_code", "allow(unused", "expect(dead_code", "expect(unused"];
/// Words that refer to a tracker if a number follows.
const TRACKED: [&str; 3] = ["issue", "pull request", "ticket"];

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path != OWN) {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(word) = word(line) {
                found.push(Violation {
                    path: file.path.clone(),
                    line: number + 1,
                    rule: "words",
                    found: format!("`{word}`"),
                    help: "describe the present state, for a reader who does not know the history; complete the work or remove the text",
                });
            }
        }
    }
    found
}

fn word(line: &str) -> Option<String> {
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    if let Some(marker) = words.find(|word| MARKERS.contains(word)) {
        return Some(marker.to_owned());
    }
    let lower = line.to_lowercase();
    let silenced = SILENCED.iter().filter(|_| !lower.contains("cfg_attr(not(feature ="));
    if let Some(phrase) = PHRASES.iter().chain(silenced).find(|phrase| lower.contains(*phrase)) {
        return Some((*phrase).to_owned());
    }
    TRACKED.iter().find_map(|word| {
        let (_, rest) = lower.split_once(word)?;
        let number: String = rest.trim_start_matches([' ', '#']).chars().take_while(char::is_ascii_digit).collect();
        (!number.is_empty() && rest.starts_with([' ', '#'])).then(|| format!("{word} {number}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_the_development_are_found() {
        for line in [
            "// TODO: later",
            "# fixed in issue #12",
            "see Issue 3",
            "As requested, it",
            "//FIXME",
            "a XXX b",
            "#[allow(dead_code)] fn a() {}",
        ] {
            assert_eq!(violations(&Tree::of(&[("src/a.rs", line)])).len(), 1, "{line}");
        }
    }

    const OFF: &str = r#"#![cfg_attr(not(feature = "a"), expect(dead_code))]"#;

    #[test]
    fn ordinary_words_pass() {
        for line in
            ["an agent session", "method_TODO_x", "the issue is known", "issues 3 warnings", "mktemp XXXXXX", OFF]
        {
            assert!(violations(&Tree::of(&[("src/a.rs", line)])).is_empty(), "{line}");
        }
    }
}
