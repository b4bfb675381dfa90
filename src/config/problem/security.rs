use thiserror::Error;

/// What is wrong with `[server.tls]`, `[auth]` and `[quota]`.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SecurityProblem {
    /// A key that must be there is not.
    #[error("`{key}` is not set")]
    Missing {
        /// Dotted key.
        key: String,
        /// A value that would do.
        example: &'static str,
    },
    /// A file cannot be used.
    #[error("`{key}`: {fault}")]
    File {
        /// Dotted key.
        key: String,
        /// What is wrong; nothing of what is in the file.
        fault: String,
        /// What to do about it.
        help: &'static str,
    },
    /// A text is no pattern of principals.
    #[error("`{pattern}` names no principal")]
    Principal {
        /// The text as it was written.
        pattern: String,
    },
    /// Callers are known, and nothing is allowed to them.
    #[error("callers are authenticated, and no rule lets any of them in")]
    NoRules,
    /// Rules name callers, and none can be known.
    #[error("rules name callers, and nothing tells who calls")]
    NobodyKnown,
    /// A key has no effect without another.
    #[error("`{key}` has no effect without `{needs}`")]
    NoEffect {
        /// Dotted key.
        key: String,
        /// The key that it needs.
        needs: &'static str,
    },
}

impl SecurityProblem {
    pub(super) fn help(&self) -> String {
        match self {
            Self::Missing { key, example } => format!("add `{key} = {example}`"),
            Self::File { help, .. } => (*help).into(),
            Self::Principal { .. } => {
                "begin with `spiffe://`, `subject:` or `jwt:`; `**` is everyone with credentials, `anonymous` whoever \
                 has none"
                    .into()
            }
            Self::NoRules => "add [auth.rule.NAME] with `principals` and `rpcs`; what no rule allows is denied".into(),
            Self::NobodyKnown => "add `server.tls.client_ca` or [auth.jwt], or remove the rules".into(),
            Self::NoEffect { needs, .. } => format!("set `{needs}`, or remove it"),
        }
    }
}
