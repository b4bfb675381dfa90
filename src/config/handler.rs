//! The keys of a kind that choose its handler, and the keys that only `exec` uses. To add a way of running jobs, add a
//! variant to [`HandlerKey`]; the compiler then reports each `match` to extend. This module also reads the programs of
//! `exec` and of `[program.NAME]`, and checks their arguments and variables.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Access, access};
use serde::Deserialize;

use super::{
    Warning,
    model::Handler,
    redact::quote as shown,
    source::Span,
    tree::{Data, Node},
    value_type::{Invalid, unmasked},
    values::Values,
};
use crate::{
    handler::{ExecCommand, IdleLeave, WorkerProgram, protocol::scope},
    model::FailureCode,
};

/// Keys that only `exec` uses. They are the last keys of a kind in `keys_and_defaults.rs`.
pub(super) const EXEC_KEYS: [&str; 6] = ["workspace", "env", "pass_env", "exit_codes", "stderr_tail", "kill_grace"];

/// Placeholder for the directory of the configuration file.
const CONFIG_DIR: &str = "{config_dir}";

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
        HandlerKey::Exec => Handler::Exec(read_exec(kind, values, env)),
        HandlerKey::Program => {
            Handler::Program(read_worker(&values.required::<String>(&key.path(kind)), pool, values, env))
        }
        HandlerKey::Remote => Handler::Remote {
            kinds: values.kinds_of(pool).into_iter().collect(),
            cancel_grace: values.required(&format!("pool.{pool}.cancel_grace")),
            idle_leave: values.get(&format!("pool.{pool}.attached.idle_leave")).map(|after| {
                let min = values.get::<u64>(&format!("pool.{pool}.attached.min")).unwrap_or(0);
                IdleLeave { after, min: min as usize }
            }),
        },
        HandlerKey::Builtin => Handler::Builtin(values.required(&key.path(kind))),
    }
}

/// Reports a kind without a handler, with several, or with `remote = false`.
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
            let help = "set `remote` to true, or replace it by `exec` or `program`";
            values.contradiction(&[&HandlerKey::Remote.path(kind)], message, help);
        }
        [_] => {}
    }
}

/// A command-line word with the placeholder replaced.
pub(super) fn word(word: &str, directory: &Path) -> Result<String, Invalid> {
    let word = unmasked(word)?;
    if !word.contains(CONFIG_DIR) {
        return Ok(word);
    }
    let directory = std::path::absolute(Path::new(".").join(directory));
    Ok(directory.map_or(word.clone(), |directory| word.replace(CONFIG_DIR, &directory.to_string_lossy())))
}

/// Why the program cannot be started, if it cannot.
pub(super) fn program_fault(path: &Path) -> Option<Invalid> {
    let program = path.to_string_lossy();
    let chmod = format!("`chmod +x {program}`, or run the server as a user with that permission");
    let (expected, help) = match std::fs::metadata(path) {
        _ if !path.is_absolute() => {
            ("an absolute path", "there is no shell and no search path; `command -v NAME` prints the whole path")
        }
        Err(_) => ("the path of a file", "install it, or correct the path"),
        Ok(metadata) if !metadata.is_file() => ("a file", "name the program itself"),
        Ok(_) if access(path, Access::EXEC_OK).is_err() => ("executable for this user", &*chmod),
        Ok(_) => return None,
    };
    Some(Invalid::text(&program, expected, Some(help.to_owned())))
}

/// Checks the arguments and the `pass_env` of a table such as `kind.NAME`. `command` is the key of its command line.
pub(super) fn report_program(table: &str, command: &str, values: &mut Values, server_env: &[(String, String)]) {
    warn_of_files(&format!("{table}.{command}"), values);
    let env = format!("{table}.env");
    let mut names: BTreeSet<String> = values.section::<BTreeMap<_, String>>(&env).into_keys().collect();
    let (what, owner) = table.split_once('.').expect("a path such as kind.NAME");
    for (name, span) in words(&format!("{table}.pass_env"), values) {
        if names.contains(&name) {
            let message = format!("variable `{name}` of {what} `{owner}` is given twice");
            values.contradiction_at(&[span], message, "name it once, in `env` or in `pass_env`");
        } else if server_env.iter().any(|(other, _)| *other == name) {
            names.insert(name);
        } else {
            let name = shown(&name);
            let remedies = "before the server starts, give it a value in `env`, or remove it from `pass_env`";
            let message = format!("`{name}` is not set in the server's environment");
            values.contradiction_at(&[span], message, format!("set `{name}` {remedies}"));
        }
    }
}

