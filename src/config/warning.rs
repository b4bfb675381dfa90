use std::fmt;

/// What is no fault, and not meant so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What is odd.
    pub message: String,
    /// What to do about it, in one line.
    pub help: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warning: {}\n  help: {}", self.message, self.help)
    }
}
