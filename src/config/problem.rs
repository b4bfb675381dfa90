//! Everything that can be wrong with a configuration: one line of what, one line of what to do.

mod program;
mod security;
mod written;

use thiserror::Error;

use crate::handler::ExecCommand;
use crate::model::WITHHELD;
pub use program::ProgramFault;
pub use security::SecurityProblem;
pub use written::WrittenProblem;

const RESERVED: &str = ExecCommand::RESERVED;

/// One thing that is wrong. `Display` says what; [`Problem::help`] says what to do.
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
    /// No reader knows the key.
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
    #[error("`{key}` takes {expected}, not {found}")]
    WrongType {
        /// Dotted key.
        key: String,
        /// What the key takes, with its article.
        expected: &'static str,
        /// What was found, with its article.
        found: &'static str,
        /// A value that would do.
        example: &'static str,
    },
    /// The value has the right type and does not parse.
    #[error("`{key}` takes {expected}, and `{value}` is none")]
    Malformed {
        /// Dotted key.
        key: String,
        /// What the key takes, with its article.
        expected: &'static str,
        /// The value as it was written.
        value: String,
        /// A value that would do.
        example: &'static str,
    },
    /// The value is none of the names that the key takes.
    #[error("`{key}` takes no `{value}`")]
    UnknownName {
        /// Dotted key.
        key: String,
        /// The value as it was written.
        value: String,
        /// Names that the key takes.
        known: Vec<&'static str>,
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
    /// The value stands where a table belongs.
    #[error("`{key}` is a table, not {found}")]
    NotATable {
        /// Dotted key.
        key: String,
        /// What was found, with its article.
        found: &'static str,
    },
    /// The value holds a NUL character, which no program could be given.
    #[error("`{key}` holds a NUL character")]
    Nul {
        /// Dotted key.
        key: String,
    },
    /// The value was copied from what `config show` prints.
    #[error("`{key}` holds `{WITHHELD}`, which stands for what `waterwheel config show` does not print")]
    Withheld {
        /// Dotted key.
        key: String,
    },
    /// The value may not be empty.
    #[error("`{key}` is empty")]
    Empty {
        /// Dotted key.
        key: String,
        /// A value that would do.
        example: &'static str,
    },
    /// One source gives the key a value, another one puts a key inside of it.
    #[error("`{key}` is both a value and a table")]
    ValueAndTable {
        /// Last segment of the key.
        key: String,
    },
    /// A pool or a kind has a name that is not allowed.
    #[error("`{name}` is no name for a {what}")]
    BadName {
        /// `pool` or `kind`.
        what: &'static str,
        /// The name as it was written.
        name: String,
    },
    /// There is nothing to run.
    #[error("no kinds are configured, so no job could run")]
    NoKinds,
    /// A kind names no pool.
    #[error("kind `{kind}` names no pool")]
    NoPool {
        /// Name of the kind.
        kind: String,
    },
    /// A kind names a pool that is not declared.
    #[error("kind `{kind}` runs in pool `{pool}`, which is not declared")]
    UnknownPool {
        /// Name of the kind.
        kind: String,
        /// Name of the pool.
        pool: String,
        /// Pools that are declared.
        known: Vec<String>,
    },
    /// A pool that only variables or flags mention, and that no kind uses.
    #[error("pool `{pool}` is not in the file, and no kind uses it")]
    StrayPool {
        /// Name of the pool.
        pool: String,
        /// Pools that the file declares.
        known: Vec<String>,
    },
    /// A kind that only variables or flags mention, without a handler.
    #[error("kind `{kind}` is not in the file")]
    StrayKind {
        /// Name of the kind.
        kind: String,
        /// Kinds that the file declares.
        known: Vec<String>,
    },
    /// A kind has nothing to run.
    #[error("kind `{kind}` has neither `exec` nor `builtin`")]
    NoHandler {
        /// Name of the kind.
        kind: String,
    },
    /// A kind has two things to run.
    #[error("kind `{kind}` has both `exec` and `builtin`")]
    TwoHandlers {
        /// Name of the kind.
        kind: String,
    },
    /// A key that only programs have, on a built-in kind.
    #[error("`{key}` works only with `exec`")]
    ExecOnly {
        /// Dotted key.
        key: String,
    },
    /// The program cannot be started.
    #[error("program `{program}` {why}")]
    Program {
        /// Program as it was written.
        program: String,
        /// What is wrong with it.
        why: ProgramFault,
    },
    /// A variable to copy is not set.
    #[error("`{name}` is not set in the server's environment")]
    PassEnvMissing {
        /// Name of the variable.
        name: String,
    },
    /// A variable is both set and copied, or copied twice.
    #[error("variable `{name}` of kind `{kind}` is given twice")]
    EnvTwice {
        /// Name of the kind.
        kind: String,
        /// Name of the variable.
        name: String,
    },
    /// The name of a variable is not allowed.
    #[error("`{name}` is no name for a variable")]
    EnvName {
        /// The name as it was written.
        name: String,
    },
    /// The variable is one that each job sets.
    #[error("`{name}` begins with {RESERVED}, which is kept for what each job sets")]
    EnvReserved {
        /// The name as it was written.
        name: String,
    },
    /// A key of `exit_codes` is not an exit code of a failure.
    #[error("`{code}` is no exit code of a failure")]
    ExitCode {
        /// The key as it was written.
        code: String,
    },
    /// What concerns how a value, or a variable, is written.
    #[error(transparent)]
    Written(#[from] WrittenProblem),
    /// Two listeners would take the same address.
    #[error("two listeners claim {address}")]
    SameAddress {
        /// The address.
        address: String,
    },
    /// Other machines would be served without TLS, and nobody said that they may be.
    #[error("`{key}` is {address}, where other machines would be served in plaintext")]
    Plaintext {
        /// Dotted key.
        key: String,
        /// The address.
        address: String,
        /// What allows it, to end a sentence with.
        otherwise: &'static str,
    },
    /// A payload that the server accepts could never arrive.
    #[error("a payload may have {payload}, and `{key}` is {memory}")]
    PayloadOverMemory {
        /// Dotted key.
        key: String,
        /// `server.max_payload`.
        payload: String,
        /// What unfinished messages may hold.
        memory: String,
    },
    /// One connection may hold more than all of them.
    #[error("`server.memory.per_connection` is more than `server.memory.total`")]
    MemoryOverTotal,
    /// The default deadline is longer than the longest one.
    #[error("`deadline.default` is longer than `deadline.max`")]
    DefaultOverMax,
    /// The margin eats up the default deadline.
    #[error("`deadline.reply_margin` leaves nothing of `deadline.default`")]
    MarginOverDefault,
    /// A payload that the server accepts would never fit the queue.
    #[error("a payload may have {payload}, and the queue of pool `{pool}` holds {queue}")]
    PayloadOverQueue {
        /// Name of the pool.
        pool: String,
        /// `server.max_payload`.
        payload: String,
        /// `queue.bytes` of the pool.
        queue: String,
    },
    /// The bounds of the workers are no bounds.
    #[error("`pool.{pool}.workers.min` is more than `pool.{pool}.workers.max`")]
    WorkersOverMax {
        /// Name of the pool.
        pool: String,
    },
    /// Callers are to wait, and none may.
    #[error("pool `{pool}` lets callers wait for room, but has no place for one that waits")]
    NoWaiting {
        /// Name of the pool.
        pool: String,
    },
    /// What concerns TLS, callers and their quotas.
    #[error(transparent)]
    Security(#[from] SecurityProblem),
}

impl Problem {
    /// Whether a table at the top was most likely meant to be `table`.
    pub(super) fn is_slip_for(&self, table: &str) -> bool {
        matches!(self, Self::UnknownKey { key, section, .. } if section.is_empty() && closest(key, &[table]).is_some())
    }

    /// What to do about it, in one line.
    pub fn help(&self) -> String {
        match self {
            Self::Unreadable { .. } => "check the path given with --config or WATERWHEEL_CONFIG".into(),
            Self::Syntax { detail } if detail.contains("duplicate") => "merge the two, or remove one".into(),
            Self::Syntax { detail } if detail.contains("string") => "put the string in quotes, on one line".into(),
            Self::Syntax { .. } => "correct the line; `waterwheel config init` prints a file to compare with".into(),
            Self::UnknownKey { key, known, .. } => choose(key, known),
            Self::UnknownName { value, known, .. } => choose(value, known),
            Self::WrongType { example, .. } | Self::Malformed { example, .. } | Self::Empty { example, .. } => {
                format!("write it like `{example}`")
            }
            Self::OutOfRange { low, high, .. } => format!("give a value from {low} to {high}"),
            Self::NotATable { key, .. } => format!("start a section [{key}{}]", place_of_names(key)),
            Self::Nul { .. } => "remove it".into(),
            Self::Withheld { .. } => "write what it stands for".into(),
            Self::ValueAndTable { .. } => "remove one of the two".into(),
            Self::BadName { .. } => "a name is a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`".into(),
            Self::NoKinds => "add [kind.NAME]; `waterwheel config init` prints a file to start from".into(),
            Self::NoPool { .. } => "add `pool = \"NAME\"`, one of the [pool.NAME] sections".into(),
            Self::UnknownPool { pool, known, .. } => match closest(pool, known) {
                Some(close) => format!("did you mean `{close}`? else add [pool.{pool}]"),
                None => format!("add [pool.{pool}]"),
            },
            Self::StrayPool { pool, known } => match closest(pool, known) {
                Some(close) => {
                    format!("did you mean `{close}`? else add [pool.{pool}] to the file")
                }
                None => format!("add [pool.{pool}] to the file, or a kind that uses it"),
            },
            Self::StrayKind { kind, known } => match closest(kind, known) {
                Some(close) => format!("did you mean `{close}`? else give it `exec` or `builtin`"),
                None => {
                    format!("add [kind.{kind}] to the file, or set its `exec` or `builtin` too")
                }
            },
            Self::NoHandler { .. } => "add `exec = [\"/path/to/program\"]` or `builtin = \"echo\"`".into(),
            Self::TwoHandlers { .. } => "keep one of the two".into(),
            Self::ExecOnly { .. } => "remove it, or replace `builtin` by `exec`".into(),
            Self::Program { program, why } => why.help(program),
            Self::PassEnvMissing { name } => {
                format!("set {name} before the start, or give it a value in `env`, or remove it")
            }
            Self::EnvTwice { .. } => "name it once, in `env` or in `pass_env`".into(),
            Self::EnvName { .. } => "use letters, digits and `_`, and no digit first".into(),
            Self::EnvReserved { name } => match name.trim_start_matches(RESERVED) {
                rest if rest.starts_with(|c: char| !c.is_ascii_digit()) => {
                    format!("choose another name, such as `{rest}`")
                }
                _ => "choose another name".into(),
            },
            Self::ExitCode { .. } => "give a code from 1 to 255, like `\"3\" = \"NOT_FOUND\"`".into(),
            Self::Written(problem) => problem.help(),
            Self::SameAddress { .. } => "give each listener an address of its own".into(),
            Self::Plaintext { otherwise, .. } => format!("listen on a loopback address or a Unix socket, {otherwise}"),
            Self::PayloadOverMemory { key, .. } => format!("raise `{key}` or lower `server.max_payload`"),
            Self::MemoryOverTotal => "raise `server.memory.total` or lower `server.memory.per_connection`".into(),
            Self::DefaultOverMax => "lower `deadline.default` or raise `deadline.max`".into(),
            Self::MarginOverDefault => "lower `deadline.reply_margin` or raise `deadline.default`".into(),
            Self::PayloadOverQueue { pool, .. } => {
                format!("raise `pool.{pool}.queue.bytes` or lower `server.max_payload`")
            }
            Self::Security(problem) => problem.help(),
            Self::WorkersOverMax { pool } => format!("lower `pool.{pool}.workers.min` or raise the other"),
            Self::NoWaiting { pool } => {
                format!("raise `pool.{pool}.queue.waiting`, or set `when_full` to \"reject\" or \"shed\"")
            }
        }
    }
}

/// What follows the key of a table whose keys are names.
fn place_of_names(key: &str) -> &'static str {
    if matches!(key, "pool" | "kind") { ".NAME" } else { "" }
}

fn within(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" in [{section}]") }
}

/// A suggestion, or all that there is to choose from.
fn choose(given: &str, known: &[&'static str]) -> String {
    match closest(given, known) {
        Some(close) => format!("did you mean `{close}`?"),
        None => format!("choose from {}", known.join(", ")),
    }
}

/// The candidate that is a slip or two away, where there is one.
fn closest<'a, S: AsRef<str>>(given: &str, known: &'a [S]) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let distance = |candidate: &&str| strsim::damerau_levenshtein(&given, &candidate.to_lowercase());
    let best = known.iter().map(AsRef::as_ref).min_by_key(distance)?;
    (distance(&best) <= 1 + given.chars().count().max(best.len()) / 4).then_some(best)
}