/// What an exit code of a program means.
#[derive(Deserialize)]
#[serde(untagged)]
enum ExitCode {
    Failure(FailureCode),
    Later { later: Duration, scope: String },
}

/// The program of a kind with `exec`.
fn read_exec(kind: &str, values: &Values, server_env: &[(String, String)]) -> ExecCommand {
    let key = |key: &str| format!("kind.{kind}.{key}");
    let (program, args) = command(&key("exec"), values);
    let (mut exit_codes, mut later) = (BTreeMap::new(), BTreeMap::new());
    for (code, meaning) in values.section::<BTreeMap<String, ExitCode>>(&key("exit_codes")) {
        match (code.parse(), meaning) {
            (Ok(code), ExitCode::Failure(failure)) => drop(exit_codes.insert(code, failure)),
            (Ok(code), ExitCode::Later { later: time, scope: name }) => drop(later.insert(code, (time, scope(&name)))),
            (Err(_), _) => {}
        }
    }
    ExecCommand {
        program,
        args,
        workspace: values.required(&key("workspace")),
        env: environment(&format!("kind.{kind}"), values, server_env),
        exit_codes,
        later,
        content_type: String::new(),
        stderr_tail: values.required(&key("stderr_tail")),
        kill_grace: values.required(&key("kill_grace")),
    }
}

/// A program and its arguments.
fn command(key: &str, values: &Values) -> (PathBuf, Vec<String>) {
    let mut words = values.required::<Vec<String>>(key).into_iter();
    (words.next().expect("a command has a program").into(), words.collect())
}

/// The program `name`, with the kinds of `pool` whose jobs it runs.
fn read_worker(name: &str, pool: &str, values: &Values, server_env: &[(String, String)]) -> WorkerProgram {
    let table = format!("program.{name}");
    let key = |key: &str| format!("{table}.{key}");
    let (path, args) = command(&key("command"), values);
    let runs = |kind: &String| values.get::<String>(&format!("kind.{kind}.program")).as_deref() == Some(name);
    WorkerProgram {
        name: name.to_owned(),
        path,
        args,
        directory: values.get(&key("directory")),
        env: environment(&table, values, server_env),
        kinds: values.kinds_of(pool).into_iter().filter(runs).collect(),
        jobs_per_process: values.required(&key("jobs_per_process")),
        start_timeout: values.required(&key("start_timeout")),
        required: values.required(&key("required")),
        recycle: values.section(&key("recycle")),
        stderr_tail: values.required(&key("stderr_tail")),
        cancel_grace: values.required(&format!("pool.{pool}.cancel_grace")),
    }
}

/// The variables that a table sets for its program.
fn environment(table: &str, values: &Values, server_env: &[(String, String)]) -> BTreeMap<String, String> {
    let passed: Vec<String> = values.required(&format!("{table}.pass_env"));
    let passed = server_env.iter().filter(|(name, _)| passed.contains(name)).cloned();
    values.section::<BTreeMap<_, _>>(&format!("{table}.env")).into_iter().chain(passed).collect()
}

/// Warns about each argument `{config_dir}/NAME` without such a file. Also warns about each relative path of a file in
/// the directory of the configuration, because jobs do not run there.
fn warn_of_files(key: &str, values: &mut Values) {
    for (word, span) in words(key, values).into_iter().skip(1) {
        if let Some(name) = word.strip_prefix(CONFIG_DIR).map(|rest| rest.trim_start_matches('/'))
            && !values.texts.directory(&span).join(name).exists()
        {
            let message = format!("`{key}` names `{}`, which does not exist", shown(&word));
            let help = "correct the name, or put the file into the directory of the configuration".to_owned();
            values.warnings.push(Warning { message, help });
        }
        let is_beside = Path::new(&word).is_relative() && values.texts.directory(&span).join(&word).is_file();
        if is_beside && !word.is_empty() {
            let word = shown(&word);
            let message = format!(
                "`{key}` has the relative path `{word}`, but jobs do not run in the directory of the configuration"
            );
            let help = format!("write `{CONFIG_DIR}/{word}` for the file in the directory of the configuration");
            values.warnings.push(Warning { message, help });
        }
    }
}

/// The strings of an array as a source has them, with their positions.
fn words(key: &str, values: &Values) -> Vec<(String, Span)> {
    let Some(Node { data: Data::Array(items), .. }) = values.node(key) else { return Vec::new() };
    let word = |item: &Node| match &item.data {
        Data::String(word) => Some((word.clone(), item.span.clone())),
        _ => None,
    };
    items.iter().filter_map(word).collect()
}
