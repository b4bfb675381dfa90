//! The program of a kind with `exec`: its path, arguments and environment.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use rustix::fs::{Access, access};

use super::{
    Warning,
    source::Span,
    tree::{Data, Node},
    value_type::{Invalid, unmasked},
    values::Values,
    withhold::value as shown,
};
use crate::handler::ExecCommand;

/// Stands for the directory of the configuration file in a command line.
const CONFIG_DIR: &str = "{config_dir}";

/// A word of a command line as the program gets it.
pub(super) fn word(word: &str, directory: &Path) -> Result<String, Invalid> {
    let word = unmasked(word)?;
    if !word.contains(CONFIG_DIR) {
        return Ok(word);
    }
    let directory = std::path::absolute(Path::new(".").join(directory));
    Ok(directory.map_or(word.clone(), |directory| word.replace(CONFIG_DIR, &directory.to_string_lossy())))
}

/// Why a program cannot be started, if so.
pub(super) fn fault(path: &Path) -> Option<Invalid> {
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

/// Checks the program of a kind, if it has one.
pub(super) fn report(kind: &str, values: &mut Values, server_env: &[(String, String)]) {
    warn_of_relative(&format!("kind.{kind}.exec"), values);
    let table = format!("kind.{kind}.env");
    let mut names: BTreeSet<String> = values.section::<BTreeMap<_, String>>(&table).into_keys().collect();
    for (name, span) in words(&format!("kind.{kind}.pass_env"), values) {
        let is_set = server_env.iter().any(|(other, _)| *other == name);
        let (message, help) = if names.contains(&name) {
            (
                format!("variable `{name}` of kind `{kind}` is given twice"),
                "name it once, in `env` or in `pass_env`".to_owned(),
            )
        } else if is_set {
            names.insert(name);
            continue;
        } else {
            let help = format!("set `{}` before the start, or give it a value in `env`, or remove it", shown(&name));
            (format!("`{}` is not set in the server's environment", shown(&name)), help)
        };
        values.contradiction_at(&[span], message, help);
    }
}

/// The program of a kind, if it has one.
pub(super) fn read(kind: &str, values: &Values, server_env: &[(String, String)]) -> Option<ExecCommand> {
    let key = |key: &str| format!("kind.{kind}.{key}");
    let mut words = values.get::<Vec<String>>(&key("exec"))?.into_iter();
    let codes: BTreeMap<String, _> = values.section(&key("exit_codes"));
    let passed: Vec<String> = values.get(&key("pass_env"))?;
    let passed = server_env.iter().filter(|(name, _)| passed.contains(name)).cloned();
    Some(ExecCommand {
        program: words.next()?.into(),
        args: words.collect(),
        workspace: values.get(&key("workspace"))?,
        env: values.section::<BTreeMap<_, _>>(&key("env")).into_iter().chain(passed).collect(),
        exit_codes: codes.into_iter().filter_map(|(code, failure)| Some((code.parse().ok()?, failure))).collect(),
        content_type: String::new(),
        stderr_tail: values.get(&key("stderr_tail"))?,
        kill_grace: values.get(&key("kill_grace"))?,
    })
}

/// Warns of a relative file name, because jobs do not run in the directory of the configuration.
fn warn_of_relative(key: &str, values: &mut Values) {
    for (word, span) in words(key, values).into_iter().skip(1) {
        let is_beside = Path::new(&word).is_relative() && values.texts.directory(&span).join(&word).is_file();
        if is_beside && !word.is_empty() {
            let word = shown(&word);
            let message = format!(
                "`{key}` has `{word}`, which is relative, but jobs do not run in the directory of the configuration"
            );
            let help = format!("write `{CONFIG_DIR}/{word}` for the file beside the configuration");
            values.warnings.push(Warning { message, help });
        }
    }
}

/// Strings of an array as a source has them, with their places.
fn words(key: &str, values: &Values) -> Vec<(String, Span)> {
    let Some(Node { data: Data::Array(items), .. }) = values.node(key) else { return Vec::new() };
    let word = |item: &Node| match &item.data {
        Data::String(word) => Some((word.clone(), item.span.clone())),
        _ => None,
    };
    items.iter().filter_map(word).collect()
}
