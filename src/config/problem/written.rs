use thiserror::Error;

use super::closest;

/// What is wrong with how a value, or a variable, is written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WrittenProblem {
    /// The address of a socket has a parameter that there is not.
    #[error("`{key}` has the parameter `{name}`, which no socket takes")]
    SocketParameter {
        /// Dotted key.
        key: String,
        /// The parameter as it was written.
        name: String,
    },
    /// The mode of a socket is not permissions of a file.
    #[error("`{key}` has the mode `{mode}`, which is not permissions in octal")]
    SocketMode {
        /// Dotted key.
        key: String,
        /// The mode as it was written.
        mode: String,
    },
    /// A size without a unit that is too small to be meant so.
    #[error("`{key}` is {count}, which would be {count} bytes")]
    NoUnit {
        /// Dotted key.
        key: String,
        /// The number.
        count: u64,
    },
    /// A variable is named as a key is, but for the underscores.
    #[error("variable `{name}` sets no key")]
    StrayVariable {
        /// Name of the variable.
        name: String,
        /// The variables of the keys that there are.
        known: Vec<String>,
    },
}

impl WrittenProblem {
    pub(super) fn help(&self) -> String {
        match self {
            Self::SocketParameter { .. } => "the known one is `mode`, as in `unix:/path?mode=660`".into(),
            Self::SocketMode { .. } => "give 0 to 777, as in `unix:/path?mode=660`".into(),
            Self::NoUnit { count, .. } => format!("write the unit, as in `\"{count}MiB\"`, or `\"{count}B\"`"),
            Self::StrayVariable { name, known } => match closest(name, known) {
                Some(close) => format!("did you mean `{close}`?"),
                None => "write two underscores between the parts of a key, as in WATERWHEEL_POOL__CPU__WORKERS".into(),
            },
        }
    }
}
