//! The kinds of problems in a configuration, with their messages and help. `values.rs` and `contradictions.rs` find them, and `fault.rs` shows them.

use thiserror::Error;

/// One problem. `Display` says what is wrong; [`Problem::help`] says what to do.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot read `{path}`: {detail}")]
    Unreadable {
        /// Path as it was given.
        path: String,
        /// What the system said.
        detail: String,
    },
    /// The text is not TOML.
    #[error("not valid TOML: {detail}")]
    Syntax {
        /// What the parser said.
        detail: String,
    },
    /// The key is not in the table of keys.
    #[error("unknown key `{key}`{}", within(section))]
    UnknownKey {
        /// The key as it was written.
        key: String,
        /// Dotted path of the table that holds it; empty at the top.
        section: String,
        /// Keys that the table may hold.
        known: Vec<&'static str>,
    },
    /// The value has another type.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// Dotted key.
        key: String,
        /// What the key takes, with its article.
        expected: &'static str,
        /// What was found, with its article.
        found: &'static str,
        /// What to do.
        help: String,
    },
    /// The text is not what the key takes.
    #[error("`{key}`: `{text}` is not {expected}")]
    WrongText {
        /// Dotted key.
        key: String,
        /// The text as it was written.
        text: String,
        /// What the key takes, with its article.
        expected: &'static str,
        /// What to do.
        help: String,
    },
    /// The value lies outside the range.
    #[error("`{key}` is {value}, outside of {low} to {high}")]
    OutOfRange {
        /// Dotted key.
        key: String,
        /// The value.
        value: String,
        /// Least value.
        low: String,
        /// Greatest value.
        high: String,
    },
    /// Keys contradict each other, or one needs another.
    #[error("{message}")]
    Contradiction {
        /// What is wrong.
        message: String,
        /// What to do.
        help: String,
    },
}

impl Problem {
    /// What to do about it, in one line.
    pub fn help(&self) -> String {
        match self {
            Self::Unreadable { .. } => "check the path given with --config or WATERWHEEL_CONFIG".into(),
            Self::Syntax { detail } if detail.contains("duplicate") => "merge the two, or remove one".into(),
            Self::Syntax { detail } if detail.contains("string") => "put the string in quotes, on one line".into(),
            Self::Syntax { .. } => "correct the line; `waterwheel config init` prints a file to compare with".into(),
            Self::UnknownKey { key, known, .. } => choose(key, known),
            Self::OutOfRange { low, high, .. } => format!("give a value from {low} to {high}"),
            Self::WrongType { help, .. } | Self::WrongText { help, .. } | Self::Contradiction { help, .. } => {
                help.clone()
            }
        }
    }
}

fn within(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" in [{section}]") }
}

/// The most similar value, or all values.
pub(super) fn choose(given: &str, known: &[&str]) -> String {
    match closest(given, known) {
        Some(close) => format!("did you mean `{close}`?"),
        None => format!("choose from {}", known.join(", ")),
    }
}

/// The most similar candidate, if it is similar enough.
pub(super) fn closest<'a, S: AsRef<str>>(given: &str, known: &'a [S]) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let distance = |candidate: &&str| strsim::damerau_levenshtein(&given, &candidate.to_lowercase());
    let best = known.iter().map(AsRef::as_ref).min_by_key(distance)?;
    (distance(&best) <= 1 + given.chars().count().max(best.len()) / 4).then_some(best)
}
