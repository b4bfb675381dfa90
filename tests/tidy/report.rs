//! Violations of rules, and their report.

use std::fmt;

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
