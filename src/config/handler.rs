//! The keys of a kind that choose its handler, and the other keys that each of them allows. A new way of running jobs
//! is a variant of [`HandlerKey`]; the compiler then finds what else it needs here.

use super::{model::Handler, program, values::Values};

/// Keys that only `exec` uses. They are the last keys of a kind in `keys_and_defaults.rs`.
pub(super) const EXEC_KEYS: [&str; 6] = ["workspace", "env", "pass_env", "exit_codes", "stderr_tail", "kill_grace"];

/// A key of `[kind.NAME]` that chooses what runs the jobs. Each kind has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandlerKey {
    Exec,
    Program,
    Remote,
    Builtin,
}

impl HandlerKey {
    pub(super) const ALL: [Self; 4] = [Self::Exec, Self::Program, Self::Remote, Self::Builtin];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Program => "program",
            Self::Remote => "remote",
            Self::Builtin => "builtin",
        }
    }

    /// Help for a key that only `exec` uses, such as `workspace`; `None` if this is `exec`.
    pub(super) fn help_for_exec_key(self) -> Option<&'static str> {
        match self {
            Self::Exec => None,
            Self::Program => Some("remove it, or use the keys of [program.NAME]"),
            Self::Remote => Some("remove it: an attached worker has its own settings"),
            Self::Builtin => Some("remove it, or replace `builtin` by `exec`"),
        }
    }

    fn path(self, kind: &str) -> String {
        format!("kind.{kind}.{}", self.name())
    }
}

/// The handler keys that the sources set for a kind: exactly one in a valid configuration.
pub(super) fn keys_of(kind: &str, values: &Values) -> Vec<HandlerKey> {
    HandlerKey::ALL.into_iter().filter(|key| values.has(&key.path(kind))).collect()
}

/// The handler of a kind in a valid configuration.
pub(super) fn read(kind: &str, pool: &str, values: &Values, env: &[(String, String)]) -> Handler {
    let key = keys_of(kind, values)[0];
    match key {
        HandlerKey::Exec => Handler::Exec(program::read(kind, values, env)),
        HandlerKey::Program => {
            Handler::Program(program::read_worker(&values.required::<String>(&key.path(kind)), pool, values, env))
        }
        HandlerKey::Remote => Handler::Remote {
            kinds: values.kinds_of(pool).into_iter().collect(),
            cancel_grace: values.required(&format!("pool.{pool}.cancel_grace")),
        },
        HandlerKey::Builtin => Handler::Builtin(values.required(&key.path(kind))),
    }
}

/// Reports a kind without a handler, or with several.
pub(super) fn report(kind: &str, values: &mut Values) {
    match keys_of(kind, values)[..] {
        [] => {
            let names = HandlerKey::ALL.map(|key| format!("`{}`", key.name())).join(", ");
            let help = "add `exec = [\"/path/to/program\"]` or `builtin = \"echo\"`";
            values.contradiction(&[&format!("kind.{kind}")], format!("kind `{kind}` needs one of {names}"), help);
        }
        [one, other, ..] => {
            let message = format!("kind `{kind}` has both `{}` and `{}`", one.name(), other.name());
            values.contradiction(&[&one.path(kind), &other.path(kind)], message, "keep one of the two");
        }
        [HandlerKey::Remote] if values.get::<bool>(&HandlerKey::Remote.path(kind)) == Some(false) => {
            let message = format!("kind `{kind}` has `remote = false`, and nothing else that runs its jobs");
            let help = "set it to true, or replace it by `exec` or `program`";
            values.contradiction(&[&HandlerKey::Remote.path(kind)], message, help);
        }
        [_] => {}
    }
}
